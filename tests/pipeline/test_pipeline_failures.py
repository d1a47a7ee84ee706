"""What is said of a failed batch, and whether waiting may help: the texts are those that Spark and JDBC give."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg

from gateway.pipeline.database import DatabaseUnavailable, PipelineDatabase
from gateway.pipeline.failures import JobFailed, describe, is_passing

LOST_WHILE_READING = """An error occurred while calling o5261.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 9.0 failed 1 times
Caused by: org.postgresql.util.PSQLException: An I/O error occurred while sending.
\tat org.postgresql.core.v3.QueryExecutorImpl.execute(QueryExecutorImpl.java:421)
Caused by: java.io.EOFException
\tat org.postgresql.core.PGStream.receiveChar(PGStream.java:479)
"""
REFUSED = """An error occurred while calling o77.jdbc.
: org.postgresql.util.PSQLException: Connection to 127.0.0.1:5432 refused. Check that the hostname is right.
Caused by: java.net.ConnectException: Connection refused
"""
WRONG_WORK = """An error occurred while calling o9.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure
Caused by: java.lang.ArithmeticException: divide by zero
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(LOST_WHILE_READING), True),
        (RuntimeError(REFUSED), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.InterfaceError("the connection is closed"), True),
        (pg.SerializationFailure("could not serialize access"), True),
        (DatabaseUnavailable("The database cannot be reached."), True),
        (RuntimeError("psycopg.OperationalError: server closed the connection unexpectedly"), True),
        (RuntimeError("requests.exceptions.ConnectionError: Connection reset by peer"), False),
        (RuntimeError(WRONG_WORK), False),
        (JobFailed("The job refused it."), False),
        (ValueError("no such column"), False),
    ],
)
def test_waiting_helps_where_the_database_was_lost(database_url: str, error: Exception, expected: bool) -> None:
    assert is_passing(error, PipelineDatabase(database_url)) is expected


def test_waiting_helps_as_long_as_the_database_is_away() -> None:
    away = PipelineDatabase("postgresql://127.0.0.1:1/nothing")
    assert is_passing(RuntimeError(WRONG_WORK), away)
    assert not is_passing(JobFailed("The job refused it."), away)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            RuntimeError(LOST_WHILE_READING),
            "org.postgresql.util.PSQLException: An I/O error occurred while sending (java.io.EOFException)",
        ),
        (RuntimeError(WRONG_WORK), "java.lang.ArithmeticException: divide by zero"),
        (RuntimeError("of o1.x\nCaused by: java.io.EOFException\n"), "java.io.EOFException"),
        (ValueError("no such column"), "ValueError: no such column"),
        (ValueError(), "ValueError:"),
        (JobFailed("The job refused it."), "The job refused it."),
    ],
)
def test_the_innermost_cause_with_a_message_is_told(error: Exception, expected: str) -> None:
    assert describe(error) == expected
