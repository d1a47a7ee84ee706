"""Business keys that producers send, in PostgreSQL: known, begun with the records of a commit, counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.domain.idempotency import NOWHERE, Enqueued, Identity, KeyState, Status
from gateway.storage.database import Database, Transaction
from gateway.storage.keys import PartitionKey
from gateway.storage.statements import integers, statement

__all__ = ["Beginnings", "Failure", "TopicKey", "begin", "begin_script", "count_unsettled", "fail", "load"]

SEPARATORS = range(1, 128)
"""Characters that may stand between keys; one that is in none of them is chosen."""


class TopicKey(NamedTuple):
    """A key of a topic's producers."""

    topic_id: int
    identity: Identity


class Beginnings(NamedTuple):
    """The keys that one batch of a commit begins, each with the record that has it."""

    partition: PartitionKey
    base_offset: int
    places: Mapping[Identity, int]
    """From the base offset on."""
    producer_id: int | None
    """Whose open transaction holds them; None: they are done with the commit."""
    retention_ms: int


class Failure(NamedTuple):
    """A key of a batch that was refused for good."""

    reason: str
    retention_ms: int


async def load(source: Transaction, keys: Sequence[TopicKey]) -> dict[TopicKey, KeyState]:
    """What is known of these keys."""
    # Planned anew each time: the table may have grown by far more than its statistics say.
    rows = await source.rows_planned_anew("idempotency/load_keys", **_columns(keys))
    return {
        TopicKey(topic_id, Identity(tenant, key)): KeyState(
            Status(status), NOWHERE if offset is None else Enqueued(partition, offset), producer_id, is_lease_over
        )
        for topic_id, tenant, key, status, partition, offset, producer_id, is_lease_over in rows
    }


async def begin(source: Transaction, batches: Iterable[Beginnings]) -> bool:
    """Begin these keys, some of which have failed or were let go; false when somebody else began one of them
    meanwhile: then nothing may be committed."""
    begun = [
        (TopicKey(batch.partition.topic_id, identity), batch, batch.base_offset + place)
        for batch in batches
        for identity, place in batch.places.items()
    ]
    ((count,),) = await source.rows(
        "idempotency/begin_keys",
        **_columns([key for key, _, _ in begun]),
        producer_ids=[batch.producer_id for _, batch, _ in begun],
        partitions=[batch.partition.partition for _, batch, _ in begun],
        offsets=[offset for _, _, offset in begun],
        retentions_ms=[batch.retention_ms for _, batch, _ in begun],
    )
    return bool(count == len(begun))


def begin_script(batches: Sequence[Beginnings]) -> str | None:
    """The statement that begins these keys, all of them new, as part of a commit's script; None if their characters
    do not allow it. Integers and hexadecimal digits only."""
    # The order in which `begin` and the end of a transaction lock them.
    begun = sorted(
        [
            (batch.partition.topic_id, *identity, number, batch.base_offset + place)
            for number, batch in enumerate(batches, start=1)
            for identity, place in batch.places.items()
        ]
    )
    _, tenants, keys, numbers, offsets = zip(*begun, strict=True)
    named = "".join(tenants) + "".join(keys)
    separator = next((code for code in SEPARATORS if chr(code) not in named), None)
    if separator is None:
        return None
    return statement("idempotency/begin_new_keys").format(
        separator=separator,
        tenants=chr(separator).join(tenants).encode().hex(),
        keys=chr(separator).join(keys).encode().hex(),
        batches=integers(numbers),
        offsets=integers(offsets),
        topic_ids=integers(batch.partition.topic_id for batch in batches),
        partitions=integers(batch.partition.partition for batch in batches),
        producer_ids=integers(-1 if batch.producer_id is None else batch.producer_id for batch in batches),
        retentions_ms=integers(batch.retention_ms for batch in batches),
    )


async def fail(source: Transaction, failures: Mapping[TopicKey, Failure]) -> None:
    """Remember why these keys were refused, unless they are done or held."""
    await source.rows(
        "idempotency/fail_keys",
        **_columns(list(failures)),
        reasons=[each.reason for each in failures.values()],
        retentions_ms=[each.retention_ms for each in failures.values()],
    )


async def count_unsettled(database: Database) -> tuple[int, int]:
    """How many keys are in flight, and how many have failed."""
    ((in_flight, failing),) = await database.rows("idempotency/count_unsettled")
    return in_flight, failing


def _columns(keys: Sequence[TopicKey]) -> dict[str, object]:
    return {
        "topic_ids": [key.topic_id for key in keys],
        "tenants": [key.identity.tenant for key in keys],
        "keys": [key.identity.key for key in keys],
    }
