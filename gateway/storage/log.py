"""The log in PostgreSQL: appending rows under partition locks, reading ranges, moving the log's start.

A writer's commit is one string of statements with the COPY data in the middle:
`BEGIN; share transactions, lock, guarded advance, upsert; COPY …; COMMIT`, with several COPYs where that costs less.
Integers, and hexadecimal digits for business keys, are the only literals in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from psycopg import AsyncConnection
from psycopg import errors as pg
from psycopg.abc import PQGen
from psycopg.generators import fetch, send
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.waiting import Wait

from gateway.domain.sequences import ProducerState
from gateway.protocol.copy_rows import COPY_HEADER, COPY_TRAILER
from gateway.storage.database import Database, Row, Transaction
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.locks import partition_key
from gateway.storage.producers import KnownProducer, load_sequences, remembered_rows
from gateway.storage.results import ResultRows
from gateway.storage.script_socket import ScriptSocket
from gateway.storage.statements import integers, statement
from gateway.storage.transactions import AppendableTransaction, Extent, load_for_append

__all__ = [
    "Advance",
    "CommitBeforeFailed",
    "KeysTaken",
    "LogConnection",
    "PartitionMoved",
    "PartitionState",
    "TransactionNotOpen",
    "advance_script",
    "load_partitions",
    "read_messages",
    "usual_script",
]

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Whatever the database's default: what is read after a lock was waited for must be what its holder left."""

NUMBERS_OF_AN_ADVANCE = 6

MOVED, NOT_OPEN = "TW006", "TW007"
"""SQLSTATEs of kafka.advance_partitions: something is not as it was when it was read."""

NOT_FOLLOWING = ("TW008", pg.InFailedSqlTransaction.sqlstate)
"""The commit that was sent before is not in force, or has failed and left its transaction to be ended."""


class PartitionState(NamedTuple):
    """Where one partition's log starts and ends."""

    log_start_offset: int
    last_stable_offset: int
    next_offset: int
    leader_epoch: int


class Advance(NamedTuple):
    """How a commit moves one partition."""

    key: PartitionKey
    expected_offset: int
    next_offset: int
    stable_offset: int
    """The last stable offset afterwards, if no transaction was open there before."""
    max_timestamp_ms: int


class PartitionMoved(Exception):
    """Another gateway wrote one of the partitions (or it was deleted) since its state was read."""


class TransactionNotOpen(Exception):
    """A transaction that the commit appends to has ended, or one of the partitions is not in it."""


class CommitBeforeFailed(Exception):
    """Nothing is wrong with the commit but that it was sent behind one that failed."""


class KeysTaken(Exception):
    """A business key that the commit begins is known already."""


class LogConnection:
    """A writer's own connection. Not for use by two tasks at once."""

    def __init__(self, connection: AsyncConnection[Row], script: ScriptSocket | None, *, timeout_ms: int) -> None:
        self._connection = connection
        self._script = script
        self._timeout_seconds = timeout_ms / 1000

    @classmethod
    async def open(cls, database: Database, *, timeout_ms: int) -> LogConnection:
        connection = await database.connect()
        return cls(connection, await ScriptSocket.of(connection), timeout_ms=timeout_ms)

    async def close(self) -> None:
        if self._script is not None:
            self._script.close()
        await self._connection.close()

    async def append(
        self,
        advances: Sequence[Advance],
        rows: Iterable[bytes | bytearray],
        producers: Sequence[tuple[ProducerKey, ProducerState]],
        extents: Sequence[Extent],
        *,
        key_script: str = "",
        locked: bool,
    ) -> None:
        """Write `rows`, move the partitions, extend open transactions and remember the producers in one database
        transaction; returns after COMMIT.

        `locked` says that `lock_and_load` began the transaction. `key_script`: the statement that begins business keys.
        Nothing is written where it raises PartitionMoved, since a partition is not where `advances` expects it,
        TransactionNotOpen, or KeysTaken, since one of the keys is known. After any other error the outcome may be
        unknown.
        """
        script = "" if locked else f"{BEGIN}; "
        script += advance_script(advances, extents, producers, locked=locked) + "; "
        if key_script:
            script += key_script + "; "
        script += statement("log/copy_messages") + "; COMMIT"
        try:
            if self._script is None or locked:
                async with self._waiting() as connection:
                    await connection.wait(_run_copy(connection, script.encode(), rows))
            else:
                chunks = (COPY_HEADER, *rows, COPY_TRAILER)
                await self._script.run(script.encode(), chunks, timeout_seconds=self._timeout_seconds)
        except BaseException as error:
            await self.roll_back()
            if isinstance(error, pg.UniqueViolation) and error.diag.table_name == "idempotency_keys":
                raise KeysTaken(str(error)) from None
            _raise_refused(error)
            raise

    @property
    def takes_messages(self) -> bool:
        """Whether `begin` can be used: the server is reached without a pooler and without encryption."""
        return self._script is not None and self.is_usable

    def begin(self, message: bytes, on_done: Callable[[Exception | None], None]) -> None:
        """Run a commit whose string and COPY data are one message, behind those that were begun before; `on_done` is
        called after COMMIT, or with the error that `undo` is to be told of, when none is under way any more."""
        assert self._script is not None
        self._script.begin(message, timeout_seconds=self._timeout_seconds, on_done=on_done)

    async def undo(self, error: Exception) -> None:
        """Leave what `begin` began; raises as `append` does, or CommitBeforeFailed."""
        await self.roll_back()
        _raise_refused(error)
        raise error

    async def commit_without_rows(self, producers: Sequence[tuple[ProducerKey, ProducerState]]) -> None:
        """End the transaction that `lock_and_load` began: remember the producers, and what else it wrote."""
        remember = f"{advance_script((), (), producers, locked=True)}; " if producers else ""
        try:
            async with self._waiting() as connection:
                await connection.wait(_run_copy(connection, f"{remember}COMMIT".encode(), ()))
        except BaseException:
            await self.roll_back()
            raise

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Transaction]:
        """The transaction that `lock_and_load` began, for statements before its end; without one each is by itself."""
        async with self._waiting() as connection:
            yield Transaction(connection)

    async def lock_and_load(
        self, keys: Sequence[PartitionKey], producer_ids: Sequence[int]
    ) -> tuple[dict[PartitionKey, PartitionState], dict[int, AppendableTransaction]]:
        """Begin a transaction that shares the transactions of these producers and holds the partitions' locks, and
        read where they are."""
        async with self._waiting() as connection:
            source = Transaction(connection)
            transactions: dict[int, AppendableTransaction] = {}
            if producer_ids:
                await connection.wait(_run_copy(connection, BEGIN.encode(), ()))
                transactions = await load_for_append(source, producer_ids)
            begin = "" if producer_ids else f"{BEGIN}; "
            await connection.wait(_run_copy(connection, f"{begin}{_lock_script(keys)}".encode(), ()))
            return await _load_partitions(source, keys), transactions

    async def load_producers(self, keys: Sequence[ProducerKey]) -> dict[ProducerKey, KnownProducer]:
        """What producers last wrote; inside the transaction if `lock_and_load` began one."""
        async with self._waiting() as connection:
            return await load_sequences(Transaction(connection), keys)

    async def roll_back(self) -> None:
        """Leave a failed transaction; a connection that cannot be trusted afterwards is closed."""
        if self._script is not None and not self._script.is_between:
            await self.close()
            return
        status = self._connection.pgconn.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            async with self._waiting() as connection:
                await connection.wait(_run_copy(connection, b"ROLLBACK", ()))
        elif status != TransactionStatus.IDLE:
            await self.close()

    @asynccontextmanager
    async def _waiting(self) -> AsyncIterator[AsyncConnection[Row]]:
        """The connection for psycopg to wait for."""
        if self._script is not None:
            self._script.release()
        async with asyncio.timeout(self._timeout_seconds):
            yield self._connection

    @property
    def is_usable(self) -> bool:
        return not self._connection.closed and not (self._script is not None and self._script.is_lost)


async def load_partitions(database: Database, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionState]:
    """Where these partitions are now; one that does not exist is left out."""
    return await _load_partitions(database, keys)


async def _load_partitions(
    source: Database | Transaction, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, PartitionState]:
    rows = await source.rows(
        "log/load_partitions",
        topic_ids=[key.topic_id for key in keys],
        partitions=[key.partition for key in keys],
    )
    return {PartitionKey(row[0], row[1]): PartitionState(*row[2:]) for row in rows}


async def read_messages(
    database: Database,
    key: PartitionKey,
    *,
    start_offset: int,
    end_offset: int,
    max_rows: int,
    max_bytes: int,
) -> ResultRows | None:
    """Rows of `[start_offset, end_offset)` up to the limits, at least one if there is any; None if there is none."""
    rows = ResultRows(
        await database.result(
            "log/read_messages",
            topic_id=key.topic_id,
            partition=key.partition,
            start_offset=start_offset,
            end_offset=end_offset,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )
    )
    return rows if rows.count else None


def advance_script(
    advances: Sequence[Advance],
    extents: Sequence[Extent],
    producers: Sequence[tuple[ProducerKey, ProducerState]] = (),
    *,
    locked: bool,
) -> str:
    """The statement that moves partitions, extends open transactions and remembers producers, as part of a commit's
    script."""
    transactions: Iterable[tuple[int, int]] = ()
    locks: Iterable[int] = ()
    if not locked:
        transactions = sorted({(extent.key.producer_id, extent.producer_epoch) for extent in extents})
        locks = _locks(advance.key for advance in advances)
    moves = [number for key, *numbers in advances for number in (*key, *numbers)]
    return statement("log/advance_partitions").format(
        follows=0,
        number=0,
        transactions=integers(number for transaction in transactions for number in transaction),
        locks=integers(locks),
        advances=integers(moves),
        advances_at=integers(range(1, len(moves), NUMBERS_OF_AN_ADVANCE)),
        extents=integers(
            number
            for key, _, first, last in extents
            for number in (key.producer_id, key.topic_id, key.partition, first, last)
        ),
        producers=remembered_rows(producers),
    )


def usual_script() -> tuple[bytes, ...]:
    """A commit's string without business keys: what stands before, between and after what differs, which is the number
    of the commit that it follows and its own, and the lists of transactions, locks, advances and where they begin,
    extents, and rows of producers; then the COPY, which may stand there several times, and the end."""
    place = "\0"
    lists = ("follows", "number", "transactions", "locks", "advances", "advances_at", "extents", "producers")
    script = statement("log/advance_partitions").format(**dict.fromkeys(lists, place))
    copy = statement("log/copy_messages")
    return tuple(part.encode() for part in f"{BEGIN}; {script}; {place}{copy}; {place}COMMIT".split(place))


def _raise_refused(error: BaseException) -> None:
    """What kafka.advance_partitions refuses, as an exception of its own."""
    if isinstance(error, pg.Error) and error.sqlstate == MOVED:
        raise PartitionMoved(str(error)) from None
    if isinstance(error, pg.Error) and error.sqlstate == NOT_OPEN:
        raise TransactionNotOpen(str(error)) from None
    if isinstance(error, pg.Error) and error.sqlstate in NOT_FOLLOWING:
        raise CommitBeforeFailed(str(error)) from None


def _lock_script(keys: Iterable[PartitionKey]) -> str:
    return statement("log/lock_partitions").format(keys=integers(_locks(keys)))


def _locks(keys: Iterable[PartitionKey]) -> list[int]:
    return sorted(partition_key(*key) for key in keys)


def _run_copy(connection: AsyncConnection[Row], script: bytes, rows: Iterable[bytes | bytearray]) -> PQGen[None]:
    """Send a string of statements; feed `rows` to the COPY in it; raise the first error of any of them."""
    pgconn = connection.pgconn
    pgconn.send_query(script)
    yield from send(pgconn)
    error: BaseException | None = None
    while (result := (yield from fetch(pgconn))) is not None:
        if result.status == ExecStatus.COPY_IN:
            yield from _put(connection, rows)
        elif result.status == ExecStatus.FATAL_ERROR and error is None:
            error = pg.error_from_result(result, encoding=connection.info.encoding)
    if error is not None:
        raise error


def _put(connection: AsyncConnection[Row], rows: Iterable[bytes | bytearray]) -> PQGen[None]:
    pgconn = connection.pgconn
    for chunk in (COPY_HEADER, *rows, COPY_TRAILER):
        while pgconn.put_copy_data(chunk) == 0:
            yield Wait.W
    while pgconn.put_copy_end() == 0:
        yield Wait.W
    yield from send(pgconn)
