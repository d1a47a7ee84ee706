"""What a database error means to a Kafka client. The only place that reads SQLSTATEs."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolTimeout, TooManyRequests

from gateway.errors import KafkaError, NotLeaderOrFollower, RequestTimedOut, StorageFailed

__all__ = ["DATABASE_ERRORS", "UNDONE_ERRORS", "is_bad_data", "translate"]

DATABASE_ERRORS = (psycopg.Error, PoolTimeout, TooManyRequests, TimeoutError, OSError)
"""What a use case may meet when the database is slow, away or full."""

UNDONE_ERRORS = (pg.DeadlockDetected, pg.SerializationFailure)
"""The server says that it undid the transaction because of another one: the same may work a moment later."""


def translate(error: BaseException) -> KafkaError:
    """The refusal to answer with. Whatever may pass by itself is retriable; the rest is a bug and raised."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, (pg.DiskFull, pg.OutOfMemory, pg.ProgramLimitExceeded)):
        return StorageFailed(f"the database cannot store more: {_first_line(error)}")
    if isinstance(error, (TimeoutError, pg.QueryCanceled)):
        return RequestTimedOut("the database did not answer in time; try again")
    if isinstance(error, DATABASE_ERRORS):
        return NotLeaderOrFollower(f"the database is not available: {_first_line(error)}")
    raise error


def is_bad_data(error: BaseException) -> bool:
    """Whether the rows themselves were refused, so that trying the batches one by one finds the culprit."""
    return isinstance(error, (psycopg.DataError, psycopg.IntegrityError))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
