"""Topics: found by name or id, created, grown, configured and deleted.

Produce and Fetch ask it for every partition, so what was found is kept for a moment; a change made through
this gateway is seen at once, one made through another after FRESH_SECONDS. Writes need no more than that: the
commit itself proves that the partition still exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from gateway.clock import monotonic_seconds
from gateway.domain.configs import TopicSettings, validate_topic_configs
from gateway.domain.topics import NewTopic, collision_key, find_collision, validate_topic_name
from gateway.errors import InvalidPartitions, InvalidTopic, TopicAlreadyExists, UnknownTopicOrPartition
from gateway.storage import topics as storage
from gateway.storage.database import Database
from gateway.storage.keys import PartitionKey
from gateway.storage.topics import StoredTopic

__all__ = ["Catalog", "Topic"]

FRESH_SECONDS = 2.0

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and the settings in force for it."""

    stored: StoredTopic
    settings: TopicSettings

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def uuid(self) -> UUID:
        return self.stored.uuid

    @property
    def partition_count(self) -> int:
        return self.stored.partition_count

    @property
    def overrides(self) -> Mapping[str, str]:
        return self.stored.overrides

    def partition(self, index: int) -> PartitionKey:
        """The key of one partition; refused when the topic has fewer."""
        if not 0 <= index < self.stored.partition_count:
            raise UnknownTopicOrPartition(f"topic {self.name} has {self.partition_count} partitions, not {index}")
        return PartitionKey(self.stored.topic_id, index)


class Catalog:
    """The topics of this database."""

    def __init__(
        self, database: Database, broker_values: Mapping[str, str], *, on_deleted: Callable[[int], None]
    ) -> None:
        self._database = database
        self._broker_values = broker_values
        self._on_deleted = on_deleted
        self._by_name: dict[str, tuple[Topic, float]] = {}
        self._by_uuid: dict[UUID, tuple[Topic, float]] = {}

    async def find(self, names: Iterable[str]) -> dict[str, Topic]:
        """Topics by name; one that does not exist is left out."""
        found, unsure = _fresh(self._by_name, names)
        if unsure:
            for stored in await storage.find(self._database, unsure):
                found[stored.name] = self._keep(stored)
            for name in unsure:
                if name not in found:
                    self._by_name.pop(name, None)
        return found

    async def find_by_uuid(self, uuids: Iterable[UUID]) -> dict[UUID, Topic]:
        """Topics by Kafka's topic id; one that does not exist is left out."""
        found, unsure = _fresh(self._by_uuid, uuids)
        if unsure:
            for stored in await storage.find_by_uuid(self._database, unsure):
                found[stored.uuid] = self._keep(stored)
            for uuid in unsure:
                if uuid not in found:
                    self._by_uuid.pop(uuid, None)
        return found

    async def find_now(self, names: Sequence[str]) -> dict[str, Topic]:
        """Topics by name as the database has them at this moment."""
        found = {stored.name: self._keep(stored) for stored in await storage.find(self._database, names)}
        for name in names:
            if name not in found:
                self._by_name.pop(name, None)
        return found

    async def find_colliding(self, names: Iterable[str]) -> list[str]:
        """Existing names that are one of `names`, or differ from it in dots and underscores only."""
        return await storage.find_colliding(self._database, [collision_key(name) for name in names])

    async def list_all(self) -> list[Topic]:
        return [self._keep(stored) for stored in await storage.list_all(self._database)]

    async def create(self, new: NewTopic, overrides: Mapping[str, str | None]) -> Topic:
        """Create a topic; refused when the name is taken."""
        configs = validate_topic_configs(overrides, self._broker_values)
        async with self._database.transaction() as transaction:
            stored = await storage.create(
                transaction, name=new.name, partition_count=new.partition_count, overrides=configs
            )
        if stored is None:
            raise TopicAlreadyExists(f"Topic '{new.name}' already exists.")
        return self._keep(stored)

    async def create_on_demand(self, name: str, *, partition_count: int) -> Topic:
        """The topic a client named without creating it; somebody else may create it at the same time."""
        validate_topic_name(name)
        if (other := find_collision(name, await self.find_colliding([name]))) is not None:
            raise InvalidTopic(f"Topic '{name}' collides with existing topic: {other}")
        try:
            return await self.create(NewTopic(name, partition_count), {})
        except TopicAlreadyExists:
            return (await self.find_now([name]))[name]

    async def grow(self, topic: Topic, *, new_count: int) -> None:
        async with self._database.transaction() as transaction:
            done = await storage.grow(transaction, topic.stored, new_count=new_count)
        self._forget(topic)
        if not done:
            raise InvalidPartitions(f"topic {topic.name} was changed by somebody else meanwhile; look and try again")

    async def delete(self, topic: Topic) -> None:
        """Delete a topic. Its rows are out of sight at once; housekeeping drops their table."""
        async with self._database.transaction() as transaction:
            done = await storage.delete(transaction, topic.stored.topic_id)
        self._forget(topic)
        if not done:
            raise UnknownTopicOrPartition(f"topic {topic.name} does not exist")
        self._on_deleted(topic.stored.topic_id)

    async def change_configs(
        self, topic: Topic, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        """Replace a topic's overrides by `change` of them, while nobody else can."""
        async with self._database.transaction() as transaction:
            overrides = await storage.lock_configs(transaction, topic.stored.topic_id)
            if overrides is None:
                raise UnknownTopicOrPartition(f"topic {topic.name} does not exist")
            changed = change(overrides)
            if not validate_only:
                await storage.replace_configs(transaction, topic.stored.topic_id, changed)
        self._forget(topic)

    def _keep(self, stored: StoredTopic) -> Topic:
        topic = Topic(stored, TopicSettings.from_overrides(stored.overrides, self._broker_values))
        now = monotonic_seconds()
        self._by_name[stored.name] = (topic, now)
        self._by_uuid[stored.uuid] = (topic, now)
        return topic

    def _forget(self, topic: Topic) -> None:
        self._by_name.pop(topic.name, None)
        self._by_uuid.pop(topic.uuid, None)


def _fresh(kept: Mapping[K, tuple[Topic, float]], wanted: Iterable[K]) -> tuple[dict[K, Topic], list[K]]:
    """Those that are kept and fresh, and the rest."""
    oldest = monotonic_seconds() - FRESH_SECONDS
    found: dict[K, Topic] = {}
    unsure: list[K] = []
    for name in dict.fromkeys(wanted):
        entry = kept.get(name)
        if entry is not None and entry[1] >= oldest:
            found[name] = entry[0]
        else:
            unsure.append(name)
    return found, unsure
