"""Moving a pipeline by hand: to nothing, to a checkpoint, to other positions. Never while a runner is at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.errors import PipelineError
from gateway.pipeline import positions
from gateway.pipeline.checkpoints import go_back, reset_pipeline
from gateway.pipeline.cuts import Bound, fix_cut, load_logs
from gateway.pipeline.database import Connection, PipelineDatabase
from gateway.pipeline.positions import Position, RunnerLock

__all__ = ["move", "move_past_deleted", "return_to", "start_over"]


@contextmanager
def _held(database: PipelineDatabase, pipeline: str) -> Iterator[tuple[Connection, Position]]:
    """A transaction that holds the pipeline, which must exist and have no runner."""
    lock = RunnerLock(database, pipeline)
    lock.hold()
    try:
        with database.connect() as connection, connection.transaction():
            if positions.load_position(connection, pipeline) is None:
                raise PipelineError(f"There is no pipeline {pipeline}: see `tablewire pipeline status`.")
            yield connection, positions.begin(connection, pipeline)
    finally:
        lock.release()


def start_over(database: PipelineDatabase, pipeline: str) -> None:
    """No positions, no state, batch 0: the next run reads from its job's start."""
    with _held(database, pipeline) as (connection, _):
        reset_pipeline(connection, pipeline)


def return_to(database: PipelineDatabase, pipeline: str, batch_id: int) -> int:
    """State and positions as they were after a batch; how many keys of its state changed."""
    with _held(database, pipeline) as (connection, _):
        return go_back(connection, pipeline, batch_id)


def move(database: PipelineDatabase, pipeline: str, to: Bound) -> Mapping[tuple[str, int], int]:
    """Go on reading at another place, with the state as it is; where that is. A batch of its own in the history."""
    with _held(database, pipeline) as (connection, position):
        topics = sorted(set(position.topics.values()))
        if not topics:
            raise PipelineError(f"Pipeline {pipeline} has read no topic yet: there is nothing to move.")
        cut = fix_cut(connection, topics, start=to)
        starts = {(one.topic_id, one.partition): one.start for one in cut.ranges}
        positions.commit(connection, pipeline, batch_id=position.batch_id + 1, next_offsets=starts, rows=0)
        return cut.starts


def move_past_deleted(database: PipelineDatabase, pipeline: str) -> Mapping[tuple[str, int], int]:
    """Go on where the log starts in partitions whose next offsets are deleted; how many offsets are lost in each."""
    with _held(database, pipeline) as (connection, position):
        logs = load_logs(connection, sorted(set(position.topics.values())))
        moved, lost = {}, {}
        for log in logs:
            at = position.next_offsets.get((log.topic_id, log.partition), log.log_start)
            if at < log.log_start:
                moved[log.topic_id, log.partition] = log.log_start
                lost[log.place] = log.log_start - at
        if moved:
            positions.commit(connection, pipeline, batch_id=position.batch_id + 1, next_offsets=moved, rows=0)
        return lost
