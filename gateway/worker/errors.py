"""What may go wrong for a worker, and what PostgreSQL's codes mean to it."""

from __future__ import annotations

import psycopg

__all__ = [
    "ConnectionLost",
    "DeliveryLost",
    "GroupInUse",
    "Reject",
    "UnknownTopic",
    "WorkerError",
    "translate",
]


class WorkerError(Exception):
    """Something that is not the record's fault."""


class GroupInUse(WorkerError):
    """Consumers are in the group; workers need one of their own."""


class UnknownTopic(WorkerError):
    """There is no such topic or partition."""


class DeliveryLost(WorkerError):
    """The delivery is another's now, or the key: it was not answered in time. Nothing of it was kept."""


class ConnectionLost(WorkerError):
    """The connection broke. Whether the last commit was made is not known here; the tables know."""


class Reject(Exception):
    """Raised by a handler: the record will never work. It becomes a dead letter without another attempt."""


_MEANINGS: dict[str, type[WorkerError]] = {
    "TW001": DeliveryLost,  # the key is held by another
    "TW002": DeliveryLost,  # the key was never begun, or has expired
    "TW003": UnknownTopic,
    "TW004": GroupInUse,
    "TW005": DeliveryLost,
}


def translate(error: Exception, *, is_broken: bool) -> Exception:
    """The error to raise instead; the same one where it says enough."""
    if isinstance(error, psycopg.Error):
        if is_broken:
            return ConnectionLost(_first_line(error))
        meaning = _MEANINGS.get(error.sqlstate or "")
        if meaning is not None:
            return meaning(_first_line(error))
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
