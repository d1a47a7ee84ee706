"""Kafka's own tools for groups: kafka-consumer-groups in all it can do, the console consumer, the performance tool."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support import java
from tests.support.group_auditor import Worker
from tests.support.kafka_clients import ConfluentKafka, Record
from tests.support.waiting import wait_for

RunTool = Callable[..., str]
NOON = 1_700_000_000_000
"""Records are a second apart from then on."""


@pytest.fixture
def group() -> str:
    return f"tools-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def filled_topic(bootstrap: str, new_topic: Callable[..., str]) -> str:
    """Two partitions with ten records each."""
    topic = new_topic(2)
    for partition in range(2):
        records = [Record(b"%d" % number, timestamp_ms=NOON + number * 1000) for number in range(10)]
        ConfluentKafka(bootstrap).produce(topic, records, partition=partition)
    return topic


@pytest.fixture
def groups_tool(run_tool: RunTool) -> RunTool:
    def run(*arguments: str, **options: bool) -> str:
        return run_tool(java.CONSUMER_GROUPS, *arguments, **options)

    return run


def commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(
        offsets=[TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)], asynchronous=False
    )
    consumer.close()


def offsets_of(printed: str, topic: str) -> dict[int, int]:
    """New offsets by partition, as the tool prints them after a reset."""
    return {int(p): int(o) for p, o in re.findall(rf"{re.escape(topic)}\s+(\d+)\s+(\d+)", printed)}


def test_list_and_describe_a_live_group(groups_tool: RunTool, bootstrap: str, group: str, filled_topic: str) -> None:
    with Worker("confluent-kafka", bootstrap, group, filled_topic) as worker:
        worker.add()
        wait_for(lambda: worker.count("committed") >= 2, wanted=True, timeout_s=30)
        assert group in groups_tool("--list").splitlines()
        listed = groups_tool("--list", "--state", "Stable", "--type", "classic")
        assert re.search(rf"{group}\s+Classic\s+Stable", listed, re.IGNORECASE)
        offsets = groups_tool("--describe", "--group", group)
        for partition in range(2):
            assert re.search(rf"{group}\s+{filled_topic}\s+{partition}\s+10\s+10\s+0\s+rdkafka-\S+\s+/127", offsets)
        members = groups_tool("--describe", "--group", group, "--members", "--verbose")
        assert re.search(rf"{group}\s+rdkafka-\S+\s+/127\.0\.0\.1\s+rdkafka\s+2\b.*{filled_topic}", members)
        assert re.search(rf"{group}.*range\s+Stable\s+1\b", groups_tool("--describe", "--group", group, "--state"))
        assert "is not empty" in groups_tool("--delete", "--group", group)
        refused = groups_tool("--delete-offsets", "--group", group, "--topic", filled_topic)
        assert "actively subscribed" in refused


def test_reset_offsets_by_each_mode(
    groups_tool: RunTool, bootstrap: str, group: str, filled_topic: str, tmp_path: Path
) -> None:
    commit(bootstrap, group, filled_topic, 4, 6)

    def reset(*mode: str, execute: bool = True) -> dict[int, int]:
        do = "--execute" if execute else "--dry-run"
        return offsets_of(
            groups_tool("--reset-offsets", "--group", group, "--topic", filled_topic, *mode, do), filled_topic
        )

    assert reset("--to-earliest", execute=False) == {0: 0, 1: 0}
    assert reset("--to-current") == {0: 4, 1: 6}
    assert reset("--shift-by", "-3") == {0: 1, 1: 3}
    assert reset("--to-offset", "5") == {0: 5, 1: 5}
    assert reset("--to-datetime", "2023-11-14T22:13:27.000") == {0: 7, 1: 7}
    assert reset("--by-duration", "P10000D") == {0: 0, 1: 0}
    assert reset("--to-latest") == {0: 10, 1: 10}
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{filled_topic},0,2\n{filled_topic},1,3\n")
    assert reset("--from-file", str(plan)) == {0: 2, 1: 3}
    assert re.search(
        rf"{filled_topic}\s+0\s+2\s+10\s+8\s+-[\s\S]*{filled_topic}\s+1\s+3\s+10\s+7\s+-",
        groups_tool("--describe", "--group", group),
    )


def test_delete_offsets_and_groups(groups_tool: RunTool, bootstrap: str, group: str, filled_topic: str) -> None:
    commit(bootstrap, group, filled_topic, 4, 6)
    deleted = groups_tool("--delete-offsets", "--group", group, "--topic", f"{filled_topic}:1")
    assert re.search(rf"{filled_topic}\s+1\s+Successful", deleted)
    described = groups_tool("--describe", "--group", group, "--offsets")
    assert re.search(rf"{filled_topic}\s+0\s+4", described)
    assert not re.search(rf"{filled_topic}\s+1\s+", described)
    assert "successful" in groups_tool("--delete", "--group", group)
    assert group not in groups_tool("--list").splitlines()
    assert "GroupIdNotFoundException" in groups_tool("--describe", "--group", group)


def test_the_console_consumer_goes_on_where_its_group_was(run_tool: RunTool, group: str, filled_topic: str) -> None:
    def consume(count: int) -> list[str]:
        return run_tool(
            java.CONSOLE_CONSUMER,
            "--topic", filled_topic, "--group", group, "--max-messages", str(count), "--timeout-ms", "20000",
            "--command-property", "auto.offset.reset=earliest",
        ).splitlines()  # fmt: skip

    first, rest = consume(8), consume(12)
    assert sorted(first + rest) == sorted(2 * [str(number) for number in range(10)])


def test_the_consumer_performance_tool(run_tool: RunTool, group: str, filled_topic: str) -> None:
    printed = run_tool(
        java.CONSUMER_PERFORMANCE,
        "--topic", filled_topic, "--group", group, "--messages", "20", "--timeout", "20000",
    )  # fmt: skip
    assert re.search(r"^[^,]+, [^,]+, [\d.]+, [\d.]+, 20, ", printed, re.MULTILINE), printed
