"""DeleteRecords, OffsetForLeaderEpoch and DescribeLogDirs in raw requests of every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.kafka_clients import KafkaPython, Record
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

NewTopic = Callable[..., str]

OUT_OF_RANGE, UNKNOWN_TOPIC, POLICY_VIOLATION, FENCED_EPOCH, UNKNOWN_EPOCH = 1, 3, 44, 74, 75


def produce(bootstrap: str, topic: str, count: int, *, partition: int = 0, size: int = 10) -> None:
    KafkaPython(bootstrap).produce(topic, [Record(b"x" * size) for _ in range(count)], partition=partition)


def delete_before(
    wire: WireClient, topic: str, *wishes: tuple[int, int], version: int = 2
) -> list[tuple[int, int, int]]:
    """(partition, low watermark, error code) for each wish of (partition, offset), sorted."""
    partitions = [{"partition_index": partition, "offset": offset} for partition, offset in wishes]
    answer = wire.call("DeleteRecords", version, topics=[{"name": topic, "partitions": partitions}], timeout_ms=10_000)
    (result,) = answer["topics"]
    assert result["name"] == topic
    return sorted((one["partition_index"], one["low_watermark"], one["error_code"]) for one in result["partitions"])


def fetch(wire: WireClient, topic: str, offset: int) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
    answer = wire.call("Fetch", 12, max_wait_ms=0, min_bytes=0, topics=[{"topic": topic, "partitions": [partition]}])
    return answer["responses"][0]["partitions"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", range(0, 3))
def test_records_are_deleted_in_every_version(
    wire: WireClient, wire_bootstrap: str, new_topic: NewTopic, version: int
) -> None:
    name = new_topic(2)
    produce(wire_bootstrap, name, 10)
    assert delete_before(wire, name, (0, 4), (1, 0), version=version) == [(0, 4, 0), (1, 0, 0)]
    assert delete_before(wire, name, (0, 2), version=version) == [(0, 4, 0)], "the log's start never moves back"
    assert delete_before(wire, name, (0, -1), version=version) == [(0, 10, 0)]


def test_what_cannot_be_deleted_is_refused_by_itself(
    wire: WireClient, wire_bootstrap: str, new_topic: NewTopic
) -> None:
    name = new_topic(3)
    produce(wire_bootstrap, name, 10)
    produce(wire_bootstrap, name, 10, partition=1)
    wishes = [(0, 11), (1, 5), (2, -2), (3, 0), (-1, 0)]
    assert delete_before(wire, name, *wishes) == [
        (-1, -1, UNKNOWN_TOPIC),
        (0, -1, OUT_OF_RANGE),
        (1, 5, 0),
        (2, -1, OUT_OF_RANGE),
        (3, -1, UNKNOWN_TOPIC),
    ]
    assert delete_before(wire, f"{name}-never", (0, 0)) == [(0, -1, UNKNOWN_TOPIC)]


def test_records_of_a_compacted_topic_stay(wire: WireClient, wire_bootstrap: str, new_topic: NewTopic) -> None:
    name = new_topic(cleanup_policy="compact")
    KafkaPython(wire_bootstrap).produce(name, [Record(b"value", b"key")])
    assert delete_before(wire, name, (0, 1)) == [(0, -1, POLICY_VIOLATION)]


def test_the_next_fetch_sees_the_new_start(wire: WireClient, wire_bootstrap: str, new_topic: NewTopic) -> None:
    name = new_topic()
    produce(wire_bootstrap, name, 10)
    wait_for(lambda: fetch(wire, name, 0)["high_watermark"], 10)
    assert delete_before(wire, name, (0, 4)) == [(0, 4, 0)]
    assert fetch(wire, name, 3)["error_code"] == OUT_OF_RANGE
    after = fetch(wire, name, 4)
    assert (after["error_code"], after["log_start_offset"], after["high_watermark"]) == (0, 4, 10)


def test_deleted_records_leave_the_table(wire: WireClient, wire_gateway: GatewayProcess, new_topic: NewTopic) -> None:
    name = new_topic()
    produce(wire_gateway.bootstrap, name, 10)
    delete_before(wire, name, (0, 7))

    def kept() -> list[int]:
        with psycopg.connect(wire_gateway.database_url) as database:
            rows = database.execute(
                'SELECT "offset" FROM kafka.messages JOIN kafka.topics USING (topic_id)'
                ' WHERE name = %s ORDER BY "offset"',
                [name],
            )
            return [offset for (offset,) in rows]

    wait_for(kept, [7, 8, 9])


@pytest.mark.parametrize("version", range(2, 5))
def test_a_leader_epoch_ends_with_the_log(
    wire: WireClient, wire_bootstrap: str, new_topic: NewTopic, version: int
) -> None:
    name = new_topic()
    produce(wire_bootstrap, name, 10)

    def ask(topic: str, *, partition: int = 0, current: int = -1, wanted: int) -> tuple[int, int, int]:
        entry = {"partition": partition, "current_leader_epoch": current, "leader_epoch": wanted}
        replica = {"replica_id": -1} if version >= 3 else {}
        answer = wire.call("OffsetForLeaderEpoch", version, topics=[{"topic": topic, "partitions": [entry]}], **replica)
        (result,) = answer["topics"][0]["partitions"]
        assert result["partition"] == partition
        return result["error_code"], result["leader_epoch"], result["end_offset"]

    assert ask(name, wanted=0) == (0, 0, 10)
    assert ask(name, current=0, wanted=0) == (0, 0, 10)
    assert ask(name, wanted=3) == (0, -1, -1)
    assert ask(name, wanted=-1) == (0, -1, -1)
    assert ask(name, current=5, wanted=0) == (UNKNOWN_EPOCH, -1, -1)
    assert ask(name, current=-2, wanted=0) == (FENCED_EPOCH, -1, -1), "only -1 is no epoch"
    assert ask(name, partition=7, wanted=0) == (UNKNOWN_TOPIC, -1, -1)
    assert ask(f"{name}-never", wanted=0) == (UNKNOWN_TOPIC, -1, -1)


def sizes(wire: WireClient, topics: list[dict[str, Any]] | None, *, version: int = 4) -> dict[tuple[str, int], int]:
    answer = wire.call("DescribeLogDirs", version, topics=topics)
    (directory,) = answer["results"]
    assert directory["error_code"] == 0
    return {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for topic in directory["topics"]
        for partition in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_sizes_are_told_in_every_version(
    wire: WireClient, wire_bootstrap: str, new_topic: NewTopic, version: int
) -> None:
    name = new_topic(2)
    produce(wire_bootstrap, name, 300, size=1000)
    everything = sizes(wire, None, version=version)
    assert everything[name, 0] > 300_000
    assert everything[name, 1] < 100_000
    wanted = [{"topic": name, "partitions": [0, 7]}, {"topic": f"{name}-never", "partitions": [0]}]
    assert list(sizes(wire, wanted, version=version)) == [(name, 0)]
    assert sizes(wire, [], version=version) == {}


def test_the_sizes_of_partitions_add_up_to_the_tables(
    wire: WireClient, wire_gateway: GatewayProcess, new_topic: NewTopic
) -> None:
    name = new_topic(3)
    for partition, count in enumerate((100, 50, 7)):
        produce(wire_gateway.bootstrap, name, count, partition=partition, size=1000)
    with psycopg.connect(wire_gateway.database_url) as database:
        found = database.execute("SELECT size_bytes FROM kafka.topic_sizes WHERE topic = %s", [name]).fetchone()
    shares = sizes(wire, [{"topic": name, "partitions": [0, 1, 2]}])
    assert found is not None
    assert sum(shares.values()) == found[0]
    assert shares[name, 0] == pytest.approx(2 * shares[name, 1], abs=2)
