"""What a database error means, to a Kafka client and to a pipeline. The only place that reads SQLSTATEs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import structlog
from psycopg import errors as pg
from psycopg_pool import PoolTimeout, TooManyRequests

from gateway.domain.state import (
    InvalidState,
    NamespaceDiffers,
    NothingToSeal,
    StateError,
    UnknownCheckpoint,
    UnknownNamespace,
    UnknownPipeline,
)
from gateway.errors import InvalidRequest, KafkaError, NotLeaderOrFollower, RequestTimedOut, StorageFailed

__all__ = [
    "DATABASE_ERRORS",
    "HELD_ERRORS",
    "UNDONE_ERRORS",
    "is_bad_data",
    "is_bug",
    "translate",
    "translate_state",
    "until_undisturbed",
]

log = structlog.get_logger()

T = TypeVar("T")

DATABASE_ERRORS = (psycopg.Error, PoolTimeout, TooManyRequests, TimeoutError, OSError)
"""What a use case may meet when the database is slow, away or full, or refuses what it is given."""

UNDONE_ERRORS = (pg.DeadlockDetected, pg.SerializationFailure)
"""The server says that it undid the transaction because of another one: the same may work a moment later."""

MAX_ATTEMPTS = 4
"""After being undone three times in a row."""

HELD_ERRORS = (*UNDONE_ERRORS, pg.LockNotAvailable)
"""Somebody else holds what is needed, and for too long."""


async def until_undisturbed(work: Callable[[], Awaitable[T]]) -> T:
    """Do it again when the server undid it because of another transaction."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return await work()
        except UNDONE_ERRORS as error:
            log.info("undone because of another transaction; once more", error=_first_line(error))
    return await work()


def translate(error: BaseException) -> KafkaError:
    """The refusal to answer with. Only what may pass by itself is retriable; a bug is raised."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, (pg.DiskFull, pg.OutOfMemory, pg.ProgramLimitExceeded)):
        return StorageFailed(f"the database cannot store more: {_first_line(error)}")
    if isinstance(error, (TimeoutError, pg.QueryCanceled)):
        return RequestTimedOut("the database did not answer in time; try again")
    if is_bad_data(error):
        return InvalidRequest(f"the database refused it: {_first_line(error)}")
    if isinstance(error, DATABASE_ERRORS) and not is_bug(error):
        return NotLeaderOrFollower(f"the database is not available: {_first_line(error)}")
    raise error


STATE_ERRORS: dict[str, type[StateError]] = {
    "TWS01": UnknownNamespace,
    "TWS02": UnknownPipeline,
    "TWS03": UnknownCheckpoint,
    "TWS04": NamespaceDiffers,
    "TWS05": NothingToSeal,
    "22023": InvalidState,
}
"""What the functions kafka.state_… and kafka.pipeline_… raise, by SQLSTATE."""


def translate_state(error: psycopg.Error) -> StateError | None:
    """The refusal that a function of kafka.state stands for; None for any other error."""
    refusal = STATE_ERRORS.get(error.sqlstate or "")
    said = _first_line(error)
    return None if refusal is None else refusal(f"{said[:1].upper()}{said[1:]}.")


def is_bad_data(error: BaseException) -> bool:
    """Whether the values themselves were refused, so that trying the batches one by one finds the culprit."""
    return isinstance(error, (psycopg.DataError, psycopg.IntegrityError))


def is_bug(error: BaseException) -> bool:
    """Whether the statement itself is wrong, here or for this role: trying again would go on for ever."""
    return isinstance(error, (psycopg.ProgrammingError, psycopg.NotSupportedError))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
