"""Admin calls by confluent-kafka: librdkafka's versions of the requests, its own names for the errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.support.kafka_clients import ConfluentKafka, Record
from tests.support.waiting import wait_for

WAIT_S = 60


def error_code(future: Any) -> int:
    with pytest.raises(KafkaException) as raised:
        future.result(WAIT_S)
    error: KafkaError = raised.value.args[0]
    return error.code()


def configs_of(admin: AdminClient, resource: ConfigResource) -> dict[str, Any]:
    (future,) = admin.describe_configs([resource]).values()
    return future.result(WAIT_S)  # type: ignore[no-any-return]


def alter(admin: AdminClient, topic: str, *entries: ConfigEntry, validate_only: bool = False) -> Any:
    (future,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))],
        validate_only=validate_only,
    ).values()
    return future


def test_topics_are_created_listed_and_deleted(admin: AdminClient, topic: str) -> None:
    futures = admin.create_topics(
        [
            NewTopic(topic, 3, 1, config={"retention.ms": "1000"}),
            NewTopic("not good", 1, 1),
            NewTopic(f"{topic}.replicas", 1, 5),
            NewTopic(f"{topic}.config", 1, 1, config={"no.such.config": "1"}),
        ]
    )
    assert futures[topic].result(WAIT_S) is None
    assert error_code(futures["not good"]) == KafkaError.TOPIC_EXCEPTION
    assert error_code(futures[f"{topic}.replicas"]) == KafkaError.INVALID_REPLICATION_FACTOR
    assert error_code(futures[f"{topic}.config"]) == KafkaError.INVALID_CONFIG
    assert error_code(admin.create_topics([NewTopic(topic, 1, 1)])[topic]) == KafkaError.TOPIC_ALREADY_EXISTS

    wait_for(lambda: topic in admin.list_topics(timeout=WAIT_S).topics, True)
    listed = admin.list_topics(timeout=WAIT_S)
    assert sorted(listed.topics[topic].partitions) == [0, 1, 2]
    assert {partition.leader for partition in listed.topics[topic].partitions.values()} <= set(listed.brokers)
    assert listed.cluster_id

    assert admin.delete_topics([topic])[topic].result(WAIT_S) is None
    wait_for(lambda: topic in admin.list_topics(timeout=WAIT_S).topics, False)
    assert error_code(admin.delete_topics([topic])[topic]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_validate_only_creates_no_topic(admin: AdminClient, topic: str) -> None:
    assert admin.create_topics([NewTopic(topic, 3, 1)], validate_only=True)[topic].result(WAIT_S) is None
    assert topic not in admin.list_topics(timeout=WAIT_S).topics


def test_partitions_grow_and_never_shrink(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)

    def grow(total: int, *, validate_only: bool = False) -> Any:
        return admin.create_partitions([NewPartitions(topic, total)], validate_only=validate_only)[topic]

    assert grow(5, validate_only=True).result(WAIT_S) is None
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 2
    assert grow(5).result(WAIT_S) is None
    wait_for(lambda: len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions), 5)
    assert error_code(grow(4)) == KafkaError.INVALID_PARTITIONS


def test_describe_topics_with_partitions_and_id(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    futures = admin.describe_topics(TopicCollection([topic, f"{topic}.never"]))
    described = futures[topic].result(WAIT_S)
    assert described.name == topic
    assert not described.is_internal
    assert str(described.topic_id) != "A" * 22
    assert [partition.id for partition in described.partitions] == [0, 1]
    assert all(partition.leader.id == partition.isr[0].id for partition in described.partitions)
    assert error_code(futures[f"{topic}.never"]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_describe_cluster(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster().result(WAIT_S)
    assert cluster.cluster_id
    assert bootstrap in [f"{node.host}:{node.port}" for node in cluster.nodes]
    assert cluster.controller.id in [node.id for node in cluster.nodes]


def test_configs_have_source_and_synonyms(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    configs = configs_of(admin, ConfigResource(ResourceType.TOPIC, new_topic(retention_ms="1000")))
    own, default = configs["retention.ms"], configs["max.message.bytes"]
    assert (own.value, own.source) == ("1000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    assert (default.value, default.source) == ("1048588", ConfigSource.DEFAULT_CONFIG.value)
    assert default.is_default
    assert "message.max.bytes" in default.synonyms


def test_configs_of_a_broker(admin: AdminClient) -> None:
    broker = next(iter(admin.list_topics(timeout=WAIT_S).brokers))
    configs = configs_of(admin, ConfigResource(ResourceType.BROKER, str(broker)))
    assert configs["message.max.bytes"].value == "1048588"
    assert configs["auto.create.topics.enable"].is_read_only


def test_configs_are_altered_incrementally(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="1000")

    def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
        return ConfigEntry(name, value, incremental_operation=operation)

    change = (
        entry("retention.ms", None, AlterConfigOpType.DELETE),
        entry("max.message.bytes", "7000", AlterConfigOpType.SET),
        entry("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert alter(admin, topic, *change, validate_only=True).result(WAIT_S) is None
    assert configs_of(admin, resource)["retention.ms"].value == "1000"
    assert alter(admin, topic, *change).result(WAIT_S) is None
    wait_for(lambda: configs_of(admin, resource)["retention.ms"].value, "604800000")
    configs = configs_of(admin, resource)
    assert configs["max.message.bytes"].value == "7000"
    assert configs["cleanup.policy"].value == "delete,compact"
    unknown = alter(admin, topic, entry("no.such.config", "1", AlterConfigOpType.SET))
    assert error_code(unknown) == KafkaError.INVALID_CONFIG


def test_alter_configs_replaces_all_of_them(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    """The older AlterConfigs: what is not in the request goes back to its default."""
    topic = new_topic(retention_ms="1000", max_message_bytes="5000")
    wanted = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "7000"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        (future,) = admin.alter_configs([wanted]).values()
    assert future.result(WAIT_S) is None
    resource = ConfigResource(ResourceType.TOPIC, topic)
    wait_for(lambda: configs_of(admin, resource)["max.message.bytes"].value, "7000")
    assert configs_of(admin, resource)["retention.ms"].value == "604800000"


def test_records_are_deleted(admin: AdminClient, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    ConfluentKafka(bootstrap).produce(topic, [Record(b"%d" % n) for n in range(10)])
    place = TopicPartition(topic, 0)
    assert admin.delete_records([TopicPartition(topic, 0, 6)])[place].result(WAIT_S).low_watermark == 6
    beyond = admin.delete_records([TopicPartition(topic, 0, 11)])[place]
    assert error_code(beyond) == KafkaError.OFFSET_OUT_OF_RANGE
    assert [one.value for one in ConfluentKafka(bootstrap).consume(topic, 4)] == [b"6", b"7", b"8", b"9"]
