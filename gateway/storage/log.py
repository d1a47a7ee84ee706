"""The log in PostgreSQL: appending rows under partition locks, reading ranges, moving the log's start.

A writer's commit is one string of statements with the COPY data in the middle, sent in two waits:
`BEGIN; share transactions; lock; guarded advance; upsert; COPY …; COMMIT`. Integers are the only literals in it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from psycopg import AsyncConnection
from psycopg import errors as pg
from psycopg.abc import PQGen
from psycopg.generators import fetch, send
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.waiting import Wait

from gateway.domain.sequences import ProducerState
from gateway.protocol.batches import COPY_HEADER, COPY_TRAILER, RowRange
from gateway.storage.database import Database, Row, Transaction
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.locks import partition_key
from gateway.storage.producers import KnownProducer, load_sequences, upsert_script
from gateway.storage.statements import statement
from gateway.storage.transactions import (
    AppendableTransaction,
    Extent,
    extend_script,
    load_for_append,
    share_script,
)

__all__ = [
    "Advance",
    "LogConnection",
    "PartitionMoved",
    "PartitionState",
    "load_partitions",
    "read_messages",
]

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Whatever the database's default: what is read after a lock was waited for must be what its holder left."""


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


class LogConnection:
    """A writer's own connection. Not for use by two tasks at once."""

    def __init__(self, connection: AsyncConnection[Row], *, timeout_ms: int) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_ms / 1000

    @classmethod
    async def open(cls, database: Database, *, timeout_ms: int) -> LogConnection:
        return cls(await database.connect(), timeout_ms=timeout_ms)

    async def close(self) -> None:
        await self._connection.close()

    async def append(
        self,
        advances: Sequence[Advance],
        rows: Iterable[bytes | bytearray],
        producers: Sequence[tuple[ProducerKey, ProducerState]],
        extents: Sequence[Extent],
        *,
        locked: bool,
    ) -> None:
        """Write `rows`, move the partitions, extend open transactions and remember the producers in one database
        transaction; returns after COMMIT.

        `locked` says that `lock_and_load` began the transaction. Raises PartitionMoved, nothing written, when
        a partition is not where `advances` expects it or a transaction is not open. After any other error the outcome
        may be unknown.
        """
        script = ""
        if not locked:
            # Lock order: transactions, then partitions.
            share = f"{share_script(extents)}; " if extents else ""
            script = f"{BEGIN}; {share}{_lock_script([a.key for a in advances])}; "
        values = ", ".join(
            f"({a.key.topic_id}, {a.key.partition}, {a.expected_offset}::bigint, {a.next_offset}::bigint,"
            f" {a.stable_offset}::bigint, {a.max_timestamp_ms}::bigint)"
            for a in advances
        )
        script += statement("log/advance_partitions").format(rows=values, count=len(advances)) + "; "
        if extents:
            script += extend_script(extents) + "; "
        if producers:
            script += upsert_script(producers) + "; "
        script += statement("log/copy_messages") + "; COMMIT"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._connection.wait(_run_copy(self._connection, script.encode(), rows))
        except pg.DivisionByZero:
            await self.roll_back()
            raise PartitionMoved from None
        except BaseException:
            await self.roll_back()
            raise

    async def lock_and_load(
        self, keys: Sequence[PartitionKey], producer_ids: Sequence[int]
    ) -> tuple[dict[PartitionKey, PartitionState], dict[int, AppendableTransaction]]:
        """Begin a transaction that shares the transactions of these producers and holds the partitions' locks, and
        read where they are."""
        async with asyncio.timeout(self._timeout_seconds):
            source = Transaction(self._connection)
            transactions: dict[int, AppendableTransaction] = {}
            if producer_ids:
                await self._connection.wait(_run_copy(self._connection, BEGIN.encode(), ()))
                transactions = await load_for_append(source, producer_ids)
            begin = "" if producer_ids else f"{BEGIN}; "
            await self._connection.wait(_run_copy(self._connection, f"{begin}{_lock_script(keys)}".encode(), ()))
            return await _load_partitions(source, keys), transactions

    async def load_producers(self, keys: Sequence[ProducerKey]) -> dict[ProducerKey, KnownProducer]:
        """What producers last wrote; inside the transaction if `lock_and_load` began one."""
        async with asyncio.timeout(self._timeout_seconds):
            return await load_sequences(Transaction(self._connection), keys)

    async def roll_back(self) -> None:
        """Leave a failed transaction; a connection that cannot be trusted afterwards is closed."""
        status = self._connection.pgconn.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            async with asyncio.timeout(self._timeout_seconds):
                await self._connection.wait(_run_copy(self._connection, b"ROLLBACK", ()))
        elif status != TransactionStatus.IDLE:
            await self._connection.close()

    @property
    def is_usable(self) -> bool:
        return not self._connection.closed


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
) -> RowRange | None:
    """Rows of `[start_offset, end_offset)` up to the limits, at least one if there is any; None if there is none."""
    ((offsets, *columns),) = await database.rows(
        "log/read_messages",
        topic_id=key.topic_id,
        partition=key.partition,
        start_offset=start_offset,
        end_offset=end_offset,
        max_rows=max_rows,
        max_bytes=max_bytes,
    )
    if offsets is None:
        return None
    timestamps, timestamp_types, keys, values, names, header_values, *producer = columns
    return RowRange(
        offsets=offsets,
        timestamps_ms=timestamps,
        timestamp_types=timestamp_types,
        keys=keys,
        values=values,
        header_names=[
            None if sent is None else [str(name or b"", "utf-8") for name in _elements(sent)] for sent in names
        ],
        header_values=[None if sent is None else _elements(sent) for sent in header_values],
        producer_ids=producer[0],
        producer_epochs=producer[1],
        sequences=producer[2],
        is_transactional=producer[3],
        control_types=producer[4],
    )


def _elements(sent: bytes) -> list[bytes | None]:
    """The elements of a one-dimensional array in PostgreSQL's binary form, null as None."""
    dimensions, _, _ = struct.unpack_from("!iiI", sent)
    if dimensions == 0:
        return []
    (count,) = struct.unpack_from("!i", sent, 12)
    elements: list[bytes | None] = []
    position = 20
    for _ in range(count):
        (size,) = struct.unpack_from("!i", sent, position)
        position += 4
        if size < 0:
            elements.append(None)
        else:
            elements.append(sent[position : position + size])
            position += size
    return elements


def _lock_script(keys: Iterable[PartitionKey]) -> str:
    numbers = sorted(partition_key(*key) for key in keys)
    return statement("log/lock_partitions").format(keys=", ".join(map(str, numbers)))


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
