"""Configuration of whatever has some: topics and gateways are described and altered.

Kafka also has loggers, client metrics subscriptions and groups here; nothing of theirs is kept, and a change
is refused.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from gateway.broker.catalog import Catalog, Topic
from gateway.domain.configs import (
    BrokerConfigs,
    ConfigOp,
    DescribedConfig,
    apply_broker,
    apply_full,
    apply_incremental,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from gateway.domain.topics import validate_topic_name
from gateway.errors import InvalidConfig, InvalidRequest, KafkaError, UnknownTopicOrPartition

__all__ = ["Asked", "Configs", "ResourceType"]


class ResourceType(enum.IntEnum):
    """`resource_type` of the requests about configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Asked(NamedTuple):
    """A resource to describe; `keys` narrows the answer."""

    kind: int
    name: str
    keys: Collection[str] | None


class Configs:
    """Describes and alters resources."""

    def __init__(self, catalog: Catalog, *, node_id: int) -> None:
        self._catalog = catalog
        self._node_id = node_id

    async def describe(self, asked: Sequence[Asked]) -> list[list[DescribedConfig] | KafkaError]:
        """What is in force for each resource; one that is named twice is refused, for answers are long."""
        times = Counter((one.kind, one.name) for one in asked)
        topics = await self._catalog.find_now(list({name for kind, name in times if kind == ResourceType.TOPIC}))
        broker = await self._catalog.load_broker_configs()
        described: list[list[DescribedConfig] | KafkaError] = []
        for one in asked:
            try:
                if times[one.kind, one.name] > 1:
                    raise InvalidRequest("Each resource must appear at most once.")
                described.append(self._describe(one, topics, broker))
            except KafkaError as error:
                described.append(error)
        return described

    def _describe(self, asked: Asked, topics: Mapping[str, Topic], broker: BrokerConfigs) -> list[DescribedConfig]:
        kind, name, keys = asked
        match _resource_type(kind):
            case ResourceType.TOPIC:
                topic = _require(name, topics)
                return describe_topic(topic.overrides, topic.broker, keys)
            case ResourceType.BROKER:
                self._require_own_id(name)
                # The empty name asks for what was altered for all brokers.
                return describe_broker(broker, keys) if name else describe_broker_defaults(broker.dynamic_default, keys)
            case ResourceType.BROKER_LOGGER:
                if not name:
                    raise InvalidRequest("Broker id must not be empty")
                self._require_own_id(name)
            case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
                if not name:
                    raise InvalidRequest("the name must not be empty")
        return []

    async def alter(
        self, kind: int, name: str, ops: Sequence[ConfigOp], *, replaces_all: bool, validate_only: bool
    ) -> None:
        """Apply `ops` to a resource, all of them or none; `replaces_all` drops what they do not name."""
        match _resource_type(kind):
            case ResourceType.TOPIC:
                if not name:
                    raise InvalidRequest("Default topic resources are not allowed.")
                topic = _require(name, await self._catalog.find_now([name]))
                if replaces_all:
                    pairs = [(op.name, op.value) for op in ops]
                    await self._catalog.change_configs(
                        topic, lambda _: apply_full(pairs, topic.broker), validate_only=validate_only
                    )
                else:
                    change = partial(apply_incremental, ops=ops, broker=topic.broker)
                    await self._catalog.change_configs(topic, change, validate_only=validate_only)
            case ResourceType.BROKER:
                self._require_own_id(name)
                await self._catalog.change_broker_configs(
                    partial(apply_broker, ops=ops, replaces_all=replaces_all),
                    for_all=not name,
                    validate_only=validate_only,
                )
            case ResourceType.BROKER_LOGGER:
                self._require_own_id(name)
                _refuse(ops, "a gateway's loggers are set by log.level when it starts")
            case ResourceType.CLIENT_METRICS:
                _refuse(ops, "client metrics subscriptions are not kept")
            case ResourceType.GROUP:
                _refuse(ops, "groups have no configs of their own")

    def _require_own_id(self, name: str) -> None:
        if name and not (name.isascii() and name.isdigit()):
            raise InvalidRequest(f"Broker id must be an integer, but it is: {name[:100]}")
        if name and name != str(self._node_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self._node_id}, but received {name[:100]}")


def _require(name: str, topics: Mapping[str, Topic]) -> Topic:
    validate_topic_name(name)
    if name not in topics:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    return topics[name]


def _resource_type(kind: int) -> ResourceType:
    try:
        return ResourceType(kind)
    except ValueError:
        raise InvalidRequest(f"Unknown resource type {kind}") from None


def _refuse(ops: Sequence[ConfigOp], reason: str) -> None:
    if ops:
        raise InvalidConfig(f"Cannot alter {ops[0].name[:100]}: {reason}")
