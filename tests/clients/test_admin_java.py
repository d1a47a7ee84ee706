"""Admin calls by the Java client, which uses the newest version of each.

After a change the tests wait until they see it: Kafka's brokers learn of it later than its controller
answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kafka_clients import JavaClient, Record, Sent
from tests.support.waiting import wait_for

NewTopic = Callable[..., str]

NEVER_A_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAg"


@pytest.fixture
def create(java_client: JavaClient) -> Callable[..., dict[str, Any]]:
    """Create one topic and return its part of the answer."""

    def create_one(name: str, *, validate_only: bool = False, **spec: Any) -> dict[str, Any]:
        answer = java_client.call("create_topics", topics=[{"name": name, **spec}], validate_only=validate_only)
        if "error" not in answer[name] and not validate_only:
            wait_for(lambda: name in java_client.call("list_topics"), wanted=True)
        return answer[name]  # type: ignore[no-any-return]

    return create_one


def configs_of(java_client: JavaClient, topic: str) -> dict[str, Any]:
    (answer,) = java_client.call("describe_configs", resources=[["TOPIC", topic]])
    return answer  # type: ignore[no-any-return]


def value_of(java_client: JavaClient, topic: str, name: str) -> str:
    return configs_of(java_client, topic)[name]["value"]  # type: ignore[no-any-return]


def alter(java_client: JavaClient, topic: str, *operations: list[str | None], validate_only: bool = False) -> Any:
    (answer,) = java_client.call(
        "alter_configs", resources=[["TOPIC", topic, list(operations)]], validate_only=validate_only
    )
    return answer


# --- topics ---------------------------------------------------------------------------------------


def test_create_topics_answers_with_what_was_made(create: Callable[..., Any], topic: str) -> None:
    made = create(topic, partitions=3, replication_factor=1, configs={"retention.ms": "1000"})
    assert (made["partitions"], made["replication_factor"]) == (3, 1)
    assert len(made["topic_id"]) == 22
    assert made["topic_id"] != "A" * 22
    assert made["configs"]["retention.ms"]["value"] == "1000"
    assert made["configs"]["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert made["configs"]["cleanup.policy"]["value"] == "delete"
    assert made["configs"]["cleanup.policy"]["source"] == "DEFAULT_CONFIG"


def test_create_topics_takes_the_brokers_defaults(create: Callable[..., Any], topic: str) -> None:
    made = create(topic)
    assert (made["partitions"], made["replication_factor"]) == (1, 1)


def test_validate_only_creates_nothing(java_client: JavaClient, create: Callable[..., Any], topic: str) -> None:
    made = create(topic, partitions=3, validate_only=True)
    assert made["partitions"] == 3
    assert topic not in java_client.call("list_topics")
    assert create(topic, partitions=0, validate_only=True)["error"] == "InvalidPartitionsException"


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"partitions": 0}, "InvalidPartitionsException"),
        ({"partitions": -3}, "InvalidPartitionsException"),
        ({"partitions": 1, "replication_factor": 3}, "InvalidReplicationFactorException"),
        ({"configs": {"no.such.config": "1"}}, "InvalidConfigurationException"),
        ({"configs": {"retention.ms": "soon"}}, "InvalidConfigurationException"),
        ({"configs": {"cleanup.policy": "explode"}}, "InvalidConfigurationException"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    java_client: JavaClient, create: Callable[..., Any], topic: str, spec: dict[str, Any], error: str
) -> None:
    refused = create(topic, **spec)
    assert refused["error"] == error
    assert refused["message"]
    assert topic not in java_client.call("list_topics")


@pytest.mark.parametrize("name", [".", "..", "a/b", "a b", "ü", "x" * 250, "'; DROP TABLE kafka.topics; --"])
def test_an_invalid_topic_name_is_refused(create: Callable[..., Any], name: str) -> None:
    assert create(name)["error"] == "InvalidTopicException"


def test_names_may_use_every_allowed_character(create: Callable[..., Any], topic: str) -> None:
    assert "error" not in create(f"{topic}-Abc_1.z")
    assert "error" not in create((topic + "x" * 249)[:249])


def test_names_that_differ_in_dot_and_underscore_collide(create: Callable[..., Any], topic: str) -> None:
    assert "error" not in create(f"{topic}.a_b")
    assert create(f"{topic}.a.b")["error"] == "InvalidTopicException"


def test_one_refused_topic_leaves_the_others(java_client: JavaClient, create: Callable[..., Any], topic: str) -> None:
    create(topic)
    answer = java_client.call(
        "create_topics", topics=[{"name": topic}, {"name": f"{topic}.good"}, {"name": "not good"}]
    )
    assert answer[topic]["error"] == "TopicExistsException"
    assert answer["not good"]["error"] == "InvalidTopicException"
    assert answer[f"{topic}.good"]["partitions"] == 1
    wait_for(lambda: f"{topic}.good" in java_client.call("list_topics"), wanted=True)


def test_deleted_topics_are_gone_and_come_back_empty(
    java_client: JavaClient, create: Callable[..., Any], topic: str
) -> None:
    first = create(topic, partitions=2)
    java_client.produce(topic, [Record(b"old")] * 3)
    assert java_client.call("delete_topics", names=[topic, f"{topic}.never"])[topic] is None
    wait_for(lambda: topic in java_client.call("list_topics"), wanted=False)
    second = create(topic)
    assert second["topic_id"] != first["topic_id"]
    assert java_client.produce(topic, [Record(b"new")]) == [Sent(0, 0)]
    assert [one.value for one in java_client.consume(topic, 1)] == [b"new"]


def test_deleting_an_unknown_topic_is_refused(java_client: JavaClient, topic: str) -> None:
    answer = java_client.call("delete_topics", names=[topic])
    assert answer[topic]["error"] == "UnknownTopicOrPartitionException"


def test_topics_are_deleted_by_id(java_client: JavaClient, create: Callable[..., Any], topic: str) -> None:
    topic_id = create(topic)["topic_id"]
    answer = java_client.call("delete_topics", ids=[topic_id, NEVER_A_TOPIC_ID])
    assert answer[topic_id] is None
    assert answer[NEVER_A_TOPIC_ID]["error"] == "UnknownTopicIdException"
    wait_for(lambda: topic in java_client.call("list_topics"), wanted=False)


def test_describe_topics_by_name_and_by_id(java_client: JavaClient, create: Callable[..., Any], topic: str) -> None:
    topic_id = create(topic, partitions=3)["topic_id"]
    broker = java_client.call("describe_cluster")["nodes"][0][0]
    expected = {
        "name": topic,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [
            {"partition": number, "leader": broker, "replicas": [broker], "isr": [broker]} for number in range(3)
        ],
    }
    by_name = java_client.call("describe_topics", names=[topic, f"{topic}.never"])
    assert by_name[topic] == expected
    assert by_name[f"{topic}.never"]["error"] == "UnknownTopicOrPartitionException"
    by_id = java_client.call("describe_topics", ids=[topic_id, NEVER_A_TOPIC_ID])
    assert by_id[topic_id] == expected
    assert by_id[NEVER_A_TOPIC_ID]["error"] == "UnknownTopicIdException"


def test_describe_topics_pages_through_partitions(
    java_client: JavaClient, create: Callable[..., Any], topic: str
) -> None:
    """DescribeTopicPartitions hands out a cursor when the client takes few partitions at a time."""
    create(topic, partitions=7)
    create(f"{topic}.second", partitions=2)
    answer = java_client.call("describe_topics", names=[f"{topic}.second", topic], partition_limit=3)
    assert [one["partition"] for one in answer[topic]["partitions"]] == list(range(7))
    assert [one["partition"] for one in answer[f"{topic}.second"]["partitions"]] == [0, 1]


# --- partitions -----------------------------------------------------------------------------------


def test_partitions_are_added(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    java_client.produce(topic, [Record(b"before")], partition=1)
    assert java_client.call("create_partitions", totals={topic: 4}) == {topic: None}
    wait_for(lambda: len(java_client.call("describe_topics", names=[topic])[topic]["partitions"]), 4)
    assert java_client.produce(topic, [Record(b"after")], partition=3) == [Sent(3, 0)]
    assert [one.value for one in java_client.consume(topic, 1, partition=3)] == [b"after"]
    assert [one.value for one in java_client.consume(topic, 1, partition=1)] == [b"before"]


def test_validate_only_adds_no_partition(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    assert java_client.call("create_partitions", totals={topic: 4}, validate_only=True) == {topic: None}
    assert len(java_client.call("describe_topics", names=[topic])[topic]["partitions"]) == 2


@pytest.mark.parametrize("total", [0, 1, 2])
def test_partitions_only_grow(java_client: JavaClient, new_topic: NewTopic, total: int) -> None:
    topic = new_topic(2)
    answer = java_client.call("create_partitions", totals={topic: total, f"{topic}.never": 3})
    assert answer[topic]["error"] == "InvalidPartitionsException"
    assert answer[f"{topic}.never"]["error"] == "UnknownTopicOrPartitionException"


# --- configs --------------------------------------------------------------------------------------


def test_topic_configs_say_where_they_come_from(java_client: JavaClient, new_topic: NewTopic) -> None:
    configs = configs_of(java_client, new_topic(retention_ms="1000"))
    own = configs["retention.ms"]
    assert (own["value"], own["source"], own["type"]) == ("1000", "DYNAMIC_TOPIC_CONFIG", "LONG")
    assert own["synonyms"][0] == ["retention.ms", "1000", "DYNAMIC_TOPIC_CONFIG"]
    assert own["documentation"]
    default = configs["max.message.bytes"]
    assert (default["value"], default["source"], default["type"]) == ("1048588", "DEFAULT_CONFIG", "INT")
    assert default["synonyms"] == [["message.max.bytes", "1048588", "DEFAULT_CONFIG"]]
    assert not default["read_only"]
    assert not default["sensitive"]


def test_every_topic_config_of_kafka_is_described(java_client: JavaClient, new_topic: NewTopic) -> None:
    configs = configs_of(java_client, new_topic())
    assert configs["cleanup.policy"]["type"] == "LIST"
    assert configs["min.cleanable.dirty.ratio"]["type"] == "DOUBLE"
    assert configs["preallocate"]["type"] == "BOOLEAN"
    expected = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "delete.retention.ms": "86400000",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
    }
    assert {name: configs[name]["value"] for name in expected} == expected


def test_configs_of_an_unknown_topic_are_refused(java_client: JavaClient, topic: str) -> None:
    assert configs_of(java_client, topic)["error"] == "UnknownTopicOrPartitionException"


def test_configs_are_set_and_deleted_one_by_one(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(retention_ms="1000", max_message_bytes="5000")
    assert alter(java_client, topic, ["SET", "max.message.bytes", "7000"], ["DELETE", "retention.ms", None]) is None
    wait_for(lambda: value_of(java_client, topic, "max.message.bytes"), "7000")
    assert configs_of(java_client, topic)["retention.ms"]["source"] == "DEFAULT_CONFIG"


def test_list_configs_are_appended_and_subtracted(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert alter(java_client, topic, ["APPEND", "cleanup.policy", "compact"]) is None
    wait_for(lambda: value_of(java_client, topic, "cleanup.policy"), "delete,compact")
    assert alter(java_client, topic, ["SUBTRACT", "cleanup.policy", "delete"]) is None
    wait_for(lambda: value_of(java_client, topic, "cleanup.policy"), "compact")


def test_validate_only_alters_nothing(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert alter(java_client, topic, ["SET", "retention.ms", "1000"], validate_only=True) is None
    assert configs_of(java_client, topic)["retention.ms"]["source"] == "DEFAULT_CONFIG"
    refused = alter(java_client, topic, ["SET", "retention.ms", "soon"], validate_only=True)
    assert refused["error"] == "InvalidConfigurationException"


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ([["SET", "no.such.config", "1"]], "InvalidConfigurationException"),
        ([["SET", "retention.ms", "soon"]], "InvalidConfigurationException"),
        ([["SET", "retention.ms", "-5"]], "InvalidConfigurationException"),
        ([["APPEND", "retention.ms", "1"]], "InvalidConfigurationException"),
        ([["SET", "retention.ms", None]], "InvalidRequestException"),
        ([["SET", "retention.ms", "1"], ["DELETE", "retention.ms", None]], "InvalidRequestException"),
        (
            [["SET", "max.message.bytes", "7000"], ["SET", "no.such.config", "1"]],
            "InvalidConfigurationException",
        ),
    ],
)
def test_a_bad_alteration_is_refused_as_a_whole(
    java_client: JavaClient, new_topic: NewTopic, operations: list[list[str | None]], error: str
) -> None:
    topic = new_topic()
    assert alter(java_client, topic, *operations)["error"] == error
    configs = configs_of(java_client, topic)
    assert {entry["source"] for entry in configs.values()} & {"DYNAMIC_TOPIC_CONFIG"} == set()


def test_altering_an_unknown_topic_is_refused(java_client: JavaClient, topic: str) -> None:
    refused = alter(java_client, topic, ["SET", "retention.ms", "1"])
    assert refused["error"] == "UnknownTopicOrPartitionException"


def test_an_altered_limit_holds_for_the_next_batch(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes="2000")
    record = Record(b"x" * 3000)
    assert java_client.produce(topic, [record]) != [Sent(0, 0)]
    alter(java_client, topic, ["SET", "max.message.bytes", "5000"])
    wait_for(lambda: value_of(java_client, topic, "max.message.bytes"), "5000")
    assert java_client.produce(topic, [record]) == [Sent(0, 0)]


def test_broker_configs_are_described(java_client: JavaClient) -> None:
    broker = str(java_client.call("describe_cluster")["nodes"][0][0])
    (configs,) = java_client.call("describe_configs", resources=[["BROKER", broker]])
    assert configs["message.max.bytes"]["value"] == "1048588"
    assert configs["auto.create.topics.enable"]["value"] == "true"
    assert configs["auto.create.topics.enable"]["read_only"]
    assert configs["delete.topic.enable"]["value"] == "true"
    assert configs["num.partitions"]["value"] == "1"
    assert configs["num.partitions"]["type"] == "INT"
    assert configs["num.partitions"]["documentation"]
    assert "advertised.listeners" in configs


def test_a_dynamic_broker_config_is_the_topics_default(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    broker = str(java_client.call("describe_cluster")["nodes"][0][0])

    def alter_broker(*operation: str | None) -> Any:
        (answer,) = java_client.call("alter_configs", resources=[["BROKER", broker, [list(operation)]]])
        return answer

    def own() -> tuple[str, str]:
        (configs,) = java_client.call("describe_configs", resources=[["BROKER", broker]])
        return configs["log.retention.ms"]["value"], configs["log.retention.ms"]["source"]

    assert alter_broker("SET", "log.retention.ms", "123456789") is None
    try:
        wait_for(own, ("123456789", "DYNAMIC_BROKER_CONFIG"))
        wait_for(lambda: value_of(java_client, topic, "retention.ms"), "123456789")
        inherited = configs_of(java_client, topic)["retention.ms"]
        assert inherited["source"] == "DYNAMIC_BROKER_CONFIG"
        assert inherited["synonyms"][0] == ["log.retention.ms", "123456789", "DYNAMIC_BROKER_CONFIG"]
    finally:
        assert alter_broker("DELETE", "log.retention.ms", None) is None
    wait_for(lambda: value_of(java_client, topic, "retention.ms"), "604800000")


def test_a_read_only_broker_config_is_not_altered(java_client: JavaClient) -> None:
    broker = str(java_client.call("describe_cluster")["nodes"][0][0])
    (answer,) = java_client.call(
        "alter_configs", resources=[["BROKER", broker, [["SET", "auto.create.topics.enable", "false"]]]]
    )
    assert answer["error"] == "InvalidRequestException"


# --- records --------------------------------------------------------------------------------------


def test_records_are_deleted_before_an_offset(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        java_client.produce(topic, [Record(b"%d" % n) for n in range(10)], partition=partition)

    def delete(*before: list[Any]) -> Any:
        return java_client.call("delete_records", before=list(before))

    assert delete([topic, 0, 4], [topic, 1, 0]) == {f"{topic}-0": 4, f"{topic}-1": 0}
    assert delete([topic, 0, 2]) == {f"{topic}-0": 4}, "the beginning never moves back"
    assert [one.value for one in java_client.consume(topic, 6)] == [b"4", b"5", b"6", b"7", b"8", b"9"]
    beyond = delete([topic, 0, 11], [topic, 1, 3])
    assert beyond[f"{topic}-0"]["error"] == "OffsetOutOfRangeException"
    assert beyond[f"{topic}-1"] == 3, "a refused partition leaves the others"
    assert delete([topic, 0, -1]) == {f"{topic}-0": 10}, "-1 is the high watermark"
    assert java_client.produce(topic, [Record(b"next")]) == [Sent(0, 10)]


def test_records_of_a_compacted_topic_are_not_deleted(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    java_client.produce(topic, [Record(b"value", b"key")])
    answer = java_client.call("delete_records", before=[[topic, 0, 1]])
    assert answer[f"{topic}-0"]["error"] == "PolicyViolationException"


def test_a_record_without_key_does_not_enter_a_compacted_topic(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    refused = java_client.process.call(
        "produce",
        settings={"bootstrap.servers": java_client.bootstrap},
        records=[{"topic": topic, "partition": 0, "value": "dmFsdWU="}],
    )
    assert refused[0]["error"] == "InvalidRecordException"
    assert java_client.produce(topic, [Record(b"value", b"key")]) == [Sent(0, 0)]


# --- the cluster ----------------------------------------------------------------------------------


def test_describe_cluster_names_the_bootstrap_address(java_client: JavaClient) -> None:
    cluster = java_client.call("describe_cluster")
    host, port = java_client.bootstrap.split(":")
    assert [host, int(port)] in [node[1:] for node in cluster["nodes"]]
    assert cluster["controller"] in [node[0] for node in cluster["nodes"]]
    assert cluster["cluster_id"]
    assert java_client.call("describe_cluster")["cluster_id"] == cluster["cluster_id"]


def test_finalized_features_are_announced(java_client: JavaClient) -> None:
    assert java_client.call("describe_features")["metadata.version"] >= 20


def test_log_dirs_have_the_sizes_of_partitions(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    java_client.produce(topic, [Record(bytes([n % 251]) * 1000) for n in range(300)], partition=0)
    directories = java_client.call("describe_log_dirs")
    assert all(directory["error"] is None for directory in directories.values())
    sizes: dict[str, int] = {}
    for directory in directories.values():
        sizes.update(directory["sizes"])
    assert sizes[f"{topic}-0"] > 100_000
    assert f"{topic}-1" in sizes
