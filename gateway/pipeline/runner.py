"""The runner: position → cut → DataFrame → job → sinks, state and next position in one PostgreSQL transaction.

Nothing that happens before that transaction counts, so whatever is killed, and whenever: the next run begins with the
position that was committed last and does the batch again. A batch whose commit got through is never done again.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from gateway import failpoints
from gateway.domain.cuts import Cut, OffsetsUnavailable
from gateway.errors import PipelineError
from gateway.pipeline import positions
from gateway.pipeline.cuts import check_cut, fix_cut
from gateway.pipeline.database import Connection, DatabaseUnavailable
from gateway.pipeline.failures import JobFailed, describe, is_passing
from gateway.pipeline.job import Batch, Job, Run
from gateway.pipeline.reading import read_cut
from gateway.pipeline.session import database_of
from gateway.pipeline.staging import drop_abandoned, drop_staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchDone", "Mode", "Runner"]

log = structlog.get_logger()

POLL_SECONDS = 0.5
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0


class Mode(Enum):
    """How long a runner runs."""

    ONCE = "once"
    """At most one batch."""
    UNTIL_CAUGHT_UP = "until caught up"
    """Everything that was committed when it began."""
    CONTINUOUSLY = "continuously"
    """Until it is stopped; a database that is away is waited for."""


@dataclass(frozen=True)
class BatchDone:
    """A batch that was committed."""

    pipeline: str
    batch_id: int
    offsets: int
    """How many offsets of the topics it covered."""
    rows: int
    """How many rows the sinks wrote or changed."""
    seconds: float
    behind: int
    """How many committed offsets are left, as of when the batch was cut."""


class Runner:
    """Runs a job as the pipeline `name`. Only one runner of a pipeline can commit; a second one is told so."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        *,
        name: str | None = None,
        on_batch: Callable[[BatchDone], None] | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._job = job
        self._run = Run(name or job.name, spark, database_of(spark))
        self._on_batch = on_batch
        self._poll_seconds = poll_seconds
        self._stopping = threading.Event()
        self._lock = positions.RunnerLock(self._run.database, self.pipeline)
        self._is_prepared = False

    @property
    def pipeline(self) -> str:
        return self._run.pipeline

    def stop(self) -> None:
        """End after the batch that is at work. May be called from a signal handler."""
        self._stopping.set()

    def run(self, mode: Mode = Mode.UNTIL_CAUGHT_UP) -> list[BatchDone]:
        """Run; the batches that were committed (of a continuous run, the last ones only)."""
        done: list[BatchDone] = []
        goal: Cut | None = None
        pause = FIRST_PAUSE_SECONDS
        try:
            while not self._stopping.is_set():
                try:
                    self._prepare()
                    if goal is None and mode is Mode.UNTIL_CAUGHT_UP:
                        goal = self._next_cut()[2]
                    batch = self._run_batch(until=goal)
                except Exception as error:
                    if mode is not Mode.CONTINUOUSLY or not is_passing(error, self._run.database):
                        raise self._note(error) from error
                    log.warning("pipeline waits for the database", pipeline=self.pipeline, reason=describe(error))
                    self._is_prepared = False
                    self._stopping.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                    continue
                pause = FIRST_PAUSE_SECONDS
                if batch is not None:
                    done = [*done[-999:], batch]
                if mode is Mode.ONCE or (batch is None and mode is Mode.UNTIL_CAUGHT_UP):
                    break
                if batch is None:
                    self._stopping.wait(self._poll_seconds)
        finally:
            self._lock.release()
            self._is_prepared = False
        return done

    def behind(self) -> int:
        """How many committed offsets there are to read."""
        self._prepare()
        return self._next_cut()[2].size

    def _prepare(self) -> None:
        """Once per run, and again when the database was lost: targets are checked, left-overs cleared away."""
        self._lock.hold()
        if self._is_prepared:
            return
        with self._transaction() as connection:
            positions.begin(connection, self.pipeline)
            positions.start_at(connection, self.pipeline, list(self._job.topics), self._job.start)
            for output, sink in self._job.outputs.items():
                sink.prepare(self._run, output, connection)
            if dropped := drop_staging(connection, self.pipeline):
                log.info("pipeline cleared away what a killed run left", pipeline=self.pipeline, tables=len(dropped))
        with self._run.database.connect() as connection:
            drop_abandoned(connection)
        self._is_prepared = True
        failpoints.reach(failpoints.PIPELINE_PREPARED)

    def _next_cut(self) -> tuple[int, Cut, Cut]:
        """The next batch's id and cut, and the cut of all that could be read by now."""
        topics = list(self._job.topics)
        with self._run.database.connect() as connection:
            position = positions.load_position(connection, self.pipeline)
            assert position is not None
            start = {topic: at for topic, at in position.by_name.items() if topic in topics}
            try:
                cut = fix_cut(connection, topics, start=start, max_rows=self._job.max_rows)
                return position.batch_id + 1, cut, fix_cut(connection, topics, start=start)
            except OffsetsUnavailable as lost:
                raise OffsetsUnavailable(
                    f"Pipeline {self.pipeline} cannot go on without losing records. {lost} To do so: "
                    f"`tablewire pipeline reset {self.pipeline} --past-deleted`, which keeps results and state."
                ) from None

    def _run_batch(self, until: Cut | None) -> BatchDone | None:
        """The next batch, committed; None if there is nothing to read."""
        began = time.monotonic()
        batch_id, cut, readable = self._next_cut()
        if cut.is_empty or (until is not None and _has_reached(cut, until)):
            return None
        batch = Batch(self._run, batch_id, cut, secrets.token_hex(4))
        failpoints.reach(failpoints.PIPELINE_CUT)
        try:
            staged = self._stage(batch)
            rows = self._commit(batch, staged)
        finally:
            self._clear_away(batch)
        done = BatchDone(
            self.pipeline, batch_id, cut.size, rows, round(time.monotonic() - began, 3), readable.size - cut.size
        )
        log.info(
            "batch committed",
            pipeline=done.pipeline,
            batch=done.batch_id,
            offsets=done.offsets,
            rows=done.rows,
            seconds=done.seconds,
            behind=done.behind,
        )
        if self._on_batch is not None:
            self._on_batch(done)
        return done

    def _stage(self, batch: Batch) -> dict[str, Any]:
        records = read_cut(batch.spark, batch.cut, columns=self._job.columns)
        made = self._job.transform(records, batch)
        outputs = self._by_output(made)
        staged = {}
        for name, rows in outputs.items():
            staged[name] = self._job.outputs[name].stage(batch, name, rows)
            failpoints.reach(failpoints.PIPELINE_STAGED)
        failpoints.reach(failpoints.PIPELINE_STAGED_ALL)
        return staged

    def _by_output(self, made: DataFrame | Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
        names = list(self._job.outputs)
        if isinstance(made, Mapping):
            if set(made) != set(names):
                raise PipelineError(
                    f"Job {self._job.name} has the outputs {', '.join(names)} and made {', '.join(made) or 'none'}."
                )
            return made
        if len(names) != 1:
            raise PipelineError(
                f"Job {self._job.name} has the outputs {', '.join(names)}: its function returns a mapping of them."
            )
        return {names[0]: made}

    def _commit(self, batch: Batch, staged: Mapping[str, Any]) -> int:
        """The one transaction that makes the batch true."""
        rows = 0
        with self._transaction() as connection:
            now = positions.begin(connection, self.pipeline)
            positions.require_unmoved(now, batch.id, batch.cut)
            failpoints.reach(failpoints.PIPELINE_HELD)
            # Retention may have passed by while the executors read: then they did not read everything.
            check_cut(connection, batch.cut)
            for name, waiting in staged.items():
                rows += self._job.outputs[name].commit(batch, connection, waiting)
                failpoints.reach(failpoints.PIPELINE_MERGED)
            positions.commit(
                connection,
                self.pipeline,
                batch_id=batch.id,
                next_offsets=batch.cut.positions,
                rows=batch.cut.size,
            )
            failpoints.reach(failpoints.PIPELINE_WRITTEN)
        failpoints.reach(failpoints.PIPELINE_COMMITTED)
        return rows

    def _clear_away(self, batch: Batch) -> None:
        """What was staged has served its purpose. If that fails, the next start does it."""
        try:
            with self._run.database.connect() as connection:
                drop_staging(connection, self.pipeline, attempt=batch.attempt)
        except (PipelineError, psycopg.Error) as failed:
            log.warning("pipeline left its staging tables", pipeline=self.pipeline, reason=describe(failed))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction that is committed at the end of the block, and not by anybody else's settings."""
        with self._run.database.connect() as connection, connection.transaction():
            yield connection

    def _note(self, error: Exception) -> PipelineError:
        """What to tell of a failure; noted in kafka.pipelines too, where the database can be reached."""
        if isinstance(error, PipelineError):
            told = error
        elif is_passing(error, self._run.database):
            if not isinstance(error, psycopg.Error):
                log.warning("pipeline's batch failed", pipeline=self.pipeline, exc_info=error)
            told = DatabaseUnavailable(
                f"The database was lost or busy: {describe(error)}. Nothing was written by halves; run the pipeline "
                "again."
            )
        else:
            log.error("pipeline's batch failed", pipeline=self.pipeline, exc_info=error)
            told = JobFailed(
                f"Pipeline {self.pipeline}: job {self._job.name} failed with {describe(error)}. Nothing of the batch "
                "was written; mend what is wrong and run it again, it goes on with the same records."
            )
        try:
            with self._run.database.connect() as connection:
                positions.record_error(connection, self.pipeline, str(told))
        except (PipelineError, psycopg.Error):
            log.warning("the pipeline's error could not be noted in the database", pipeline=self.pipeline)
        return told


def _has_reached(cut: Cut, until: Cut) -> bool:
    """Whether the batch would start where the run was to end, or beyond."""
    ends = until.ends
    return all(one.start >= ends.get(one.place, one.start) for one in cut.ranges)
