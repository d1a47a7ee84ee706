"""What went wrong in a batch: in one sentence, and whether it may pass by itself."""

from __future__ import annotations

import re

import psycopg

from gateway.errors import PipelineError
from gateway.pipeline.database import DatabaseUnavailable, PipelineDatabase
from gateway.storage.failures import UNDONE_ERRORS

__all__ = ["JobFailed", "describe", "is_passing"]

# Errors of executors reach the driver as text. A job may have connections of its own, to whomever: these are ours.
DRIVERS = re.compile(r"org\.postgresql|psycopg")
# What the drivers say of a server that is not there or goes away.
LOST = re.compile(
    r"Connection to \S+ refused|the database system is|terminating connection|I/O error occurred|"
    r"This connection has been closed|connection attempt failed|Connection reset|SQLSTATE\(?08|server closed the",
    re.IGNORECASE,
)
CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
RAISED = re.compile(r"^(?:[\w.]+(?:Error|Exception|Interrupt|Warning)\b.*)$", re.MULTILINE)


class JobFailed(PipelineError):
    """A job raised an exception, on the driver or on an executor."""


def is_passing(error: BaseException, database: PipelineDatabase) -> bool:
    """Whether waiting helps: the database is, or was, away, or it undid the transaction for another one's sake."""
    if isinstance(error, (DatabaseUnavailable, psycopg.OperationalError, psycopg.InterfaceError, *UNDONE_ERRORS)):
        return True
    if isinstance(error, PipelineError):
        return False
    text = str(error)
    if DRIVERS.search(text) and LOST.search(text):
        return True
    try:
        database.connect().close()
    except DatabaseUnavailable:
        return True
    return False


def describe(error: BaseException) -> str:
    """One line: the innermost cause, which Spark puts below its own stack."""
    text = str(error).strip()
    if isinstance(error, PipelineError):
        return text
    if causes := CAUSE.findall(text):
        told = next((cause for cause in reversed(causes) if ": " in cause), causes[-1])
        # The innermost of a lost connection is a bare java.io.EOFException, which by itself tells nobody anything.
        return _short(told) if told == causes[-1] else f"{_short(told)} ({_short(causes[-1])})"
    if "Traceback (most recent call last)" in text and (raised := RAISED.findall(text.split("Traceback", 1)[1])):
        return _short(raised[-1])
    return _short(f"{type(error).__name__}: {(text.splitlines() or [''])[0]}")


def _short(line: str) -> str:
    return line.strip().rstrip(".")[:500]
