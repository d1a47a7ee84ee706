"""Committed offsets in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from gateway.storage.database import Database, Transaction
from gateway.storage.keys import PartitionKey

__all__ = [
    "CommittedOffset",
    "NamedOffset",
    "OffsetToCommit",
    "commit",
    "delete",
    "fetch",
    "fetch_all",
    "find_unstable",
    "upsert_offsets",
]


class OffsetToCommit(NamedTuple):
    """The next offset a group will read of a partition. `leader_epoch` is -1 where the client gave none."""

    key: PartitionKey
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    retention_ms: int | None = None  # an old client's own wish; else the group's state decides


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str


class NamedOffset(NamedTuple):
    """A committed offset with its topic's name and ids."""

    topic: str
    topic_uuid: UUID
    key: PartitionKey
    committed: CommittedOffset


async def commit(
    database: Database, epochs: Mapping[str, int], offsets: Mapping[tuple[str, PartitionKey], OffsetToCommit]
) -> set[str]:
    """Commit offsets of the groups that `epochs` names; those returned were written, the rest is another's."""
    rows = await database.rows(
        "offsets/commit_offsets",
        groups=list(epochs),
        epochs=list(epochs.values()),
        group_ids=[group_id for group_id, _ in offsets],
        **_columns(offsets.values()),
        retentions_ms=[one.retention_ms for one in offsets.values()],
    )
    return {group_id for (group_id,) in rows}


async def upsert_offsets(transaction: Transaction, group_id: str, rows: Sequence[OffsetToCommit]) -> None:
    """Write offsets that were accepted before, as part of a larger change."""
    unique = {one.key: one for one in rows}
    await transaction.rows("offsets/upsert_offsets", group_id=group_id, **_columns(unique.values()))


async def fetch(
    source: Database | Transaction, group_id: str, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, CommittedOffset]:
    """What the group committed for these partitions; one without an offset is left out."""
    rows = await source.rows(
        "offsets/fetch_offsets",
        group_id=group_id,
        topic_ids=[key.topic_id for key in keys],
        partitions=[key.partition for key in keys],
    )
    return {PartitionKey(*row[:2]): CommittedOffset(*row[2:]) for row in rows}


async def fetch_all(source: Database | Transaction, group_id: str) -> list[NamedOffset]:
    """All that the group committed, by topic name and partition."""
    rows = await source.rows("offsets/fetch_all_offsets", group_id=group_id)
    return [NamedOffset(row[0], row[1], PartitionKey(*row[2:4]), CommittedOffset(*row[4:])) for row in rows]


async def find_unstable(source: Database | Transaction, group_id: str) -> set[PartitionKey]:
    """Partitions whose offsets an open transaction may yet change."""
    return {PartitionKey(*row) for row in await source.rows("offsets/find_unstable", group_id=group_id)}


async def delete(source: Database | Transaction, group_id: str, keys: Sequence[PartitionKey], *, epoch: int) -> bool:
    """Delete committed offsets; False when the group has another coordinator."""
    rows = await source.rows(
        "offsets/delete_offsets",
        group_id=group_id,
        epoch=epoch,
        topic_ids=[key.topic_id for key in keys],
        partitions=[key.partition for key in keys],
    )
    return bool(rows)


def _columns(offsets: Iterable[OffsetToCommit]) -> dict[str, list[object]]:
    many = list(offsets)
    return {
        "topic_ids": [one.key.topic_id for one in many],
        "partitions": [one.key.partition for one in many],
        "offsets": [one.offset for one in many],
        "leader_epochs": [None if one.leader_epoch < 0 else one.leader_epoch for one in many],
        "metadata": [one.metadata for one in many],
    }
