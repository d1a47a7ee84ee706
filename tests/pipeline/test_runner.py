"""The runner: batches that are committed once, in order, with their positions; and what stops it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from gateway.errors import PipelineError
from gateway.pipeline import positions, resets
from gateway.pipeline.database import Connection, PipelineDatabase
from gateway.pipeline.job import Batch, Job, Run
from gateway.pipeline.positions import RunnerLock, Superseded
from gateway.pipeline.runner import BatchDone, Mode, Runner
from gateway.pipeline.sinks import AppendToTable, output_id
from gateway.pipeline.staging import Staged
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFINITION = 'CREATE TABLE {} (output_id text PRIMARY KEY, partition integer, "offset" bigint, value text)'


def copy_rows(records: DataFrame, _: Batch) -> DataFrame:
    return records.select(
        output_id().alias("output_id"), "partition", "offset", records.value.cast("string").alias("value")
    )


@dataclass
class Pipeline:
    """A pipeline of the test's own that copies a topic into a table."""

    spark: SparkSession
    connection: psycopg.Connection[Any]
    topic: str
    name: str = field(default_factory=lambda: f"runner-{uuid4().hex[:12]}")
    table: str = field(default_factory=lambda: f"copied_{uuid4().hex[:12]}")

    def __post_init__(self) -> None:
        self.connection.execute(DEFINITION.format(self.table).encode())

    @property
    def job(self) -> Job:
        return Job("copy", [self.topic], copy_rows, AppendToTable(self.table), max_rows=5)

    @property
    def database(self) -> PipelineDatabase:
        return PipelineDatabase(self.connection.info.dsn + f" password={self.connection.info.password}")

    def runner(self, job: Job | None = None, **options: Any) -> Runner:
        return Runner(self.spark, job or self.job, name=self.name, **options)

    def run(self, mode: Mode = Mode.UNTIL_CAUGHT_UP, job: Job | None = None) -> list[BatchDone]:
        return self.runner(job).run(mode)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.query(f'SELECT partition, "offset", value FROM {self.table} ORDER BY 1, 2')

    def values(self) -> list[str]:
        return sorted(value for _, _, value in self.rows())

    def query(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(text.encode(), parameters).fetchall()

    @property
    def batch_id(self) -> int:
        ((found,),) = self.query("SELECT coalesce(max(batch_id), 0) FROM kafka.pipelines WHERE name = %s", self.name)
        return int(found)

    @property
    def last_error(self) -> str | None:
        ((found,),) = self.query("SELECT last_error FROM kafka.pipelines WHERE name = %s", self.name)
        return None if found is None else str(found)

    def staging(self) -> list[str]:
        found = self.query(
            "SELECT relname FROM pg_class WHERE relnamespace = 'kafka_staging'::regnamespace "
            "AND relkind = 'r' AND obj_description(oid) LIKE %s",
            f"%pipeline {self.name},%",
        )
        return [name for (name,) in found]


@pytest.fixture
def pipeline(spark: SparkSession, connection: psycopg.Connection[Any], new_topic: Any) -> Pipeline:
    return Pipeline(spark, connection, new_topic(2))


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%03d" % number for number in range(start, start + count)]


def test_a_run_reads_all_there_is_in_batches_of_the_size_given(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(8))
    produce(pipeline.topic, numbered(3, start=8), partition=1)
    done = pipeline.run()
    assert [(batch.batch_id, batch.offsets, batch.rows, batch.behind) for batch in done] == [
        (1, 5, 5, 6),
        (2, 5, 5, 1),
        (3, 1, 1, 0),
    ]
    assert pipeline.values() == [value.decode() for value in numbered(11)]
    lag = pipeline.query(
        "SELECT partition, committed_offset, stable_lag, state FROM kafka.consumer_lag WHERE group_id = %s ORDER BY 1",
        f"pipeline:{pipeline.name}",
    )
    assert lag == [(0, 8, 0, "Pipeline"), (1, 3, 0, "Pipeline")]
    assert pipeline.run() == []
    assert pipeline.staging() == []


def test_once_is_one_batch(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(12))
    assert [batch.batch_id for batch in pipeline.run(Mode.ONCE)] == [1]
    assert len(pipeline.rows()) == 5
    assert [batch.batch_id for batch in pipeline.run(Mode.ONCE)] == [2]
    assert pipeline.values() == [value.decode() for value in numbered(10)]


def test_a_continuous_run_goes_on_until_it_is_stopped(pipeline: Pipeline, produce: Any) -> None:
    runner = pipeline.runner(poll_seconds=0.05)
    running = threading.Thread(target=runner.run, args=(Mode.CONTINUOUSLY,))
    running.start()
    try:
        for round_ in range(3):
            produce(pipeline.topic, numbered(4, start=4 * round_))
            wait_for(lambda: len(pipeline.rows()), wanted=4 * round_ + 4, timeout_s=60)
    finally:
        runner.stop()
        running.join(60)
    assert not running.is_alive()
    assert pipeline.values() == [value.decode() for value in numbered(12)]


def test_a_run_that_begins_at_the_end_misses_nothing_that_comes_later(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(3))
    job = replace(pipeline.job, start="latest")
    assert pipeline.run(job=job) == []
    produce(pipeline.topic, numbered(2, start=3))
    pipeline.run(job=job)
    assert pipeline.values() == ["003", "004"]


def test_partitions_and_topics_that_are_new_are_read_from_their_start(
    pipeline: Pipeline, produce: Any, bootstrap: str, new_topic: Any
) -> None:
    produce(pipeline.topic, numbered(2))
    pipeline.run()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(pipeline.topic, 3)])[pipeline.topic].result(30)
    fresh = Producer({"bootstrap.servers": bootstrap})  # the shared one does not know the partition yet
    for value in numbered(2, start=2):
        fresh.produce(pipeline.topic, value, partition=2)
    assert fresh.flush(30) == 0
    other = new_topic()
    produce(other, numbered(2, start=4))
    pipeline.run(job=replace(pipeline.job, topics=[pipeline.topic, other]))
    assert pipeline.values() == [value.decode() for value in numbered(6)]


def test_a_job_that_raises_leaves_nothing_and_the_next_run_goes_on(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(8))
    pipeline.run(Mode.ONCE)

    def broken(records: DataFrame, _: Batch) -> DataFrame:
        raise KeyError("no such column")

    with pytest.raises(PipelineError, match=r"job copy failed with KeyError: 'no such column'.*same records"):
        pipeline.run(job=replace(pipeline.job, transform=broken))
    assert pipeline.last_error is not None
    assert "no such column" in pipeline.last_error
    (state,) = pipeline.query(
        "SELECT DISTINCT state FROM kafka.consumer_lag WHERE group_id = %s", f"pipeline:{pipeline.name}"
    )
    assert state == ("Failed",)
    assert len(pipeline.rows()) == 5
    assert pipeline.staging() == []
    pipeline.run()
    assert pipeline.values() == [value.decode() for value in numbered(8)]


def test_a_job_that_raises_on_an_executor_is_told_by_its_own_words(pipeline: Pipeline, produce: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    produce(pipeline.topic, numbered(8))

    def broken(records: DataFrame, batch: Batch) -> DataFrame:
        refused = F.when(F.col("offset") == 7, F.raise_error(F.lit("seven is refused"))).otherwise(F.col("value"))
        return copy_rows(records.withColumn("value", refused.cast("binary")), batch)

    pipeline.run(Mode.ONCE, job=replace(pipeline.job, transform=broken))
    with pytest.raises(PipelineError, match="seven is refused"):
        pipeline.run(job=replace(pipeline.job, transform=broken))
    assert len(pipeline.rows()) == 5
    assert pipeline.staging() == []
    pipeline.run()
    assert pipeline.values() == [value.decode() for value in numbered(8)]


def test_an_unknown_topic_is_refused_and_the_next_run_goes_on(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(7))
    pipeline.run(Mode.ONCE)
    with pytest.raises(PipelineError, match=r"There is no topic no\.such"):
        pipeline.run(job=replace(pipeline.job, topics=[pipeline.topic, "no.such"]))
    assert "no.such" in (pipeline.last_error or "")
    assert (pipeline.batch_id, len(pipeline.rows())) == (1, 5)
    pipeline.run()
    assert pipeline.values() == [value.decode() for value in numbered(7)]
    states = "SELECT DISTINCT state FROM kafka.consumer_lag WHERE group_id = %s"
    assert pipeline.query(states, f"pipeline:{pipeline.name}") == [("Pipeline",)]


def test_a_target_that_is_gone_or_of_another_shape_is_refused_and_the_next_run_goes_on(
    pipeline: Pipeline, produce: Any
) -> None:
    produce(pipeline.topic, numbered(7))
    pipeline.run(Mode.ONCE)
    away, back = f"ALTER TABLE {pipeline.table} RENAME TO away_", f"ALTER TABLE away_ RENAME TO {pipeline.table}"
    other, same = (f"ALTER TABLE {pipeline.table} RENAME {names}" for names in ("value TO other_", "other_ TO value"))

    def change(statement: str) -> None:
        pipeline.connection.execute(statement.encode())

    for spoil, mend, said in (
        (away, back, f"There is no table {pipeline.table}"),
        (other, same, "has no column value, which the job writes as string"),
    ):
        change(spoil)
        with pytest.raises(PipelineError, match=said):
            pipeline.run()
        change(mend)
    for spoil, mend, said in ((away, back, "There is no table"), (other, same, "UndefinedColumn")):
        meanwhile = partial(change, spoil)
        with pytest.raises(PipelineError, match=said):
            pipeline.run(job=replace(pipeline.job, sinks=Interrupted(pipeline.table, meanwhile=meanwhile)))
        change(mend)
    assert (pipeline.batch_id, len(pipeline.rows()), pipeline.staging()) == (1, 5, [])
    pipeline.run()
    assert pipeline.values() == [value.decode() for value in numbered(7)]


def test_records_that_retention_took_are_not_skipped_silently(pipeline: Pipeline, produce: Any, bootstrap: str) -> None:
    produce(pipeline.topic, numbered(12))
    pipeline.run(Mode.ONCE)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(pipeline.topic, 0, 9)
    admin.delete_records([place])[place].result(30)
    with pytest.raises(PipelineError, match=r"cannot go on without losing .*Offset 5 .* starts at 9.*--past-deleted"):
        pipeline.run()
    assert len(pipeline.rows()) == 5

    assert resets.move_past_deleted(pipeline.database, pipeline.name) == {(pipeline.topic, 0): 4}
    pipeline.run()
    assert pipeline.values() == [value.decode() for value in [*numbered(5), *numbered(3, start=9)]]
    assert resets.move_past_deleted(pipeline.database, pipeline.name) == {}


def test_the_next_runner_may_come_at_once(pipeline: Any) -> None:
    """It need not wait for the server to hear that the last one's connection is closed."""
    for _ in range(20):
        lock = RunnerLock(pipeline.database, pipeline.name)
        lock.hold()
        lock.release()


def test_a_second_runner_is_told_that_there_is_a_first(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(2))
    lock = RunnerLock(pipeline.database, pipeline.name)
    lock.hold()
    with pytest.raises(Superseded, match="has a runner at work"):
        pipeline.run()
    with pytest.raises(Superseded, match="has a runner at work"):
        resets.start_over(pipeline.database, pipeline.name)
    lock.release()
    assert len(pipeline.run()) == 1


@dataclass(frozen=True)
class Interrupted(AppendToTable):
    """A sink that lets something happen between staging and commit."""

    meanwhile: Callable[[], Any] = lambda: None

    def stage(self, batch: Batch, output: str, rows: DataFrame) -> Staged:
        staged = super().stage(batch, output, rows)
        self.meanwhile()
        return staged


def moved_by_another(pipeline: Pipeline) -> None:
    """What a runner that has lost sight of this one does: it commits the same batch."""
    with pipeline.database.connect() as connection, connection.transaction():
        now = positions.begin(connection, pipeline.name)
        place = next(iter(now.next_offsets))
        positions.commit(connection, pipeline.name, batch_id=now.batch_id + 1, next_offsets={place: 2}, rows=2)


def gone_back_and_done_again(pipeline: Pipeline) -> None:
    """The batch's id is the same afterwards, but not where the pipeline stands."""
    with pipeline.database.connect() as connection, connection.transaction():
        positions.begin(connection, pipeline.name)
        connection.execute("SELECT kafka.pipeline_go_back(%s, 0)", (pipeline.name,))
        positions.start_at(connection, pipeline.name, [pipeline.topic], "earliest")
        now = positions.begin(connection, pipeline.name)
        place = min(now.next_offsets)
        positions.commit(connection, pipeline.name, batch_id=1, next_offsets={place: 1}, rows=1)


@pytest.mark.parametrize("meanwhile", [moved_by_another, gone_back_and_done_again])
def test_a_batch_is_not_committed_by_two(
    pipeline: Pipeline, produce: Any, meanwhile: Callable[[Pipeline], None]
) -> None:
    produce(pipeline.topic, numbered(9))
    pipeline.run(Mode.ONCE)
    sink = Interrupted(pipeline.table, meanwhile=lambda: meanwhile(pipeline))
    before = pipeline.rows()
    with pytest.raises(Superseded, match="was moved while batch 2 was worked on"):
        pipeline.run(Mode.ONCE, job=replace(pipeline.job, sinks=sink))
    assert pipeline.rows() == before


def test_staging_that_another_runner_cleared_away_is_noticed(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(3))

    def clear() -> None:
        for table in pipeline.staging():
            pipeline.connection.execute(f"DROP TABLE kafka_staging.{table}".encode())

    sink = Interrupted(pipeline.table, meanwhile=clear)
    with pytest.raises(PipelineError, match="is gone: another runner"):
        pipeline.run(Mode.ONCE, job=replace(pipeline.job, sinks=sink))
    assert pipeline.batch_id == 0
    assert pipeline.rows() == []


def test_rows_that_the_database_lost_are_noticed(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(3))

    def lose() -> None:
        for table in pipeline.staging():
            pipeline.connection.execute(f'DELETE FROM kafka_staging.{table} WHERE "offset" = 1'.encode())

    sink = Interrupted(pipeline.table, meanwhile=lose)
    with pytest.raises(PipelineError, match=r"wrote 3 rows .* and 2 are there"):
        pipeline.run(Mode.ONCE, job=replace(pipeline.job, sinks=sink))
    assert pipeline.batch_id == 0


def test_records_that_go_while_they_are_read_are_noticed(pipeline: Pipeline, produce: Any, bootstrap: str) -> None:
    produce(pipeline.topic, numbered(3))
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def expire() -> None:
        place = TopicPartition(pipeline.topic, 0, 2)
        admin.delete_records([place])[place].result(30)

    sink = Interrupted(pipeline.table, meanwhile=expire)
    with pytest.raises(PipelineError, match="deleted by retention"):
        pipeline.run(Mode.ONCE, job=replace(pipeline.job, sinks=sink))
    assert pipeline.rows() == []


@dataclass(frozen=True)
class OwnSink:
    """A sink of one's own, as docs/pipeline.md shows it: it counts rows in a table of its own."""

    table: str

    def prepare(self, run: Run, output: str, connection: Connection) -> None:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {self.table} (batch_id bigint, records bigint)".encode())

    def stage(self, batch: Batch, output: str, rows: DataFrame) -> int:
        return rows.count()

    def commit(self, batch: Batch, connection: Connection, staged: int) -> int:
        connection.execute(f"INSERT INTO {self.table} VALUES (%s, %s)".encode(), (batch.id, staged))
        return staged


def test_a_job_with_several_outputs_commits_them_together(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(7))
    own = f"own_{uuid4().hex[:12]}"

    def both(records: DataFrame, batch: Batch) -> Mapping[str, DataFrame]:
        return {"rows": copy_rows(records, batch), "counts": records}

    sinks = {"rows": AppendToTable(pipeline.table), "counts": OwnSink(own)}
    job = replace(pipeline.job, transform=both, sinks=sinks)
    pipeline.run(job=job)
    assert pipeline.query(f"SELECT * FROM {own} ORDER BY 1") == [(1, 5), (2, 2)]
    assert len(pipeline.rows()) == 7

    produce(pipeline.topic, numbered(1))
    with pytest.raises(PipelineError, match="has the outputs rows, counts and made rows"):
        pipeline.run(job=replace(job, transform=lambda records, batch: {"rows": copy_rows(records, batch)}))
    with pytest.raises(PipelineError, match="its function returns a mapping"):
        pipeline.run(job=replace(job, transform=copy_rows))


def test_a_pipeline_is_moved_by_hand(pipeline: Pipeline, produce: Any) -> None:
    produce(pipeline.topic, numbered(8))
    pipeline.run()
    resets.return_to(pipeline.database, pipeline.name, 1)
    assert pipeline.batch_id == 1
    assert [batch.batch_id for batch in pipeline.run()] == [2]
    assert pipeline.values() == [value.decode() for value in numbered(8)]

    produce(pipeline.topic, numbered(2, start=8))
    assert resets.move(pipeline.database, pipeline.name, "latest")[pipeline.topic, 0] == 10
    assert pipeline.run() == []
    assert len(pipeline.rows()) == 8

    resets.start_over(pipeline.database, pipeline.name)
    assert pipeline.batch_id == 0
    pipeline.run()
    assert pipeline.values() == [value.decode() for value in numbered(10)]
    with pytest.raises(PipelineError, match="There is no pipeline nobody"):
        resets.start_over(pipeline.database, "nobody")
