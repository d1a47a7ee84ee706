"""Topics: found by name or id, created, grown, configured and deleted.

Produce and Fetch ask it for every partition, so what was found is kept for a moment; a change made through
this gateway is seen at once, one made through another after FRESH_SECONDS, and so are the altered configs of
brokers, which are read with the topics whose defaults they are. Writes need no more than that: the commit itself
proves that the partition still exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from gateway.broker.turns import Turns
from gateway.clock import monotonic_seconds
from gateway.domain.configs import BrokerConfigs, TopicSettings, validate_topic_configs
from gateway.domain.topics import NewTopic, collision_key, find_collision, validate_topic_name
from gateway.errors import InvalidPartitions, InvalidTopic, TopicAlreadyExists, UnknownTopicOrPartition
from gateway.storage import configs as stored_configs
from gateway.storage import topics as storage
from gateway.storage.configs import AlteredConfigs
from gateway.storage.database import Database
from gateway.storage.failures import until_undisturbed
from gateway.storage.keys import PartitionKey
from gateway.storage.topics import StoredTopic

__all__ = ["FRESH_SECONDS", "Catalog", "Topic", "UsualTopic"]

FRESH_SECONDS = 2.0
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and the settings in force for it."""

    stored: StoredTopic
    broker: BrokerConfigs
    """What the topic inherits where it has no override."""
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


class UsualTopic(NamedTuple):
    """What a produced batch is judged by in a topic that neither sets timestamps nor asks for business keys."""

    seen_at: float
    topic_id: int
    partition_count: int
    max_message_bytes: int
    max_decompressed_message_bytes: int
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    needs_keys: bool


class _Moment(NamedTuple):
    """When a look into the database began, and how many changes this gateway had made before."""

    at: float
    changes: int


class Catalog:
    """The topics of this database."""

    def __init__(
        self,
        database: Database,
        broker_values: Mapping[str, str],
        *,
        node_id: int,
        on_deleted: Callable[[int], None],
    ) -> None:
        self._database = database
        self._broker_values = broker_values
        self._node_id = node_id
        self._on_deleted = on_deleted
        # In the order of their age.
        self._kept: dict[UUID, tuple[Topic, float]] = {}
        self._uuids: dict[str, UUID] = {}
        self.usual_by_name: dict[bytes, UsualTopic] = {}
        self.usual_by_id: dict[bytes, UsualTopic] = {}
        """Those of the kept ones that are usual, as requests name them; not fresh any more after FRESH_SECONDS."""
        self._changes = 0
        self._turns = Turns()

    async def find(self, names: Collection[str]) -> dict[str, Topic]:
        """Topics by name; one that does not exist is left out."""
        found = self._named(names)
        if len(found) < len(names) and (unsure := frozenset(names).difference(found)):
            async with self._turns.of(unsure):
                found |= self._named(unsure)
                moment = self._moment()
                if unsure := unsure.difference(found):
                    for stored in await storage.find(self._database, list(unsure), broker_id=self._node_id):
                        found[stored.name] = self._keep(stored, moment)
        return found

    async def find_by_uuid(self, uuids: Collection[UUID]) -> dict[UUID, Topic]:
        """Topics by Kafka's topic id; one that does not exist is left out."""
        found = self._identified(uuids)
        if len(found) < len(uuids) and (unsure := frozenset(uuids).difference(found)):
            async with self._turns.of(unsure):
                found |= self._identified(unsure)
                moment = self._moment()
                if unsure := unsure.difference(found):
                    for stored in await storage.find_by_uuid(self._database, list(unsure), broker_id=self._node_id):
                        found[stored.uuid] = self._keep(stored, moment)
        return found

    async def find_now(self, names: Sequence[str]) -> dict[str, Topic]:
        """Topics by name as the database has them at this moment."""
        moment = self._moment()
        found = {
            stored.name: self._keep(stored, moment)
            for stored in await storage.find(self._database, names, broker_id=self._node_id)
        }
        for name in names:
            if name not in found and name in self._uuids:
                self._drop(self._uuids[name])
        return found

    async def find_colliding(self, names: Iterable[str]) -> list[str]:
        """Existing names that are one of `names`, or differ from it in dots and underscores only."""
        return await storage.find_colliding(self._database, [collision_key(name) for name in names])

    async def list_all(self) -> list[Topic]:
        moment = self._moment()
        return [
            self._keep(stored, moment) for stored in await storage.list_all(self._database, broker_id=self._node_id)
        ]

    async def load_broker_configs(self) -> BrokerConfigs:
        """What topics without overrides go by at this moment."""
        return self._broker_configs(await stored_configs.load(self._database, self._node_id))

    async def create(self, new: NewTopic, overrides: Mapping[str, str | None]) -> Topic:
        """Create a topic; refused when the name is taken."""
        moment = self._moment()
        async with self._database.transaction() as transaction:
            inherited = await stored_configs.load(transaction, self._node_id)
            stored = await storage.create(
                transaction,
                name=new.name,
                partition_count=new.partition_count,
                overrides=validate_topic_configs(overrides, self._broker_configs(inherited)),
                inherited=inherited,
            )
        if stored is None:
            raise TopicAlreadyExists(f"Topic '{new.name}' already exists.")
        return self._keep(stored, moment)

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

        async def delete() -> bool:
            async with self._database.transaction() as transaction:
                return await storage.delete(transaction, topic.stored.topic_id)

        done = await until_undisturbed(delete)  # a transaction over its partitions may end at the same time
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

    async def change_broker_configs(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, for_all: bool, validate_only: bool
    ) -> None:
        """Replace what was altered for this gateway, or for all of them, by `change` of it, while nobody else can."""
        async with self._database.transaction() as transaction:
            await stored_configs.lock(transaction)
            own, shared = await stored_configs.load(transaction, self._node_id)
            changed = change(shared if for_all else own)
            if not validate_only:
                await stored_configs.replace(transaction, None if for_all else self._node_id, changed)
        self._changes += 1
        for uuid in list(self._kept):
            self._drop(uuid)

    def _broker_configs(self, altered: AlteredConfigs) -> BrokerConfigs:
        return BrokerConfigs(altered.own, altered.shared, self._broker_values)

    def _named(self, names: Iterable[str]) -> dict[str, Topic]:
        moment = self._moment()
        return {name: topic for name in names if (topic := self._known(self._uuids.get(name), moment)) is not None}

    def _identified(self, uuids: Iterable[UUID]) -> dict[UUID, Topic]:
        moment = self._moment()
        return {uuid: topic for uuid in uuids if (topic := self._known(uuid, moment)) is not None}

    def _moment(self) -> _Moment:
        return _Moment(monotonic_seconds(), self._changes)

    def _known(self, uuid: UUID | None, moment: _Moment) -> Topic | None:
        """A topic that was looked at lately."""
        entry = None if uuid is None else self._kept.get(uuid)
        return entry[0] if entry is not None and entry[1] >= moment.at - FRESH_SECONDS else None

    def _keep(self, stored: StoredTopic, seen: _Moment) -> Topic:
        broker = self._broker_configs(stored.inherited)
        topic = Topic(stored, broker, TopicSettings.from_overrides(stored.overrides, broker))
        # What was read before a change of ours may be what it changed.
        if seen.changes == self._changes:
            self._kept.pop(stored.uuid, None)
            self._kept[stored.uuid] = (topic, seen.at)
            self._uuids[stored.name] = stored.uuid
            self._keep_usual(topic, _usual(topic, seen.at))
            self._drop_old(monotonic_seconds() - FRESH_SECONDS)
        return topic

    def _drop_old(self, oldest: float) -> None:
        """Topics that nobody asks for, or that were deleted through another gateway, take no memory for long."""
        while self._kept:
            uuid, (_, seen_at) = next(iter(self._kept.items()))
            if seen_at >= oldest and len(self._kept) <= MAX_KEPT:
                return
            self._drop(uuid)

    def _drop(self, uuid: UUID) -> None:
        entry = self._kept.pop(uuid, None)
        # The name may belong to a topic created anew.
        if entry is not None and self._uuids.get(entry[0].name) == uuid:
            del self._uuids[entry[0].name]
            self.usual_by_name.pop(entry[0].name.encode(), None)
        self.usual_by_id.pop(uuid.bytes, None)

    def _keep_usual(self, topic: Topic, usual: UsualTopic | None) -> None:
        for kept, key in ((self.usual_by_name, topic.name.encode()), (self.usual_by_id, topic.uuid.bytes)):
            if usual is not None:
                kept[key] = usual
            else:
                kept.pop(key, None)

    def _forget(self, topic: Topic) -> None:
        self._changes += 1
        self._drop(topic.uuid)


def _usual(topic: Topic, seen_at: float) -> UsualTopic | None:
    settings = topic.settings
    if settings.log_append_time or settings.idempotency_keys is not None:
        return None
    return UsualTopic(
        seen_at,
        topic.stored.topic_id,
        topic.partition_count,
        settings.max_message_bytes,
        settings.max_decompressed_message_bytes,
        settings.timestamp_after_max_ms,
        settings.timestamp_before_max_ms,
        "compact" in settings.cleanup_policy,
    )
