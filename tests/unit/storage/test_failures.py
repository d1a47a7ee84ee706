"""What a database error means to a Kafka client: SQLSTATEs as PostgreSQL raises them, codes as clients read them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg
from psycopg_pool import PoolTimeout, TooManyRequests

from gateway.errors import ErrorCode, OffsetOutOfRange
from gateway.storage.failures import DATABASE_ERRORS, is_bad_data, is_bug, translate

AWAY, TIMED_OUT, FULL, REFUSED = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.kafka_storage_error,
    ErrorCode.invalid_request,
)


def raised(sqlstate: str) -> psycopg.Error:
    return pg.lookup(sqlstate)("the first line\nCONTEXT:  the second")


@pytest.mark.parametrize(
    ("sqlstate", "code"),
    [
        ("08006", AWAY),  # connection failure
        ("57P01", AWAY),  # the server is told to stop
        ("57P03", AWAY),  # the server starts
        ("53300", AWAY),  # too many connections
        ("40001", AWAY),  # serialization failure
        ("40P01", AWAY),  # deadlock
        ("55P03", AWAY),  # a lock was not to be had in time
        ("25006", AWAY),  # a standby, read-only until it is promoted
        ("XX000", AWAY),  # internal error
        ("57014", TIMED_OUT),  # statement_timeout
        ("53100", FULL),
        ("53200", FULL),
        ("54000", FULL),
        ("22001", REFUSED),  # too long
        ("22003", REFUSED),  # out of range
        ("22021", REFUSED),  # not a character
        ("23503", REFUSED),  # foreign key
        ("23505", REFUSED),  # unique
        ("23514", REFUSED),  # check
    ],
)
def test_a_failure_is_retriable_only_if_it_may_pass_by_itself(sqlstate: str, code: ErrorCode) -> None:
    refusal = translate(raised(sqlstate))
    assert refusal.code is code
    assert "second" not in refusal.message
    assert ("the first line" in refusal.message) == (code is not TIMED_OUT)


@pytest.mark.parametrize("sqlstate", ["42601", "42P01", "42703", "42501", "26000", "0A000"])
def test_a_statement_that_is_wrong_is_a_bug_and_raised(sqlstate: str) -> None:
    error = raised(sqlstate)
    assert is_bug(error)
    assert isinstance(error, DATABASE_ERRORS), "loops in the background outlive it"
    with pytest.raises(type(error)):
        translate(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), AWAY),
        (psycopg.OperationalError(), AWAY),
        (psycopg.InterfaceError("the connection is closed"), AWAY),
        (PoolTimeout("no connection"), AWAY),
        (TooManyRequests("the queue is full"), AWAY),
        (ConnectionRefusedError("refused"), AWAY),
        (TimeoutError(), TIMED_OUT),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), REFUSED),
    ],
)
def test_what_the_driver_raises_by_itself_has_a_code_too(error: Exception, code: ErrorCode) -> None:
    assert translate(error).code is code


def test_a_refusal_stays_what_it_is() -> None:
    refusal = OffsetOutOfRange("beyond the end")
    assert translate(refusal) is refusal


def test_what_is_no_database_error_is_raised() -> None:
    with pytest.raises(KeyError):
        translate(KeyError("a bug"))


def test_bad_data_is_told_from_the_rest() -> None:
    assert [is_bad_data(raised(state)) for state in ("22003", "23505", "42601", "53100")] == [True, True, False, False]
