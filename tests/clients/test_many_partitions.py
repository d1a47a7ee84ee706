"""Several topics and partitions in one request: each part has its own result, and none waits for another."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support.kafka_clients import MESSAGE_TOO_LARGE, JavaClient, Record, Refused, Sent

NewTopic = Callable[..., str]

PARTITIONS = 4
EACH = 25

# (topic, partition) -> values in order
Log = dict[tuple[str, int], list[bytes]]


@pytest.fixture
def three_topics(new_topic: NewTopic) -> list[str]:
    return [new_topic(PARTITIONS) for _ in range(3)]


def expected(topics: list[str]) -> Log:
    return {
        (topic, partition): [b"%s/%d/%d" % (topic.encode(), partition, n) for n in range(EACH)]
        for topic in topics
        for partition in range(PARTITIONS)
    }


def interleaved(log: Log) -> list[tuple[str, int, bytes]]:
    """Round and round the partitions, so that a client's batches fill together."""
    return [(topic, partition, values[n]) for n in range(EACH) for (topic, partition), values in log.items()]


def test_java_writes_and_reads_many(java_client: JavaClient, three_topics: list[str]) -> None:
    log = expected(three_topics)
    sent = java_client.produce_many([(topic, partition, Record(value)) for topic, partition, value in interleaved(log)])
    assert all(isinstance(one, Sent) for one in sent)
    records = java_client.process.call(
        "consume",
        settings={"bootstrap.servers": java_client.bootstrap, "enable.auto.commit": "false"},
        assignment=[[topic, partition, "beginning"] for topic, partition in log],
        count=len(log) * EACH,
    )
    received: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    for record in records:
        received[record["topic"], record["partition"]].append(record["offset"])
    assert received == {place: list(range(EACH)) for place in log}


def test_librdkafka_writes_and_reads_many(bootstrap: str, three_topics: list[str]) -> None:
    log = expected(three_topics)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    failures: list[Any] = []
    for topic, partition, value in interleaved(log):
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failures.extend([error] if error else [])
        )
    assert producer.flush(20) == 0
    assert failures == []
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(*place, confluent_kafka.OFFSET_BEGINNING) for place in log])
    received: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    deadline = time.monotonic() + 20
    while sum(len(values) for values in received.values()) < len(log) * EACH and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=0.2):
            assert message.error() is None
            received[message.topic(), message.partition()].append(message.value())
    consumer.close()
    assert received == log


def test_kafka_python_writes_and_reads_many(bootstrap: str, three_topics: list[str]) -> None:
    log = expected(three_topics)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=50)
    futures = [producer.send(topic, value, partition=partition) for topic, partition, value in interleaved(log)]
    producer.flush(20)
    assert all(future.succeeded() for future in futures)
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    consumer.assign([kafka.TopicPartition(*place) for place in log])
    consumer.seek_to_beginning()
    received: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    deadline = time.monotonic() + 20
    while sum(len(values) for values in received.values()) < len(log) * EACH and time.monotonic() < deadline:
        for place, messages in consumer.poll(timeout_ms=200).items():
            received[place.topic, place.partition].extend(message.value for message in messages)
    consumer.close()
    assert received == log


async def test_aiokafka_writes_and_reads_many(bootstrap: str, three_topics: list[str]) -> None:
    log = expected(three_topics)
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        futures = [
            await producer.send(topic, value, partition=partition) for topic, partition, value in interleaved(log)
        ]
        await asyncio.gather(*futures)
    received: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign([aiokafka.TopicPartition(*place) for place in log])
        await consumer.seek_to_beginning()
        async with asyncio.timeout(20):
            while sum(len(values) for values in received.values()) < len(log) * EACH:
                for place, messages in (await consumer.getmany(timeout_ms=200)).items():
                    received[place.topic, place.partition].extend(message.value for message in messages)
    assert received == log


@pytest.mark.parametrize("idempotence", ["true", "false"])
def test_a_refused_partition_leaves_the_others(java_client: JavaClient, new_topic: NewTopic, idempotence: str) -> None:
    wide, narrow = new_topic(2), new_topic(2, max_message_bytes="2000")
    big, small = Record(os.urandom(3000)), Record(b"small")
    sent = java_client.produce_many(
        [(narrow, 0, big), (wide, 0, big), (narrow, 1, small), (wide, 1, small)],
        **{"linger.ms": "200", "enable.idempotence": idempotence},
    )
    assert sent == [Refused(MESSAGE_TOO_LARGE), Sent(0, 0), Sent(1, 0), Sent(1, 0)]
    # The refused batch had taken a sequence; the next producer and the partition are as if it had never been.
    assert java_client.produce(narrow, [small]) == [Sent(0, 0)]


def test_java_splits_a_batch_that_is_too_large(java_client: JavaClient, new_topic: NewTopic) -> None:
    """MESSAGE_TOO_LARGE for a batch of several records makes the Java producer send it in halves."""
    topic = new_topic(max_message_bytes="5000")
    records = [Record(os.urandom(1000)) for _ in range(20)]
    sent = java_client.produce_many(
        [(topic, 0, record) for record in records], **{"batch.size": "30000", "linger.ms": "500"}
    )
    assert sent == [Sent(0, offset) for offset in range(20)]
    assert [one.value for one in java_client.consume(topic, 20)] == [record.value for record in records]


def test_a_small_fetch_limit_starves_no_partition(java_client: JavaClient, new_topic: NewTopic) -> None:
    """One partition has far more than a fetch may carry; the others are read before it is finished."""
    topic = new_topic(6)
    heavy = [Record(os.urandom(10_000)) for _ in range(200)]
    java_client.produce(topic, heavy, partition=0)
    for partition in range(1, 6):
        java_client.produce(topic, [Record(b"light")] * 5, partition=partition)
    records = java_client.process.call(
        "consume",
        settings={
            "bootstrap.servers": java_client.bootstrap,
            "enable.auto.commit": "false",
            "fetch.max.bytes": "50000",
            "max.partition.fetch.bytes": "50000",
            "max.poll.records": "20",
        },
        assignment=[[topic, partition, "beginning"] for partition in range(6)],
        count=225,
    )
    assert len(records) == 225
    last_light = max(index for index, record in enumerate(records) if record["partition"] != 0)
    assert last_light < 150, "the light partitions waited for the heavy one"
