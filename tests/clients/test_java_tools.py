"""Kafka's own console tools, started as their shell scripts start them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from tests.support import java
from tests.support.kafka_clients import ConfluentKafka, Record

RunTool = Callable[..., str]

NOON = 1_700_000_000_000


def test_kafka_topics(run_tool: RunTool, topic: str) -> None:
    created = run_tool(java.TOPICS, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=1000")
    assert f"Created topic {topic}." in created
    described = run_tool(java.TOPICS, "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 2\s+ReplicationFactor: 1", described)
    assert "retention.ms=1000" in described
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 2
    run_tool(java.TOPICS, "--alter", "--topic", topic, "--partitions", "3")
    assert topic in run_tool(java.TOPICS, "--list").splitlines()
    run_tool(java.TOPICS, "--delete", "--topic", topic)
    assert "does not exist" in run_tool(java.TOPICS, "--describe", "--topic", topic, fails=True)


def test_console_producer_and_consumer(run_tool: RunTool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    lines = "h1:v1,h1:v2\tk1\tfirst\nh2:\t\tempty key\nnone:x\tNULL\tNULL\nh:ü\tk4\tnaïve ☃\n"
    run_tool(
        java.CONSOLE_PRODUCER,
        "--topic", topic, "--compression-codec", "zstd",
        "--reader-property", "parse.headers=true", "--reader-property", "parse.key=true",
        "--reader-property", "null.marker=NULL",
        stdin=lines.encode(),
    )  # fmt: skip
    printed = run_tool(
        java.CONSOLE_CONSUMER,
        "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "4",
        "--formatter-property", "print.headers=true", "--formatter-property", "print.key=true",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.partition=true",
        "--formatter-property", "null.literal=NULL", "--timeout-ms", "20000",
    )  # fmt: skip
    assert printed.splitlines() == [
        "Partition:0\tOffset:0\th1:v1,h1:v2\tk1\tfirst",
        "Partition:0\tOffset:1\th2:\t\tempty key",
        "Partition:0\tOffset:2\tnone:x\tNULL\tNULL",
        "Partition:0\tOffset:3\th:ü\tk4\tnaïve ☃",
    ]
    from_two = run_tool(
        java.CONSOLE_CONSUMER,
        "--topic", topic, "--partition", "0", "--offset", "3", "--max-messages", "1", "--timeout-ms", "20000",
    )  # fmt: skip
    assert from_two == "naïve ☃\n"


def test_kafka_configs(run_tool: RunTool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run_tool(java.CONFIGS, "--alter", *entity, "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
    described = run_tool(java.CONFIGS, "--describe", *entity)
    assert "retention.ms=1000 sensitive=false" in described
    assert "cleanup.policy=compact,delete" in described
    run_tool(java.CONFIGS, "--alter", *entity, "--delete-config", "cleanup.policy")
    every = run_tool(java.CONFIGS, "--describe", "--all", *entity)
    assert "cleanup.policy=delete sensitive=false" in every
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in every


def test_kafka_configs_of_brokers(run_tool: RunTool) -> None:
    described = run_tool(java.CONFIGS, "--describe", "--all", "--entity-type", "brokers")
    assert "message.max.bytes=1048588" in described


def test_kafka_get_offsets(run_tool: RunTool, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    records = [Record(b"%d" % n, None, (), NOON + minute * 60_000) for n, minute in enumerate([10, 30, 20])]
    ConfluentKafka(bootstrap).produce(topic, records, partition=1)

    def offsets(*time: str) -> list[str]:
        return run_tool(java.GET_OFFSETS, "--topic", topic, *time).splitlines()

    assert offsets() == [f"{topic}:0:0", f"{topic}:1:3"]
    assert offsets("--time", "earliest") == [f"{topic}:0:0", f"{topic}:1:0"]
    assert offsets("--time", "max-timestamp")[-1] == f"{topic}:1:1"
    assert offsets("--time", str(NOON + 60_000 * 11))[-1] == f"{topic}:1:1"


def test_kafka_delete_records(run_tool: RunTool, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic()
    ConfluentKafka(bootstrap).produce(topic, [Record(b"%d" % n) for n in range(10)])
    wish = tmp_path / "delete.json"
    partitions = [{"topic": topic, "partition": 0, "offset": 4}]
    wish.write_text(json.dumps({"partitions": partitions, "version": 1}))
    printed = run_tool(java.DELETE_RECORDS, "--offset-json-file", str(wish))
    assert f"partition: {topic}-0\tlow_watermark: 4" in printed


def test_kafka_log_dirs(run_tool: RunTool, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    ConfluentKafka(bootstrap).produce(topic, [Record(b"x" * 1000)] * 100)
    printed = run_tool(java.LOG_DIRS, "--describe", "--topic-list", topic)
    (answer,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    (directory,) = answer["brokers"][0]["logDirs"]
    assert directory["error"] is None
    (partition,) = directory["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 50_000
    assert partition["isFuture"] is False


def test_kafka_cluster_features_and_api_versions(run_tool: RunTool, bootstrap: str) -> None:
    assert re.search(r"Cluster ID: \S+", run_tool(java.CLUSTER, "cluster-id", after=True))
    features = run_tool(java.FEATURES, "describe")
    assert re.search(r"Feature: metadata\.version\s.*FinalizedVersionLevel: \d", features)
    versions = run_tool(java.BROKER_API_VERSIONS)
    assert f"{bootstrap} (id: " in versions
    # What the newest Java client would use; a missing API reads UNSUPPORTED.
    for api in (
        "Produce(0)",
        "Fetch(1)",
        "ListOffsets(2)",
        "Metadata(3)",
        "CreateTopics(19)",
        "DeleteRecords(21)",
    ):
        assert re.search(rf"{re.escape(api)}: .*\[usable: \d+\]", versions), api
    usable = dict(re.findall(r"(\w+)\(\d+\): .*?\[usable: (\d+)\]", versions))
    assert (usable["Produce"], usable["Fetch"], usable["Metadata"]) == ("13", "18", "13")


def test_producer_performance(run_tool: RunTool, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    printed = run_tool(
        java.PRODUCER_PERFORMANCE,
        "--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1",
        "--command-property", "compression.type=lz4",
    )  # fmt: skip
    assert "20000 records sent" in printed
    client = ConfluentKafka(bootstrap)
    assert sum(client.positions(topic, partition=partition).end for partition in range(3)) == 20_000
