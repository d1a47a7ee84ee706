"""Checkpoints: state and input positions of a pipeline as one database commit, and the way back to one.

A batch's transaction begins with `begin_batch` and ends with `commit_batch`; what is put in between, in namespaces of
the pipeline, belongs to that batch. All of it in the caller's transaction where one is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from gateway.domain.state import InvalidState, UnknownPipeline, Version, require_name
from gateway.pipeline.database import Connection
from gateway.pipeline.state import transaction
from gateway.storage.statements import statement

__all__ = [
    "Checkpoint",
    "Position",
    "begin_batch",
    "checkpoints",
    "commit_batch",
    "drop_pipeline",
    "go_back",
    "keep_checkpoints",
    "reset_pipeline",
]


class Position(NamedTuple):
    """Where a pipeline goes on reading in a partition."""

    topic: str
    topic_id: int
    partition: int
    next_offset: int


class Checkpoint(NamedTuple):
    """A committed batch that one can go back to; 0 is the empty start."""

    batch_id: int
    rows: int
    created_at: datetime
    positions: tuple[Position, ...]
    seals: Mapping[str, Version]


def begin_batch(connection: Connection, pipeline: str) -> int:
    """Hold the pipeline and its state until the transaction ends; its last committed batch. Makes it if need be."""
    return int(_call(connection, "state/begin_batch", pipeline=pipeline))


def commit_batch(
    connection: Connection,
    pipeline: str,
    batch_id: int,
    positions: Mapping[tuple[int, int], int],
    *,
    rows: int = 0,
) -> bool:
    """Move positions, given as next offsets by topic id and partition, and make the checkpoint of this batch.

    False if it was committed before: then nothing was changed here, and the transaction is to be rolled back.
    """
    moved = sorted(positions.items())
    return bool(
        _call(
            connection,
            "state/commit_batch",
            pipeline=pipeline,
            batch_id=batch_id,
            topic_ids=[topic_id for (topic_id, _), _ in moved],
            partitions=[partition for (_, partition), _ in moved],
            next_offsets=[offset for _, offset in moved],
            rows=rows,
        )
    )


def checkpoints(connection: Connection, pipeline: str) -> list[Checkpoint]:
    """The batches that a pipeline can go back to, newest first."""
    with transaction(connection):
        found = connection.execute(statement("state/list_checkpoints"), {"pipeline": pipeline}).fetchall()
    if not found:
        raise UnknownPipeline(f"There is no pipeline {pipeline}.")
    return [
        Checkpoint(
            batch_id,
            rows,
            created_at,
            tuple(Position(one["topic"], one["topic_id"], one["partition"], one["next_offset"]) for one in positions),
            {namespace: Version(*seal) for namespace, seal in seals.items()},
        )
        for batch_id, rows, created_at, positions, seals in found
    ]


def go_back(connection: Connection, pipeline: str, batch_id: int) -> int:
    """Make state, seals and positions what they were right after that batch; how many keys changed.

    The pipeline then goes on with the batch after it. What its sinks wrote stays: they are to be written again, which
    changes nothing if they are idempotent.
    """
    return int(_call(connection, "state/go_back", pipeline=pipeline, batch_id=batch_id))


def keep_checkpoints(connection: Connection, pipeline: str, kept: int) -> None:
    """Say how many checkpoints are kept; older ones go with the next commit."""
    if kept < 1:
        raise InvalidState("At least one checkpoint is kept.")
    if _call(connection, "state/keep_checkpoints", pipeline=pipeline, kept=kept) is None:
        raise UnknownPipeline(f"There is no pipeline {pipeline}.")


def reset_pipeline(connection: Connection, pipeline: str) -> None:
    """Empty a pipeline: no positions, no state, batch 0."""
    _call(connection, "state/reset_pipeline", pipeline=pipeline)


def drop_pipeline(connection: Connection, pipeline: str) -> None:
    """Remove a pipeline with its namespaces."""
    _call(connection, "state/drop_pipeline", pipeline=pipeline)


def _call(connection: Connection, name: str, /, *, pipeline: str, **parameters: object) -> Any:
    require_name(pipeline, of="pipeline")
    with transaction(connection):
        row = connection.execute(statement(name), {"pipeline": pipeline, **parameters}).fetchone()
    return None if row is None else row[0]
