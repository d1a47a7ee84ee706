"""Where a partition begins and ends, and which offset belongs to a time, as every client asks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.kafka_clients import Client, Codec, JavaClient, Positions, Record, Sent

NOON = 1_700_000_000_000

NewTopic = Callable[..., str]

# Times out of order, as producers on several machines send them.
MINUTES = [10, 30, 20, 40, 35]


def at_minutes(minutes: list[int]) -> list[Record]:
    return [Record(b"%d" % minute, None, (), NOON + minute * 60_000) for minute in minutes]


def minute(value: float) -> int:
    return NOON + int(value * 60_000)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_time_finds_the_first_record_at_or_after_it(client: Client, new_topic: NewTopic, codec: Codec) -> None:
    topic = new_topic()
    client.produce(topic, at_minutes(MINUTES[:3]), codec=codec)
    client.produce(topic, at_minutes(MINUTES[3:]), codec=codec)
    expected = {
        minute(0): 0,
        minute(10): 0,
        minute(10.5): 1,
        minute(30): 1,
        minute(30.5): 3,
        minute(40): 3,
        minute(40.5): None,
    }
    assert client.positions(topic, list(expected)) == Positions(0, 5, expected)


def test_an_empty_partition_begins_and_ends_at_zero(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    assert client.positions(topic, [0, NOON], partition=1) == Positions(0, 0, {0: None, NOON: None})


def test_deleted_records_move_the_beginning(client: Client, new_topic: NewTopic, admin: AdminClient) -> None:
    topic = new_topic()
    client.produce(topic, at_minutes(MINUTES))
    admin.delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0)].result(60)
    assert client.positions(topic, [minute(0), minute(30)]) == Positions(2, 5, {minute(0): 2, minute(30): 3})
    assert [one.offset for one in client.consume(topic, 3, start="beginning")] == [2, 3, 4]
    # What is deleted stays deleted, and offsets are not used again.
    assert client.produce(topic, at_minutes([50])) == [Sent(0, 5)]


def test_a_start_outside_the_log_is_out_of_range(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, at_minutes(MINUTES))
    with pytest.raises(Exception, match=r"(?i)offset.*out.?of.?range|out of range|OffsetOutOfRange"):
        client.consume(topic, 1, start=6)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_max_timestamp_is_the_record_with_the_largest_time(
    java_client: JavaClient, admin: AdminClient, new_topic: NewTopic, codec: Codec
) -> None:
    topic = new_topic()
    java_client.produce(topic, at_minutes(MINUTES), codec=codec)
    java_client.produce(topic, at_minutes([5, 39, 38]), codec=codec)
    assert java_client.call("list_offsets", partitions=[[topic, 0, "max_timestamp"]]) == {f"{topic}-0": [3, minute(40)]}
    place = TopicPartition(topic, 0)
    found = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(60)
    assert (found.offset, found.timestamp) == (3, minute(40))


def test_max_timestamp_of_an_empty_partition_is_unknown(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert java_client.call("list_offsets", partitions=[[topic, 0, "max_timestamp"]]) == {f"{topic}-0": [-1, -1]}


@pytest.mark.parametrize("isolation", ["READ_UNCOMMITTED", "READ_COMMITTED"])
def test_admin_lists_offsets_of_several_partitions(
    java_client: JavaClient, admin: AdminClient, new_topic: NewTopic, isolation: str
) -> None:
    topic = new_topic(3)
    java_client.produce(topic, at_minutes(MINUTES), partition=0)
    java_client.produce(topic, at_minutes(MINUTES[:2]), partition=2)
    assert java_client.call(
        "list_offsets",
        isolation=isolation,
        partitions=[[topic, 0, "latest"], [topic, 1, "latest"], [topic, 2, str(minute(15))]],
    ) == {f"{topic}-0": [5, -1], f"{topic}-1": [0, -1], f"{topic}-2": [1, minute(30)]}
    futures = admin.list_offsets(
        {
            TopicPartition(topic, 0): OffsetSpec.earliest(),
            TopicPartition(topic, 1): OffsetSpec.latest(),
            TopicPartition(topic, 2): OffsetSpec.for_timestamp(minute(11)),
        },
        isolation_level=IsolationLevel[isolation],
    )
    assert {place.partition: future.result(60).offset for place, future in futures.items()} == {
        0: 0,
        1: 0,
        2: 1,
    }


def test_offsets_of_an_unknown_partition_are_refused(java_client: JavaClient, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    answer = java_client.process.call(
        "list_offsets",
        settings={
            "bootstrap.servers": java_client.bootstrap,
            "default.api.timeout.ms": "1500",
            "request.timeout.ms": "1000",
        },
        partitions=[[topic, 7, "latest"]],
    )
    # The Java client waits for a partition that may come; what ends the wait is its own timeout.
    assert answer[f"{topic}-7"]["error"] in ("TimeoutException", "UnknownTopicOrPartitionException")
