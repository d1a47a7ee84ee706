"""Topics, their partitions and their overrides in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.storage.configs import AlteredConfigs
from gateway.storage.database import Database, Row, Transaction

__all__ = [
    "StoredTopic",
    "create",
    "delete",
    "find",
    "find_by_uuid",
    "find_colliding",
    "grow",
    "list_all",
    "lock_configs",
    "replace_configs",
]


@dataclass(frozen=True, slots=True)
class StoredTopic:
    topic_id: int
    uuid: UUID
    name: str
    partition_count: int
    overrides: Mapping[str, str]
    inherited: AlteredConfigs
    """What was altered for the broker that asked, as of the same moment: a topic's defaults."""


def _topic(row: Row) -> StoredTopic:
    return StoredTopic(row[0], row[1], row[2], row[3], row[4] or {}, AlteredConfigs(row[5] or {}, row[6] or {}))


async def find(database: Database, names: Sequence[str], *, broker_id: int) -> list[StoredTopic]:
    # PostgreSQL's text cannot hold a NUL; a name with one is no topic's.
    known = [name for name in names if "\0" not in name]
    if not known:
        return []
    return [_topic(row) for row in await database.rows("topics/find_topics_by_name", names=known, broker_id=broker_id)]


async def find_by_uuid(database: Database, uuids: Sequence[UUID], *, broker_id: int) -> list[StoredTopic]:
    rows = await database.rows("topics/find_topics_by_uuid", uuids=list(uuids), broker_id=broker_id)
    return [_topic(row) for row in rows]


async def find_colliding(database: Database, collision_keys: Sequence[str]) -> list[str]:
    known = [key for key in collision_keys if "\0" not in key]
    return [name for (name,) in await database.rows("topics/find_colliding_names", keys=known)] if known else []


async def list_all(database: Database, *, broker_id: int) -> list[StoredTopic]:
    return [_topic(row) for row in await database.rows("topics/list_topics", broker_id=broker_id)]


async def create(
    transaction: Transaction,
    *,
    name: str,
    partition_count: int,
    overrides: Mapping[str, str],
    inherited: AlteredConfigs,
) -> StoredTopic | None:
    """Create a topic with its partitions and storage; None when the name is taken."""
    rows = await transaction.rows("topics/insert_topic", name=name, partition_count=partition_count)
    if not rows:
        return None
    topic_id, uuid = rows[0]
    await transaction.rows("topics/insert_partitions", topic_id=topic_id, first=0, last=partition_count)
    await transaction.rows("topics/create_storage", topic_id=topic_id)
    await _insert_configs(transaction, topic_id, overrides)
    return StoredTopic(topic_id, uuid, name, partition_count, dict(overrides), inherited)


async def grow(transaction: Transaction, topic: StoredTopic, *, new_count: int) -> bool:
    """Add partitions up to `new_count`; False when the topic changed meanwhile."""
    rows = await transaction.rows(
        "topics/grow_topic", topic_id=topic.topic_id, old_count=topic.partition_count, new_count=new_count
    )
    if rows:
        await transaction.rows(
            "topics/insert_partitions", topic_id=topic.topic_id, first=topic.partition_count, last=new_count
        )
    return bool(rows)


async def delete(transaction: Transaction, topic_id: int) -> bool:
    return bool(await transaction.rows("topics/delete_topic", topic_id=topic_id))


async def lock_configs(transaction: Transaction, topic_id: int) -> dict[str, str] | None:
    """The topic's overrides, held still until the transaction ends; None when the topic is gone."""
    rows = await transaction.rows("topics/lock_topic", topic_id=topic_id)
    return (rows[0][0] or {}) if rows else None


async def replace_configs(transaction: Transaction, topic_id: int, overrides: Mapping[str, str]) -> None:
    await transaction.rows("topics/clear_configs", topic_id=topic_id)
    await _insert_configs(transaction, topic_id, overrides)


async def _insert_configs(transaction: Transaction, topic_id: int, overrides: Mapping[str, str]) -> None:
    if overrides:
        await transaction.rows(
            "topics/insert_configs", topic_id=topic_id, names=list(overrides), values=list(overrides.values())
        )
