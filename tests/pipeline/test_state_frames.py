"""Puts from DataFrames: executors stage them, one statement applies them."""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from gateway.domain.state import InvalidState, Outcome, StateConflict, Version
from gateway.pipeline.state import State, Stored, apply_staged
from gateway.pipeline.state_frames import staged_puts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def state(spark: SparkSession, connection: psycopg.Connection[Any]) -> State:
    return State.create(connection, uuid.uuid4().hex)


def staging_tables(connection: psycopg.Connection[Any]) -> list[tuple[str]]:
    found = connection.execute(
        "SELECT tablename FROM pg_tables WHERE tablename LIKE 'state\\_%' AND schemaname <> 'kafka'"
    )
    return found.fetchall()


def test_a_dataframe_is_put_once(spark: SparkSession, connection: psycopg.Connection[Any], state: State) -> None:
    rows = spark.range(1000).selectExpr(
        "CAST(CAST(id % 100 AS STRING) AS BINARY) AS key",
        "IF(id = 999, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS value",
        "1 AS epoch",
        "id AS round",
    )
    assert state.put_all(rows) == {Outcome.APPLIED: 1000}
    assert state.put_all(rows) == {Outcome.STALE: 900, Outcome.UNCHANGED: 100}
    assert state.entry(b"42") == Stored(Version(1, 942), b"942", is_deleted=False)
    assert state.entry(b"99") == Stored(Version(1, 999), None, is_deleted=True)
    assert staging_tables(connection) == []


def test_text_and_json_become_the_bytes_that_python_writes(
    spark: SparkSession, connection: psycopg.Connection[Any], state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The python3 on the PATH may be another one, without pyarrow.
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    written = State(connection, state.namespace, keys="text", values="json")
    written.put("é", {"b": [1, 2.5], "a": "é"}, 7)
    rows = spark.createDataFrame(
        [("é", '{ "a":"\\u00e9", "b": [1, 2.5] }', 7), ("null", "null", 7)], "key STRING, value STRING, offset BIGINT"
    )
    assert written.put_all(rows, version="offset") == {Outcome.UNCHANGED: 1, Outcome.APPLIED: 1}
    assert written.entry("null") == Stored(Version(0, 7), None, is_deleted=False)


def test_a_conflict_leaves_nothing_behind(
    spark: SparkSession, connection: psycopg.Connection[Any], state: State
) -> None:
    rows = spark.sql("SELECT X'6B' AS key, CAST(STRING(id) AS BINARY) AS value, 1 AS version FROM range(3)")
    with pytest.raises(StateConflict, match=r"version \(0, 1\) of key b'k' .*, and 2 more"):
        state.put_all(rows, version="version")
    assert state.entry(b"k") is None
    assert staging_tables(connection) == []


def test_a_dataframe_in_the_callers_transaction(
    spark: SparkSession, connection: psycopg.Connection[Any], state: State
) -> None:
    """It is staged before and dropped after: a table that a transaction has read stays until it ends."""
    rows = spark.sql("SELECT X'6B' AS key, X'76' AS value, 1 AS version")
    with pytest.raises(InvalidState, match="cannot be part of an open transaction"), connection.transaction():
        state.put_all(rows, version="version")
    with staged_puts(rows, version="version") as staged:
        with connection.transaction(force_rollback=True):
            assert apply_staged(connection, state.namespace, staged.table, expected=staged.rows) == {Outcome.APPLIED: 1}
            assert state.get(b"k") == b"v"
        assert state.entry(b"k") is None
    assert staging_tables(connection) == []


def test_what_a_killed_driver_left_is_dropped_by_the_next_and_what_another_needs_is_not(
    spark: SparkSession, connection: psycopg.Connection[Any], state: State
) -> None:
    rows = spark.sql("SELECT X'6B' AS key, X'76' AS value, 1 AS version")
    killed, needed = staged_puts(rows, version="version"), staged_puts(rows, version="version")
    left = killed.__enter__().table.split(".")[1]
    # All that the server notices of a process that was killed: its connections are closed.
    held = connection.execute(
        "SELECT pg_terminate_backend(l.pid, 10000) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.classid = 4"
    )
    assert held.fetchall() == [(True,)]
    assert staging_tables(connection) == [(left,)]
    with needed as staged:
        assert staging_tables(connection) == [(staged.table.split(".")[1],)]
        state.put_all(rows, version="version")
        assert apply_staged(connection, state.namespace, staged.table, expected=1) == {Outcome.UNCHANGED: 1}
    killed.__exit__(None, None, None)
    assert staging_tables(connection) == []


def test_a_dataframe_of_another_shape_is_refused(spark: SparkSession, state: State) -> None:
    for query, said in (
        ("SELECT X'6B' AS key, 1 AS version", "There is no column value"),
        ("SELECT 'k' AS key, X'76' AS value, 1 AS version", "Column key has type string; .* it must be binary"),
        ("SELECT X'6B' AS key, 1 AS value, 1 AS version", "Column value has type int"),
        ("SELECT X'6B' AS key, X'76' AS value, '1' AS version", "versions are integers"),
        ("SELECT X'6B' AS key, X'76' AS value, -1 AS version", r"not \(0, -1\)"),
        ("SELECT CAST(NULL AS BINARY) AS key, X'76' AS value, 1 AS version", "A key has at most 2048 bytes"),
    ):
        with pytest.raises(InvalidState, match=said):
            state.put_all(spark.sql(query), version="version")
