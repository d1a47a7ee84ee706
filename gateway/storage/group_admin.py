"""Groups as people at the command line see and change them, without being their coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.storage.database import Database, Transaction
from gateway.storage.keys import PartitionKey

__all__ = [
    "GroupOverview",
    "MemberOverview",
    "PartitionEnds",
    "PartitionLag",
    "describe",
    "drop",
    "find_offset_at",
    "list_members",
    "load_ends",
    "load_lag",
    "lock_state",
]


class GroupOverview(NamedTuple):
    group_type: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    coordinator: int | None


class MemberOverview(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: list[str] | None
    pattern: str | None


class PartitionLag(NamedTuple):
    topic: str
    partition: int
    offset: int
    end_offset: int
    lag: int
    stable_lag: int


class PartitionEnds(NamedTuple):
    """A partition's log and what a group has committed, None if nothing."""

    topic: str
    key: PartitionKey
    start_offset: int
    end_offset: int
    committed: int | None


async def describe(database: Database, group_id: str) -> GroupOverview | None:
    rows = await database.rows("groups/describe_group", group_id=group_id)
    return GroupOverview(*rows[0]) if rows else None


async def list_members(database: Database, group_id: str) -> list[MemberOverview]:
    return [MemberOverview(*row) for row in await database.rows("groups/list_members", group_id=group_id)]


async def load_lag(database: Database, group_id: str) -> list[PartitionLag]:
    return [PartitionLag(*row) for row in await database.rows("groups/load_lag", group_id=group_id)]


async def load_ends(transaction: Transaction, group_id: str, topics: Sequence[str] | None) -> list[PartitionEnds]:
    """The partitions of these topics; None: of all that the group has committed an offset for."""
    rows = await transaction.rows(
        "offsets/load_ends", group_id=group_id, topics=list(topics or ()), all_committed=topics is None
    )
    return [PartitionEnds(row[0], PartitionKey(row[1], row[2]), *row[3:]) for row in rows]


async def find_offset_at(transaction: Transaction, ends: PartitionEnds, timestamp_ms: int) -> int:
    """The first offset at or after a time; the end of the log where there is none."""
    rows = await transaction.rows(
        "log/find_offset_by_time",
        topic_id=ends.key.topic_id,
        partition=ends.key.partition,
        start_offset=ends.start_offset,
        end_offset=ends.end_offset,
        timestamp_ms=timestamp_ms,
    )
    return int(rows[0][0]) if rows else ends.end_offset


async def lock_state(transaction: Transaction, group_id: str) -> tuple[str, int] | None:
    """A group's state and size, held still until the transaction ends; None when there is no such group."""
    rows = await transaction.rows("groups/lock_group", group_id=group_id)
    return (rows[0][0], rows[0][1]) if rows else None


async def drop(transaction: Transaction, group_id: str) -> None:
    await transaction.rows("groups/drop_group", group_id=group_id)
