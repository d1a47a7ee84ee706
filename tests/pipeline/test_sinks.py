"""Sinks: what they make of rows that come twice, late or in another shape; and what they refuse before any work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from gateway.domain.cuts import Cut
from gateway.errors import PipelineError
from gateway.pipeline import resets
from gateway.pipeline.database import PipelineDatabase
from gateway.pipeline.job import Batch, Job, Run, Sink
from gateway.pipeline.jobs import copy_to_parquet
from gateway.pipeline.positions import begin, commit
from gateway.pipeline.runner import Mode, Runner
from gateway.pipeline.session import database_of
from gateway.pipeline.sinks import AddToTable, AppendToTable, PutState, UpsertTable, WriteTopic, output_id, read_files
from gateway.pipeline.staging import Staged, drop_staging
from gateway.pipeline.targets import TargetColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Writer:
    """Puts a DataFrame through a sink as the runner does, one batch after the other."""

    spark: SparkSession
    name: str
    number: int = 0

    @property
    def database(self) -> PipelineDatabase:
        return database_of(self.spark)

    def write(self, sink: Sink, rows: DataFrame | list[Any], schema: str | None = None, *, twice: bool = False) -> int:
        """`twice`: every task's rows were written by two attempts, as when an executor dies after its commit."""
        frame = self.spark.createDataFrame(rows, schema) if isinstance(rows, list) else rows
        run = Run(self.name, self.spark, self.database)
        with self.database.connect() as connection, connection.transaction():
            last = begin(connection, self.name).batch_id
            sink.prepare(run, "rows", connection)
        self.number += 1
        batch = Batch(run, last + 1, Cut(()), f"{self.number:08x}")
        staged = sink.stage(batch, "rows", frame)
        if twice:
            table = staged if isinstance(staged, Staged) else staged[1]
            columns = ", ".join(f'"{one}"' for one in (*table.columns, "tablewire_part"))
            with self.database.connect() as connection:
                for (part,) in connection.execute(
                    f"SELECT DISTINCT tablewire_part FROM {table.name}".encode()
                ).fetchall():
                    connection.execute(
                        f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {table.name} "
                        f"WHERE tablewire_part = {part}".encode()
                    )
        try:
            with self.database.connect() as connection, connection.transaction():
                begin(connection, self.name)
                written = sink.commit(batch, connection, staged)
                commit(connection, self.name, batch_id=batch.id, next_offsets={}, rows=0)
        finally:
            with self.database.connect() as connection:
                drop_staging(connection, self.name)
        return written


@pytest.fixture
def writer(spark: SparkSession) -> Writer:
    return Writer(spark, f"sinks-{uuid4().hex[:12]}")


@pytest.fixture
def new_table(connection: psycopg.Connection[Any]) -> Callable[[str], str]:
    def create(columns: str) -> str:
        table = f"target_{uuid4().hex[:12]}"
        connection.execute(f"CREATE TABLE {table} ({columns})".encode())
        return table

    return create


@pytest.fixture
def read(connection: psycopg.Connection[Any]) -> Callable[..., list[Any]]:
    def run(query: str, *parameters: object) -> list[Any]:
        return connection.execute(query.encode(), parameters).fetchall()

    return run


ROWS = "k string, v int, n string"


def test_upsert_keeps_the_highest_version_whatever_comes_in_whichever_order(
    writer: Writer, new_table: Any, read: Any
) -> None:
    table = new_table("k text PRIMARY KEY, v integer NOT NULL, n text")
    sink = UpsertTable(table, key=("k",), version=("v",))
    assert writer.write(sink, [("a", 1, "one"), ("a", 3, "three"), ("b", 1, "one"), ("a", 2, "two")], ROWS) == 2
    assert read(f"SELECT * FROM {table} ORDER BY 1") == [("a", 3, "three"), ("b", 1, "one")]
    assert writer.write(sink, [("a", 2, "late"), ("b", 2, "two"), ("c", 0, None)], ROWS, twice=True) == 2
    wanted = [("a", 3, "three"), ("b", 2, "two"), ("c", 0, None)]
    assert read(f"SELECT * FROM {table} ORDER BY 1") == wanted
    assert writer.write(sink, [("a", 3, "three"), ("b", 2, "two"), ("c", 0, None)], ROWS) == 0
    assert read(f"SELECT * FROM {table} ORDER BY 1") == wanted


def test_an_appended_row_that_comes_again_changes_nothing(writer: Writer, new_table: Any, read: Any) -> None:
    table = new_table("output_id text PRIMARY KEY, k text, v integer, n text")
    sink = AppendToTable(table)
    frame = writer.spark.createDataFrame([("a", 1, "x"), ("a", 2, "y"), ("b", 1, None)], ROWS)
    rows = frame.withColumn("output_id", output_id("k", "v"))
    assert writer.write(sink, rows, twice=True) == 3
    assert writer.write(sink, rows) == 0
    assert read(f"SELECT k, v, n FROM {table} ORDER BY 1, 2") == [("a", 1, "x"), ("a", 2, "y"), ("b", 1, None)]


def test_output_ids_differ_where_their_inputs_do(spark: SparkSession) -> None:
    rows = [("a", "bc"), ("ab", "c"), ("a", None), (None, "a"), ("", "abc"), ("-", None), ("1:a", "")]
    ids = [row[0] for row in spark.createDataFrame(rows, "x string, y string").select(output_id("x", "y")).collect()]
    assert len(set(ids)) == len(rows)
    assert all(len(one) == 64 for one in ids)


def test_a_task_that_ran_twice_is_added_once(writer: Writer, new_table: Any, read: Any) -> None:
    table = new_table("k text PRIMARY KEY, n bigint NOT NULL, total numeric(20, 2)")
    sink = AddToTable(table, key=("k",))
    rows = [("a", 1, 2), ("a", 2, 3), ("b", 5, None)]
    writer.write(sink, rows, "k string, n bigint, total bigint", twice=True)
    writer.write(sink, rows, "k string, n bigint, total bigint")
    assert read(f"SELECT k, n, total FROM {table} ORDER BY 1") == [("a", 6, 10), ("b", 10, 0)]


def test_text_becomes_what_the_column_is(writer: Writer, new_table: Any, read: Any) -> None:
    table = new_table(
        "output_id uuid PRIMARY KEY, j jsonb, t timestamptz, d date, b boolean, x bytea, f double precision, "
        "m numeric(10, 3), a text[]"
    )
    text = "52f3a2f4-77f4-4b0f-9a3c-3ab4bd1e1d24"
    frame = writer.spark.sql(
        f"SELECT '{text}' AS output_id, '{{\"x\": [1]}}' AS j, TIMESTAMP '2026-01-02 03:04:05Z' AS t, "
        "DATE '2026-01-02' AS d, true AS b, X'00FF' AS x, 1.5D AS f, CAST(2.125 AS DECIMAL(10, 3)) AS m, "
        "array('p', 'q') AS a"
    )
    nulls = writer.spark.sql(
        "SELECT '00000000-0000-0000-0000-000000000000' AS output_id, CAST(NULL AS STRING) AS j, "
        "CAST(NULL AS TIMESTAMP) AS t, CAST(NULL AS DATE) AS d, CAST(NULL AS BOOLEAN) AS b, CAST(NULL AS BINARY) AS x, "
        "CAST(NULL AS DOUBLE) AS f, CAST(NULL AS DECIMAL(10, 3)) AS m, CAST(NULL AS ARRAY<STRING>) AS a"
    )
    writer.write(AppendToTable(table), frame.union(nulls))
    found = read(f"SELECT output_id::text, j, extract(epoch FROM t)::int, d::text, b, x, f, m::text, a FROM {table}")
    assert sorted(found) == [
        ("00000000-0000-0000-0000-000000000000", *[None] * 8),
        (text, {"x": [1]}, 1767323045, "2026-01-02", True, b"\x00\xff", 1.5, "2.125", ["p", "q"]),
    ]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("k text PRIMARY KEY, v integer NOT NULL", "has no column n, which the job writes as string"),
        ("k text PRIMARY KEY, v integer NOT NULL, n bytea", "Column n .* is bytea, and the job writes string"),
        ("k text PRIMARY KEY, v smallint NOT NULL, n text", "Column v .* is smallint, and the job writes int"),
        ("k text, v integer NOT NULL, n text", "Column k .* may be null"),
        ("k text NOT NULL, v integer NOT NULL, n text", r"has no unique index on \(k\): CREATE UNIQUE INDEX"),
        ("k text PRIMARY KEY, v integer, n text", "Column v .* may be null"),
        ("k text PRIMARY KEY, n text", "has no column v"),
        ("k text PRIMARY KEY, v integer NOT NULL, n text, more text NOT NULL", "Column more .* without a default"),
        ("k text PRIMARY KEY, v integer NOT NULL, n text GENERATED ALWAYS AS ('x') STORED", "Column n .* is generated"),
    ],
)
def test_a_table_of_another_shape_is_refused_before_any_work(
    writer: Writer, new_table: Any, columns: str, reason: str
) -> None:
    sink = UpsertTable(new_table(columns), key=("k",), version=("v",))
    with pytest.raises(PipelineError, match=reason):
        writer.write(sink, [("a", 1, "x")], ROWS)
    with writer.database.connect() as connection:
        assert drop_staging(connection, writer.name) == []


def test_columns_with_a_default_need_not_be_written(writer: Writer, new_table: Any, read: Any) -> None:
    table = new_table(
        "id bigint GENERATED ALWAYS AS IDENTITY, k text PRIMARY KEY, v integer NOT NULL, n text, at timestamptz "
        "NOT NULL DEFAULT now(), twice integer GENERATED ALWAYS AS (v * 2) STORED"
    )
    writer.write(UpsertTable(table, key=("k",), version=("v",)), [("a", 4, "x")], ROWS)
    assert read(f"SELECT id, k, v, twice FROM {table}") == [(1, "a", 4, 8)]


def test_a_missing_table_is_refused_with_how_to_create_it(writer: Writer, new_table: Any) -> None:
    with pytest.raises(PipelineError, match=r"There is no table nowhere\.no: create it first: CREATE TABLE x"):
        writer.write(AppendToTable("nowhere.no", definition="CREATE TABLE x"), [("a", 1, "x")], ROWS)
    with pytest.raises(PipelineError, match="does not write column output_id"):
        writer.write(AppendToTable(new_table("output_id text PRIMARY KEY, n text")), [("a",)], "n string")


def test_a_strange_name_is_quoted(writer: Writer, connection: psycopg.Connection[Any], read: Any) -> None:
    table = f'Ta"ble {uuid4().hex[:8]}'.replace('"', '""')
    connection.execute(f'CREATE TABLE "{table}" ("Ke y" text PRIMARY KEY, "select" integer NOT NULL)'.encode())
    sink = UpsertTable(f'public."{table}"', key=("Ke y",), version=("select",))
    writer.write(sink, [("a", 1)], "`Ke y` string, `select` int")
    assert read(f'SELECT * FROM "{table}"') == [("a", 1)]


def test_state_is_put_and_deleted_and_a_conflict_is_told(writer: Writer, read: Any) -> None:
    sink = PutState(writer.name)
    query = "SELECT key, value, epoch, round FROM kafka.state WHERE namespace = %s ORDER BY 1"
    assert writer.write(sink, [("a", "1"), ("b", "1")], "key string, value string", twice=True) == 2
    assert writer.write(sink, [("a", None)], "key string, value string") == 1
    assert read(query, writer.name) == [(b"a", None, 0, 2), (b"b", b"1", 0, 1)]
    versioned = "key string, value string, epoch int, round bigint"
    assert writer.write(sink, [("a", "old", 0, 1), ("b", "new", 1, 0)], versioned) == 1
    with pytest.raises(PipelineError):
        writer.write(sink, [("b", "other", 1, 0)], versioned)
    with pytest.raises(PipelineError, match="value is missing"):
        writer.write(sink, [("b",)], "key string")
    assert read(query, writer.name) == [(b"a", None, 0, 2), (b"b", b"new", 1, 0)]
    with pytest.raises(PipelineError, match="pipeline"):
        Writer(writer.spark, f"{writer.name}-other").write(sink, [("a", "1")], "key string, value string")


def test_records_for_a_topic_are_written_once_and_a_refusal_leaves_none(
    writer: Writer, new_topic: Any, bootstrap: str, consume: Any, connection: psycopg.Connection[Any]
) -> None:
    topic = new_topic(2)
    sink = WriteTopic(topic, bootstrap=bootstrap)
    writer.write(
        sink, [("a", "1", 0), ("b", "2", 1), (None, "3", 0)], "key string, value string, partition int", twice=True
    )
    assert [(record.key, record.value) for record in consume(topic, 0)] == [(b"a", b"1"), (None, b"3")]
    assert [(record.key, record.value) for record in consume(topic, 1)] == [(b"b", b"2")]

    assert writer.write(sink, [], "value string") == 0
    with pytest.raises(PipelineError, match="neither key nor value"):
        writer.write(sink, [("x", "1"), (None, None)], "key string, value string")
    with pytest.raises(PipelineError, match="n is none of them"):
        writer.write(sink, [("a", 1, "x")], "key string, value int, n string")
    with pytest.raises(PipelineError, match=r"There is no topic no\.such"):
        writer.write(WriteTopic("no.such", bootstrap=bootstrap), [("1",)], "value string")
    with pytest.raises(PipelineError, match=r"cannot be written through the gateway at 127\.0\.0\.1:1:"):
        writer.write(WriteTopic(topic, bootstrap="127.0.0.1:1"), [("1",)], "value string")
    assert len(consume(topic, 0)) == 2

    # The producer of the next batch aborts what the refused ones left open, so that readers get on.
    writer.write(sink, [("c", "4", 0)], "key string, value string, partition int")
    assert [record.value for record in consume(topic, 0)] == [b"1", b"3", b"4"]
    still_open = "SELECT count(*) FROM kafka.open_transactions WHERE transactional_id LIKE %s"
    assert connection.execute(still_open, [f"tablewire.pipeline.{writer.name}.%"]).fetchall() == [(0,)]


def test_files_of_a_run_that_was_killed_are_not_seen_and_removed(
    spark: SparkSession, new_topic: Any, produce: Any, tmp_path: Path, writer: Writer
) -> None:
    topic, path = new_topic(), tmp_path / "out"
    job = copy_to_parquet.make_job([topic], path=str(path), files_per_batch=1)
    with pytest.raises(PipelineError, match="has committed no files yet"):
        read_files(spark, writer.name)
    produce(topic, [b"1", b"2"])
    Runner(spark, job, name=writer.name).run(Mode.ONCE)
    (kept,) = path.iterdir()
    orphan = kept.with_name(f"{kept.name[:-10]}2-00000000")
    orphan.mkdir()
    (orphan / "part-0.parquet").write_bytes(b"half written")
    foreign = path / "batch-of-somebody-else"
    foreign.mkdir()

    produce(topic, [b"3"])
    Runner(spark, job, name=writer.name).run(Mode.ONCE)
    assert sorted(bytes(row.value) for row in read_files(spark, writer.name).collect()) == [b"1", b"2", b"3"]
    assert not orphan.exists()
    assert kept.exists()
    assert foreign.exists()

    # A batch that is undone takes its files with it; done again, it brings new ones.
    resets.return_to(writer.database, writer.name, 1)
    assert sorted(bytes(row.value) for row in read_files(spark, writer.name).collect()) == [b"1", b"2"]
    produce(topic, [b"4"])
    Runner(spark, job, name=writer.name).run(Mode.ONCE)
    assert sorted(bytes(row.value) for row in read_files(spark, writer.name).collect()) == [b"1", b"2", b"3", b"4"]


def test_files_that_another_runner_removed_are_noticed(
    spark: SparkSession, new_topic: Any, produce: Any, tmp_path: Path, writer: Writer
) -> None:
    topic = new_topic()
    produce(topic, [b"1"])
    job = copy_to_parquet.make_job([topic], path=str(tmp_path))
    sink = job.outputs["rows"]

    @dataclass(frozen=True)
    class Cleared:
        def prepare(self, *given: Any) -> None:
            sink.prepare(*given)

        def stage(self, batch: Batch, output: str, rows: DataFrame) -> Any:
            staged = sink.stage(batch, output, rows)
            with writer.database.connect() as connection:
                sink.prepare(batch.run, output, connection)
            return staged

        def commit(self, *given: Any) -> int:
            return sink.commit(*given)

    with pytest.raises(PipelineError, match="is gone: another runner"):
        Runner(spark, Job("copy", [topic], job.transform, Cleared()), name=writer.name).run(Mode.ONCE)
    Runner(spark, job, name=writer.name).run(Mode.ONCE)
    assert [bytes(row.value) for row in read_files(spark, writer.name).collect()] == [b"1"]


@pytest.mark.parametrize(
    ("spark_type", "typname", "category", "fits"),
    [
        ("string", "varchar", "S", True),
        ("string", "jsonb", "U", True),
        ("string", "mood", "E", True),
        ("string", "bytea", "U", False),
        ("string", "int4", "N", False),
        ("decimal(10,2)", "numeric", "N", True),
        ("decimal(10,2)", "float8", "N", False),
        ("array<string>", "_text", "A", True),
        ("struct<a:int>", "jsonb", "U", False),
        ("bigint", "int4", "N", False),
        ("tinyint", "int2", "N", True),
        ("timestamp_ntz", "timestamptz", "D", False),
    ],
)
def test_which_type_of_spark_fits_which_of_postgresql(spark_type: str, typname: str, category: str, fits: bool) -> None:
    column = TargetColumn("c", typname, typname, category, is_not_null=False, is_required=False, is_writable=True)
    assert column.takes(spark_type) is fits
