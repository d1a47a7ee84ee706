"""Admin calls by kafka-python, whose message classes come from Kafka's own schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kafka import TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    OffsetSpec,
)
from kafka.errors import (
    InvalidPartitionsError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.support.kafka_clients import KafkaPython, Record
from tests.support.waiting import wait_for

NOON = 1_700_000_000_000


@pytest.fixture
def kafka_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def topic_resource(name: str, configs: dict[str, object] | None = None) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC, name, configs)


def test_topics_are_created_described_and_deleted(kafka_admin: KafkaAdminClient, topic: str) -> None:
    spec = {topic: {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "1000"}}}
    validated = kafka_admin.create_topics(spec, validate_only=True)
    assert validated["topics"][0]["error_code"] == 0
    assert topic not in kafka_admin.list_topics()
    made = kafka_admin.create_topics(spec)["topics"][0]
    assert (made["name"], made["num_partitions"], made["replication_factor"]) == (topic, 3, 1)
    assert made["configs"]["retention.ms"]["value"] == "1000"
    wait_for(lambda: topic in kafka_admin.list_topics(), True)
    with pytest.raises(TopicAlreadyExistsError):
        kafka_admin.create_topics(spec)
    with pytest.raises(InvalidTopicError):
        kafka_admin.create_topics({"not good": {"num_partitions": 1, "replication_factor": 1}})

    (described,) = kafka_admin.describe_topics([topic])
    assert described["topic_id"] == made["topic_id"]
    assert [one["partition_index"] for one in described["partitions"]] == [0, 1, 2]
    assert all(one["leader_epoch"] >= 0 and one["offline_replicas"] == [] for one in described["partitions"])
    assert "READ" in described["authorized_operations"]

    kafka_admin.delete_topics([topic])
    wait_for(lambda: topic in kafka_admin.list_topics(), False)
    with pytest.raises(UnknownTopicOrPartitionError):
        kafka_admin.delete_topics([topic])


def test_partitions_are_added(kafka_admin: KafkaAdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    kafka_admin.create_partitions({topic: 4}, validate_only=True)
    assert len(kafka_admin.describe_topics([topic])[0]["partitions"]) == 2
    kafka_admin.create_partitions({topic: 4})
    wait_for(lambda: len(kafka_admin.describe_topics([topic])[0]["partitions"]), 4)
    with pytest.raises(InvalidPartitionsError):
        kafka_admin.create_partitions({topic: 3})


def test_configs_are_described_and_altered(kafka_admin: KafkaAdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="1000")

    def changed() -> dict[str, str]:
        described = kafka_admin.describe_configs([topic_resource(topic)])["topic"][topic]
        return {name: entry["value"] for name, entry in described.items()}

    assert changed() == {"retention.ms": "1000"}
    kafka_admin.alter_configs([topic_resource(topic, {"max.message.bytes": "7000"})])
    wait_for(changed, {"retention.ms": "1000", "max.message.bytes": "7000"})
    kafka_admin.alter_configs([topic_resource(topic, {"cleanup.policy": (AlterConfigOp.APPEND, "compact")})])
    wait_for(lambda: changed().get("cleanup.policy"), "delete,compact")
    kafka_admin.reset_configs([topic_resource(topic, {"retention.ms": None})])
    wait_for(lambda: "retention.ms" in changed(), False)
    refused = kafka_admin.alter_configs([topic_resource(topic, {"retention.ms": "soon"})], validate_only=True)
    assert "InvalidConfig" in str(refused["topic"][topic])
    every = kafka_admin.describe_configs([topic_resource(topic)], include_synonyms=True, config_filter="all")
    entry = every["topic"][topic]["retention.ms"]
    assert (entry["config_source"], entry["config_type"]) == ("DEFAULT_CONFIG", "LONG")


def test_the_older_alter_configs_replaces_all(kafka_admin: KafkaAdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="1000")
    kafka_admin.alter_configs([topic_resource(topic, {"max.message.bytes": "7000"})], incremental=False)

    def changed() -> dict[str, str]:
        described = kafka_admin.describe_configs([topic_resource(topic)])["topic"][topic]
        return {name: entry["value"] for name, entry in described.items()}

    # kafka-python adds what is set already, so nothing is lost.
    wait_for(changed, {"retention.ms": "1000", "max.message.bytes": "7000"})


def test_records_are_deleted(kafka_admin: KafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    KafkaPython(bootstrap).produce(topic, [Record(b"%d" % n) for n in range(10)])
    place = TopicPartition(topic, 0)
    assert kafka_admin.delete_records({place: 4})[place]["low_watermark"] == 4
    with pytest.raises(OffsetOutOfRangeError):
        kafka_admin.delete_records({place: 11})
    assert kafka_admin.delete_records({place: -1})[place]["low_watermark"] == 10


def test_offsets_are_listed(kafka_admin: KafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    records = [Record(b"%d" % minute, None, (), NOON + minute * 60_000) for minute in (10, 30, 20)]
    KafkaPython(bootstrap).produce(topic, records)
    place = TopicPartition(topic, 0)

    def find(spec: object) -> tuple[int, int]:
        found = kafka_admin.list_partition_offsets({place: spec})[place]
        return found.offset, found.timestamp

    assert find(OffsetSpec.EARLIEST) == (0, -1)
    assert find(OffsetSpec.LATEST) == (3, -1)
    assert find(OffsetSpec.MAX_TIMESTAMP) == (1, NOON + 30 * 60_000)
    assert find(OffsetSpec.EARLIEST_LOCAL) == (0, -1)
    assert find(OffsetSpec.LATEST_TIERED) == (-1, -1)


def test_the_cluster_its_features_and_directories(
    kafka_admin: KafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    cluster = kafka_admin.describe_cluster()
    assert bootstrap in [f"{one['host']}:{one['port']}" for one in cluster["brokers"]]
    assert cluster["controller_id"] in [one["broker_id"] for one in cluster["brokers"]]
    assert "CREATE" in cluster["authorized_operations"]
    assert kafka_admin.describe_features()["metadata.version"]["finalized"][1] >= 20

    topic = new_topic()
    KafkaPython(bootstrap).produce(topic, [Record(b"x" * 1000)] * 100)
    (broker,) = kafka_admin.describe_log_dirs({topic: [0]})
    topics = [one for directory in broker["log_dirs"] for one in directory["topics"]]
    assert [one["name"] for one in topics] == [topic]
    assert topics[0]["partitions"][0]["partition_size"] > 50_000


def test_describe_topic_partitions_gives_a_cursor(kafka_admin: KafkaAdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(5)
    page = kafka_admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert [one["partition_index"] for one in page["topics"][0]["partitions"]] == [0, 1, 2]
    assert page["next_cursor"]["topic_name"] == topic
    assert page["next_cursor"]["partition_index"] == 3
