"""Positions: where a pipeline stands, moved only in the transaction that writes its results.

Two runners of one pipeline cannot both commit: a commit holds the pipeline's row, and holds only if the pipeline stands
where the batch was cut. The advisory lock beside it is a courtesy: the second runner is told at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gateway.domain.cuts import Cut
from gateway.errors import PipelineError
from gateway.pipeline.checkpoints import begin_batch, commit_batch
from gateway.pipeline.cuts import Bound, fix_cut
from gateway.pipeline.database import Connection, PipelineDatabase, hold_lock
from gateway.storage.locks import pipeline_lock
from gateway.storage.statements import statement

__all__ = ["Position", "RunnerLock", "Superseded", "begin", "commit", "load_position", "record_error", "start_at"]


class Superseded(PipelineError):
    """Another runner, or a reset, has moved the pipeline: this batch must not be committed."""


@dataclass(frozen=True)
class Position:
    """The last committed batch and, by topic id and partition, the next offset to read."""

    batch_id: int
    next_offsets: Mapping[tuple[int, int], int]
    topics: Mapping[int, str]

    @property
    def by_name(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for (topic_id, partition), offset in self.next_offsets.items():
            found.setdefault(self.topics[topic_id], {})[partition] = offset
        return found


def load_position(connection: Connection, pipeline: str) -> Position | None:
    rows = connection.execute(statement("pipeline/load_position"), {"pipeline": pipeline}).fetchall()
    if not rows:
        return None
    read = [row for row in rows if row[1] is not None]
    return Position(
        rows[0][0],
        {(topic_id, partition): offset for _, _, topic_id, partition, offset in read},
        {topic_id: topic for _, topic, topic_id, _, _ in read},
    )


def begin(connection: Connection, pipeline: str) -> Position:
    """Hold the pipeline until the transaction ends; where it stands."""
    begin_batch(connection, pipeline)
    position = load_position(connection, pipeline)
    assert position is not None
    return position


def start_at(connection: Connection, pipeline: str, topics: list[str], start: Bound) -> None:
    """Note the start in topics that the pipeline has not read yet, in a transaction that holds it."""
    position = load_position(connection, pipeline)
    known = set(position.topics.values()) if position else set()
    if new := [topic for topic in topics if topic not in known]:
        cut = fix_cut(connection, new, start=start)
        starts = {(one.topic_id, one.partition): one.start for one in cut.ranges}
        connection.execute(statement("pipeline/insert_positions"), {"pipeline": pipeline, **_arrays(starts)})


def commit(
    connection: Connection, pipeline: str, *, batch_id: int, next_offsets: Mapping[tuple[int, int], int], rows: int
) -> None:
    """Move the positions as batch `batch_id`, in a transaction that holds the pipeline."""
    if not commit_batch(connection, pipeline, batch_id, next_offsets, rows=rows):
        raise Superseded(f"Batch {batch_id} of pipeline {pipeline} was committed before.")


def require_unmoved(now: Position, batch_id: int, cut: Cut) -> None:
    """Refuse to commit a batch that was cut from another position than the pipeline has now."""
    starts = {(one.topic_id, one.partition): one.start for one in cut.ranges}
    if now.batch_id == batch_id - 1 and all(starts.get(place, at) == at for place, at in now.next_offsets.items()):
        return
    raise Superseded(
        f"The pipeline stands at batch {now.batch_id} and was moved while batch {batch_id} was worked on, by another "
        "runner or a reset: nothing of this batch was written. See that only one runner is started."
    )


def record_error(connection: Connection, pipeline: str, error: str) -> None:
    connection.execute(statement("pipeline/record_error"), {"pipeline": pipeline, "error": error[:10_000]})


def _arrays(offsets: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    places = list(offsets)
    return {
        "topic_ids": [topic_id for topic_id, _ in places],
        "partitions": [partition for _, partition in places],
        "next_offsets": [offsets[place] for place in places],
    }


class RunnerLock:
    """Says to a second runner, at once, that there is a first. An open transaction holds it: it passes PgBouncer, and
    is gone the moment its process is."""

    def __init__(self, database: PipelineDatabase, pipeline: str) -> None:
        self._database = database
        self._pipeline = pipeline
        self._connection: Connection | None = None

    def hold(self) -> None:
        """Take it, or see that it is still held; Superseded when somebody else has it."""
        if self._connection is not None:
            if _answers(self._connection):
                return
            self.release()
        connection = self._database.connect(autocommit=False)
        if not hold_lock(connection, pipeline_lock(zlib.crc32(self._pipeline.encode()))):
            connection.close()
            raise Superseded(
                f"Pipeline {self._pipeline} has a runner at work: stop that one first, or give this one another name."
            )
        self._connection = connection

    def release(self) -> None:
        """Give it up before the connection is closed, which the server hears of later: the next runner may come at
        once."""
        from psycopg import Error

        if self._connection is not None:
            with suppress(Error):
                self._connection.rollback()
            self._connection.close()
            self._connection = None


def _answers(connection: Connection) -> bool:
    from psycopg import Error

    try:
        connection.execute("SELECT 1")
    except Error:
        return False
    return True
