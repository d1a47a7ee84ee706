"""Producer ids and what producers wrote last, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.domain.sequences import SEQUENCES, ProducerState, Written
from gateway.storage.database import Database, Row, Transaction
from gateway.storage.keys import ProducerKey
from gateway.storage.statements import integers

__all__ = [
    "KnownProducer",
    "format_batches",
    "insert",
    "list_active",
    "load_sequences",
    "lock_epoch",
    "parse_batches",
    "raise_epoch",
    "remembered_rows",
]


class KnownProducer(NamedTuple):
    """What the database knows of a producer in a partition."""

    state: ProducerState | None
    may_be_forgotten: bool
    is_transactional: bool = False


async def insert(source: Database | Transaction, client_id: str | None) -> tuple[int, int]:
    """Give out a new id; its epoch is 0."""
    ((producer_id, epoch),) = await source.rows("producers/insert_producer", client_id=client_id)
    return producer_id, epoch


async def lock_epoch(transaction: Transaction, producer_id: int) -> int | None:
    """The newest epoch of an id, held still until the transaction ends; None when the id is unknown, or that of a
    transactional id."""
    rows = await transaction.rows("producers/lock_producer", producer_id=producer_id)
    return rows[0][0] if rows else None


async def raise_epoch(transaction: Transaction, producer_id: int, epoch: int) -> None:
    await transaction.rows("producers/raise_epoch", producer_id=producer_id, epoch=epoch)


async def load_sequences(
    source: Database | Transaction, keys: Sequence[ProducerKey]
) -> dict[ProducerKey, KnownProducer]:
    rows = await source.rows(
        "producers/load_sequences",
        topic_ids=[key.topic_id for key in keys],
        partitions=[key.partition for key in keys],
        producer_ids=[key.producer_id for key in keys],
    )
    return {ProducerKey(*row[:3]): KnownProducer(_state(row), row[7], row[8]) for row in rows}


async def list_active(database: Database, *, topic_id: int, partition: int) -> list[Row]:
    """Id, epoch, last sequence, last timestamp and open transaction's first offset of each producer known there."""
    return await database.rows("producers/list_active", topic_id=topic_id, partition=partition)


def remembered_rows(states: Iterable[tuple[ProducerKey, ProducerState]]) -> str:
    """What a commit remembers of producers: elements of an array of kafka.remembered_producer. Integers and what stands
    between them."""
    rows = []
    for (topic_id, partition, producer_id), (epoch, last_sequence, run_length, recent) in states:
        numbers = integers((producer_id, topic_id, partition, epoch, last_sequence, run_length))
        rows.append(f'"({numbers},{format_batches(recent)})"')
    return ",".join(rows)


def _state(row: Row) -> ProducerState | None:
    epoch, last_sequence, run_length, batches = row[3:7]
    if epoch is None:
        return None
    return ProducerState(epoch, last_sequence, run_length, parse_batches(batches, last_sequence))


def format_batches(recent: Iterable[Written]) -> str:
    """As `kafka.producer_sequences.batches` has them: their sequences follow from the last one."""
    return " ".join(
        f"{base_offset:d}:{(last - first) % SEQUENCES + 1:d}:{timestamp_ms:d}"
        for first, last, base_offset, timestamp_ms in recent
    )


def parse_batches(batches: str, last_sequence: int) -> tuple[Written, ...]:
    recent: list[Written] = []
    last = last_sequence
    for batch in reversed(batches.split()):
        base_offset, record_count, timestamp_ms = map(int, batch.split(":"))
        first = (last - record_count + 1) % SEQUENCES
        recent.append(Written(first, last, base_offset, timestamp_ms))
        last = (first - 1) % SEQUENCES
    return tuple(reversed(recent))
