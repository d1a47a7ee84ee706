"""Spark behind a pooler that gives a session's connection to others after each transaction."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from gateway.config import Settings
from gateway.domain.state import Outcome
from gateway.pipeline import session, state_frames
from gateway.pipeline.database import PipelineDatabase
from gateway.pipeline.job import Job
from gateway.pipeline.runner import Runner
from gateway.pipeline.sinks import AppendToTable, output_id
from gateway.pipeline.source import source_of
from gateway.pipeline.state import State
from tests.support.postgres_server import Missing, running_pgbouncer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 40


def test_without_prepared_statements_no_driver_prepares(pipeline_database_url: str) -> None:
    pooled = PipelineDatabase.from_settings(Settings(database_url=pipeline_database_url, prepared_statements=False))
    assert pooled.jdbc_properties["prepareThreshold"] == "0"
    with pooled.connect() as connection:
        assert connection.prepare_threshold is None
    usual = PipelineDatabase.from_settings(Settings(database_url=pipeline_database_url))
    assert "prepareThreshold" not in usual.jdbc_properties


def test_pipelines_run_through_pgbouncers_transaction_pooling(
    spark: SparkSession,
    pipeline_database_url: str,
    connection: psycopg.Connection[Any],
    new_topic: Any,
    produce: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, table = new_topic(2), f"pooled_{uuid4().hex[:12]}"
    produce(topic, [b"%d" % number for number in range(RECORDS)])
    connection.execute(f"CREATE TABLE {table} (output_id text PRIMARY KEY, value text)".encode())
    connection.execute("CREATE TABLE kafka_staging.state_left_by_a_killed_driver (key bytea)")
    state = State.create(connection, table)

    def copy(records: DataFrame, _: object) -> DataFrame:
        return records.select(output_id().alias("output_id"), records.value.cast("string").alias("value"))

    with ExitStack() as stack:
        try:
            pooled_url = stack.enter_context(running_pgbouncer(pipeline_database_url, server_connections=6))
        except Missing as missing:
            pytest.skip(str(missing))
        stack.callback(spark.dataSource.register, source_of(session.database_of(spark)))
        pooled = PipelineDatabase.from_settings(Settings(database_url=pooled_url, prepared_statements=False))
        monkeypatch.setitem(session._databases, spark.sparkContext.applicationId, pooled)
        job = Job("copy", [topic], copy, AppendToTable(table), max_rows=RECORDS // 2)
        assert [batch.rows for batch in Runner(spark, job, name=table).run()] == [RECORDS // 2] * 2
        # Enough batches of rows for the driver to prepare their INSERT, if it may.
        monkeypatch.setattr(state_frames, "BATCH_ROWS", 50)
        puts = spark.range(2_000).selectExpr("CAST(STRING(id) AS BINARY) AS key", "X'76' AS value", "id AS version")
        assert state.put_all(puts, version="version") == {Outcome.APPLIED: 2_000}
        spark.dataSource.register(source_of(pooled))
        assert spark.read.format("tablewire").option("topics", topic).load().count() == RECORDS
    assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (RECORDS,)
    left = "SELECT to_regclass('kafka_staging.state_left_by_a_killed_driver')"
    assert connection.execute(left).fetchone() == (None,)
