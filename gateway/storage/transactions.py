"""Transactions in PostgreSQL: found, begun, extended and ended, each under the transaction's row lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.domain.connections import Speaker, Spoken
from gateway.domain.producers import Producer
from gateway.domain.transactions import State, Transaction
from gateway.storage.database import Database, Row
from gateway.storage.database import Transaction as DatabaseTransaction
from gateway.storage.keys import PartitionKey, ProducerKey

__all__ = [
    "AbortedRange",
    "AppendableTransaction",
    "Extent",
    "Marked",
    "PendingOffset",
    "abort",
    "add_offsets",
    "begin",
    "change_speaker",
    "create",
    "describe",
    "end",
    "find_name",
    "find_speakers",
    "find_timed_out",
    "join",
    "list_all",
    "list_speakers",
    "load_aborted",
    "load_for_append",
    "load_stats",
    "lock",
    "lock_by_producer",
    "lock_timed_out",
    "raise_epoch",
    "rotate",
]


class Marked(NamedTuple):
    """A partition that got a marker, and where it is afterwards; the marker has the offset before `next_offset`."""

    key: PartitionKey
    producer_id: int
    producer_epoch: int
    next_offset: int
    last_stable_offset: int
    leader_epoch: int
    marked_at_ms: int
    settled_keys: int
    """How many business keys were done or failed with the transaction, in all partitions together."""


class Extent(NamedTuple):
    """What a commit appends to one partition of an open transaction."""

    key: ProducerKey
    producer_epoch: int
    first_offset: int
    last_offset: int


class AppendableTransaction(NamedTuple):
    """An open or ended transaction with its partitions, as a writer judges it."""

    transaction: Transaction
    partitions: frozenset[PartitionKey]


class PendingOffset(NamedTuple):
    key: PartitionKey
    offset: int
    leader_epoch: int
    metadata: str


class AbortedRange(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


async def lock(source: DatabaseTransaction, transactional_id: str) -> Transaction | None:
    """The transaction of an id, held still until the database transaction ends."""
    return _transaction(await source.rows("transactions/lock_transaction", transactional_id=transactional_id))


async def lock_by_producer(source: DatabaseTransaction, producer_id: int) -> Transaction | None:
    return _transaction(await source.rows("transactions/lock_producer_transaction", producer_id=producer_id))


async def create(
    source: DatabaseTransaction, transactional_id: str, *, timeout_ms: int, client_id: str | None
) -> Producer | None:
    """A new transactional id; None when somebody else created it meanwhile."""
    rows = await source.rows(
        "transactions/insert_transaction", transactional_id=transactional_id, timeout_ms=timeout_ms, client_id=client_id
    )
    return Producer(rows[0][0], 0) if rows else None


async def raise_epoch(
    source: DatabaseTransaction,
    transactional_id: str,
    *,
    epoch: int,
    previous_epoch: int | None,
    timeout_ms: int,
    client_id: str | None,
) -> None:
    """The instance that asked goes on with this epoch and these settings; nothing of before is remembered."""
    await source.rows(
        "transactions/raise_epoch",
        transactional_id=transactional_id,
        epoch=epoch,
        previous_epoch=previous_epoch,
        timeout_ms=timeout_ms,
        client_id=client_id,
    )


async def rotate(
    source: DatabaseTransaction, transactional_id: str, *, old_producer_id: int, previous_epoch: int | None
) -> Producer:
    """Go on with a new producer id at epoch 0; the owner of `previous_epoch` may learn it."""
    await source.rows("transactions/release_producer", producer_id=old_producer_id)
    ((producer_id,),) = await source.rows(
        "transactions/rotate_producer", transactional_id=transactional_id, previous_epoch=previous_epoch
    )
    return Producer(producer_id, 0)


async def find_speakers(database: Database, transactional_ids: Sequence[str]) -> list[Spoken]:
    known = [each for each in transactional_ids if "\0" not in each]
    return _spoken(await database.rows("transactions/find_speakers", transactional_ids=known))


async def list_speakers(database: Database, *, limit: int) -> list[Spoken]:
    """Those of the transactions that changed last."""
    return _spoken(await database.rows("transactions/list_speakers", limit=limit))


def _spoken(rows: list[Row]) -> list[Spoken]:
    return [Spoken(row[0], Speaker(row[1], row[2]), row[3]) for row in rows]


async def change_speaker(source: DatabaseTransaction, transactional_id: str, speaker: Speaker) -> None:
    await source.rows(
        "transactions/change_speaker",
        transactional_id=transactional_id,
        gateway=speaker.gateway,
        connection=speaker.connection,
    )


async def join(
    source: Database | DatabaseTransaction,
    transactional_id: str,
    producer: Producer,
    keys: Sequence[PartitionKey],
    *,
    speaker: Speaker | None = None,
) -> bool:
    """Add partitions to the producer's open transaction; false, nothing done, if none is open or not this speaker's."""
    return bool(
        await source.rows("transactions/join_transaction", **_addition(transactional_id, producer, keys, speaker))
    )


async def begin(
    source: Database | DatabaseTransaction,
    transactional_id: str,
    producer: Producer,
    keys: Sequence[PartitionKey],
    *,
    client_id: str | None,
    max_open_per_client: int,
    speaker: Speaker | None = None,
) -> bool:
    """Open a transaction with these partitions; false, nothing done, if one is open, if it is not this speaker's, or
    if the client has too many open ones."""
    return bool(
        await source.rows(
            "transactions/begin_transaction",
            **_addition(transactional_id, producer, keys, speaker),
            client_id=client_id,
            max_open=max_open_per_client,
        )
    )


def _addition(
    transactional_id: str, producer: Producer, keys: Sequence[PartitionKey], speaker: Speaker | None
) -> dict[str, object]:
    return {
        "transactional_id": transactional_id,
        "producer_id": producer.id,
        "epoch": producer.epoch,
        "gateway": None if speaker is None else speaker.gateway,
        "connection": None if speaker is None else speaker.connection,
        "topic_ids": [key.topic_id for key in keys],
        "partitions": [key.partition for key in keys],
    }


async def add_offsets(
    source: DatabaseTransaction, producer_id: int, group_id: str, offsets: Sequence[PendingOffset]
) -> None:
    await source.rows(
        "transactions/add_offsets",
        producer_id=producer_id,
        group_id=group_id,
        topic_ids=[each.key.topic_id for each in offsets],
        partitions=[each.key.partition for each in offsets],
        offsets=[each.offset for each in offsets],
        leader_epochs=[each.leader_epoch for each in offsets],
        metadata=[each.metadata for each in offsets],
    )


async def end(
    source: DatabaseTransaction, producer_id: int, *, commit: bool, next_epoch: int, cause: str = "client"
) -> list[Marked]:
    """Commit or abort everything the producer's transaction holds."""
    rows = await source.rows(
        "transactions/end_transaction", producer_id=producer_id, commit=commit, next_epoch=next_epoch, cause=cause
    )
    return [Marked(PartitionKey(row[0], row[1]), producer_id, next_epoch, *row[2:]) for row in rows]


async def find_timed_out(database: Database, *, step: int) -> list[str]:
    return [row[0] for row in await database.rows("transactions/find_timed_out", step=step)]


async def lock_timed_out(source: DatabaseTransaction, transactional_id: str, *, wait_ms: int) -> Transaction | None:
    """Hold a transaction whose time is over; None when it has been ended meanwhile."""
    await source.rows("transactions/limit_wait", wait_ms=str(wait_ms))
    return _transaction(await source.rows("transactions/lock_timed_out", transactional_id=transactional_id))


async def find_name(database: Database, producer_id: int) -> str | None:
    """The transactional id that has this producer id."""
    rows = await database.rows("transactions/find_name", producer_id=producer_id)
    return rows[0][0] if rows else None


async def load_for_append(source: DatabaseTransaction, producer_ids: Iterable[int]) -> dict[int, AppendableTransaction]:
    """The transactions of these producers, shared until the database transaction ends."""
    rows = await source.rows("transactions/load_for_append", producer_ids=list(producer_ids))
    return {
        row[0]: AppendableTransaction(
            Transaction(Producer(row[0], row[1]), State(row[2]), row[3]),
            frozenset(map(PartitionKey, row[4], row[5])),
        )
        for row in rows
    }


async def load_aborted(
    database: Database, key: PartitionKey, *, ending_from: int, beginning_from: int, beginning_before: int
) -> list[AbortedRange]:
    """Those that end at or after one offset and begin in `[beginning_from, beginning_before)`, by their beginnings."""
    rows = await database.rows(
        "transactions/load_aborted",
        topic_id=key.topic_id,
        partition=key.partition,
        ending_from=ending_from,
        beginning_from=beginning_from,
        beginning_before=beginning_before,
    )
    return [AbortedRange(*row) for row in rows]


async def list_all(
    database: Database, *, states: list[str] | None, producer_ids: list[int] | None, min_duration_ms: int
) -> list[Row]:
    """Transactional id, producer id and state of those that match."""
    return await database.rows(
        "transactions/list_transactions", states=states, producer_ids=producer_ids, min_duration_ms=min_duration_ms
    )


async def describe(database: Database, transactional_ids: Sequence[str]) -> dict[str, Row]:
    known = [each for each in transactional_ids if "\0" not in each]
    rows = await database.rows("transactions/describe_transactions", transactional_ids=known)
    return {row[0]: row for row in rows}


async def abort(database: Database, transactional_id: str) -> str:
    """An operator's abort; says what was done."""
    ((said,),) = await database.rows("transactions/abort_transaction", transactional_id=transactional_id)
    return str(said)


async def load_stats(database: Database) -> Row:
    """Started, committed, aborted, timed out, active, age of the oldest open one in seconds."""
    (row,) = await database.rows("transactions/load_stats")
    return row


def _transaction(rows: list[Row]) -> Transaction | None:
    if not rows:
        return None
    producer_id, epoch, state, timeout_ms, previous_epoch, ended_epoch, previous_producer_id = rows[0][:7]
    speaker_gateway, speaker_connection, updated_at_us, age_seconds = rows[0][7:]
    return Transaction(
        Producer(producer_id, epoch),
        State(state),
        timeout_ms,
        previous_epoch,
        ended_epoch,
        previous_producer_id,
        None if speaker_gateway is None else Speaker(speaker_gateway, speaker_connection),
        updated_at_us,
        age_seconds,
    )
