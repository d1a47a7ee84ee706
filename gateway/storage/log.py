"""The log in PostgreSQL: appending rows under partition locks, reading ranges, moving the log's start.

A writer's commit is sent at once, with the COPY data in the middle: `BEGIN; share transactions, lock, guarded advance,
upsert; COPY …; COMMIT`, with several COPYs where that costs less. What is usual is messages that run prepared
statements. Everything else is one string: integers, and hexadecimal digits for business keys, are the only literals in
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from string import Formatter
from typing import NamedTuple

import structlog
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
from gateway.storage.script_socket import (
    EXECUTE,
    NO_RESULTS,
    SYNC,
    ScriptSocket,
    begin_of_bind,
    is_of_statements,
    run_prepared,
)
from gateway.storage.statements import integers, statement
from gateway.storage.transactions import AppendableTransaction, Extent, load_for_append

__all__ = [
    "ADVANCES_TOPICS_FROM",
    "Advance",
    "CommitNotTried",
    "KeysTaken",
    "LogConnection",
    "PartitionMoved",
    "PartitionState",
    "TransactionNotOpen",
    "UsualCommit",
    "advance_script",
    "advance_values",
    "load_partitions",
    "read_messages",
    "usual_commit",
]

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Whatever the database's default: what is read after a lock was waited for must be what its holder left."""

log = structlog.get_logger()

ADVANCE_PARTITIONS, ADVANCE_TOPIC, COPY_MESSAGES = "log/advance_partitions", "log/advance_topic", "log/copy_messages"
"""Statements, whose names are those of the prepared ones too."""

NUMBERS_OF_AN_ADVANCE = 6

MOVED, NOT_OPEN = "TW006", "TW007"
"""SQLSTATEs of kafka.advance_partitions and advance_topic: something is not as it was when it was read."""

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


class UsualCommit(NamedTuple):
    """The messages of a commit of prepared statements, but for the parameters and the COPY data."""

    begin: bytes
    bind_partitions: bytes
    """To advance them: what stands before the parameters, which are text."""
    bind_topic: bytes
    """The same for partitions of one topic, in binary form; empty where that is not to be used."""
    bind_end: bytes
    """Behind the parameters; `execute` follows."""
    execute: bytes
    copy: bytes
    """Before the data of each COPY."""
    commit: bytes


def _parameters(name: str) -> list[str]:
    """What a statement has places for, in order."""
    return [place for _, place, _, _ in Formatter().parse(statement(name)) if place is not None]


def _bind(name: str, *, is_binary: bool) -> bytes:
    return begin_of_bind(name.encode(), len(_parameters(name)), is_binary=is_binary)


ADVANCES_TOPICS_FROM = 17_00_00
"""Earlier versions may plan to read all of a topic's partitions, or of a producer's, to pick those of a list."""


def usual_commit(server_version: int) -> UsualCommit:
    """`server_version` as libpq tells it."""
    return UsualCommit(
        begin=run_prepared(b"begin"),
        bind_partitions=_bind(ADVANCE_PARTITIONS, is_binary=False),
        bind_topic=_bind(ADVANCE_TOPIC, is_binary=True) if server_version >= ADVANCES_TOPICS_FROM else b"",
        bind_end=NO_RESULTS,
        execute=EXECUTE,
        copy=run_prepared(COPY_MESSAGES.encode()),
        commit=run_prepared(b"commit") + SYNC,
    )


class PartitionMoved(Exception):
    """Another gateway wrote one of the partitions (or it was deleted) since its state was read."""


class TransactionNotOpen(Exception):
    """A transaction that the commit appends to has ended, or one of the partitions is not in it."""


class CommitNotTried(Exception):
    """Nothing is wrong with the commit: it was sent behind one that failed, or to a session whose prepared statements
    are gone or mean what is not there any more."""


class KeysTaken(Exception):
    """A business key that the commit begins is known already."""


class LogConnection:
    """A writer's own connection. Not for use by two tasks at once."""

    def __init__(self, connection: AsyncConnection[Row], *, timeout_ms: int) -> None:
        self._connection = connection
        self._script: ScriptSocket | None = None
        self._is_prepared = False
        self._timeout_seconds = timeout_ms / 1000
        self.usual_commit = usual_commit(connection.info.server_version)

    @classmethod
    async def open(cls, database: Database, *, timeout_ms: int) -> LogConnection:
        opened = cls(await database.connect(), timeout_ms=timeout_ms)
        try:
            async with opened._waiting() as connection:
                opened._script = await ScriptSocket.of(connection)
            if opened._script is not None and database.prepares_statements:
                await opened._prepare()
        except BaseException:
            await opened.close()
            raise
        return opened

    async def _prepare(self) -> None:
        """The statements of usual commits: the server reads and looks up each of them once."""
        try:
            async with self._waiting() as connection:
                await connection.wait(_prepare_usual(connection))
        except (pg.ProgrammingError, pg.NotSupportedError) as error:
            # As of a session that was somebody else's before, and has statements of these names.
            log.warning("statements cannot be prepared: commits cost more", error=str(error).splitlines()[0])
        else:
            self._is_prepared = True

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
        script += statement(COPY_MESSAGES) + "; COMMIT"
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
        """Whether `begin` can be used: the server is reached without a pooler and without encryption, and has the
        statements prepared."""
        return self._is_prepared and self.is_usable

    def begin(self, message: bytes, on_done: Callable[[Exception | None], None]) -> None:
        """Run the messages of `usual_commit`, with parameters and COPY data, behind those that were begun before;
        `on_done` is called after COMMIT, or with the error that `undo` is to be told of, when none is under way any
        more."""
        assert self._script is not None
        self._script.begin(message, timeout_seconds=self._timeout_seconds, on_done=on_done)

    async def undo(self, error: Exception) -> None:
        """Leave what `begin` began; raises as `append` does, or CommitNotTried."""
        has_answered = self._script is not None and self._script.is_between
        await self.roll_back()
        if has_answered and is_of_statements(error):
            # As after DEALLOCATE ALL. Another session prepares its own; this one may be that already. If something
            # else is wrong, the string that is tried next will be told so.
            if self._script is not None and self._script.has_useless_statements:
                said = str(error).splitlines()[0]
                log.warning("a session's prepared statements are of no use: another one is opened", error=said)
                await self.close()
            raise CommitNotTried(str(error))
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


def advance_values(
    advances: Sequence[Advance],
    extents: Sequence[Extent],
    producers: Sequence[tuple[ProducerKey, ProducerState]] = (),
    *,
    locked: bool,
) -> dict[str, str]:
    """What moves partitions, extends open transactions and remembers producers: parameters, as text."""
    transactions: Iterable[tuple[int, int]] = ()
    locks: Iterable[int] = ()
    if not locked:
        transactions = sorted({(extent.key.producer_id, extent.producer_epoch) for extent in extents})
        locks = _locks(advance.key for advance in advances)
    moves = [number for key, *numbers in advances for number in (*key, *numbers)]
    lists = {
        "transactions": integers(number for transaction in transactions for number in transaction),
        "locks": integers(locks),
        "advances": integers(moves),
        "advances_at": integers(range(1, len(moves), NUMBERS_OF_AN_ADVANCE)),
        "extents": integers(
            number
            for key, _, first, last in extents
            for number in (key.producer_id, key.topic_id, key.partition, first, last)
        ),
        "producers": remembered_rows(producers),
    }
    return {"follows": "0", "number": "0"} | {name: f"{{{values}}}" for name, values in lists.items()}


def advance_script(
    advances: Sequence[Advance],
    extents: Sequence[Extent],
    producers: Sequence[tuple[ProducerKey, ProducerState]] = (),
    *,
    locked: bool,
) -> str:
    """The statement that does so, as part of a commit's string."""
    values = advance_values(advances, extents, producers, locked=locked)
    return statement(ADVANCE_PARTITIONS).format(**{name: f"'{value}'" for name, value in values.items()})


def _raise_refused(error: BaseException) -> None:
    """What kafka.advance_partitions or advance_topic refuses, as an exception of its own."""
    if isinstance(error, pg.Error) and error.sqlstate == MOVED:
        raise PartitionMoved(str(error)) from None
    if isinstance(error, pg.Error) and error.sqlstate == NOT_OPEN:
        raise TransactionNotOpen(str(error)) from None
    if isinstance(error, pg.Error) and error.sqlstate in NOT_FOLLOWING:
        raise CommitNotTried(str(error)) from None


def _lock_script(keys: Iterable[PartitionKey]) -> str:
    return statement("log/lock_partitions").format(keys=integers(_locks(keys)))


def _locks(keys: Iterable[PartitionKey]) -> list[int]:
    return sorted(partition_key(*key) for key in keys)


def _prepare_usual(connection: AsyncConnection[Row]) -> PQGen[None]:
    """What `usual_commit` runs."""
    statements = {"begin": BEGIN, COPY_MESSAGES: statement(COPY_MESSAGES), "commit": "COMMIT"}
    for name in (ADVANCE_PARTITIONS, ADVANCE_TOPIC):
        places = {place: f"${number}" for number, place in enumerate(_parameters(name), start=1)}
        statements[name] = statement(name).format(**places)
    for name, text in statements.items():
        connection.pgconn.send_prepare(name.encode(), text.encode())
        yield from _finish(connection, ())


def _run_copy(connection: AsyncConnection[Row], script: bytes, rows: Iterable[bytes | bytearray]) -> PQGen[None]:
    """Send a string of statements; feed `rows` to the COPY in it; raise the first error of any of them."""
    connection.pgconn.send_query(script)
    yield from _finish(connection, rows)


def _finish(connection: AsyncConnection[Row], rows: Iterable[bytes | bytearray]) -> PQGen[None]:
    pgconn = connection.pgconn
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
