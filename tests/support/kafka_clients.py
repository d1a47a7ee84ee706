"""The Python and Java clients under one small surface, so that one test states a behaviour for all of them.

Nothing here knows of the gateway: each class only calls its library's public, documented interface.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

from tests.support import java

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Start: TypeAlias = int | Literal["beginning", "end"]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 60.0
LARGEST_REQUEST = 64 * 1024 * 1024

MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32

CREATE_TIME = 0
LOG_APPEND_TIME = 1


@dataclass(frozen=True)
class Record:
    """What a test hands to a producer. `timestamp_ms` None leaves it to the client's clock."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Received:
    """What a consumer handed to the application."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int

    @property
    def record(self) -> Record:
        return Record(self.value, self.key, self.headers, self.timestamp_ms)


@dataclass(frozen=True)
class Sent:
    """An acknowledged record; with acks=0 the offset is unknown and negative."""

    partition: int
    offset: int
    timestamp_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Refused:
    """A record that the producer reported as failed, with Kafka's error code."""

    code: int


@dataclass(frozen=True)
class Positions:
    """First and next offset of a partition, and the first offset at or after each time asked for."""

    beginning: int
    end: int
    by_time: dict[int, int | None]


class Client(Protocol):
    name: str

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = 0,
        codec: Codec = "none",
        acks: Literal[0, 1, "all"] = "all",
        idempotence: bool = False,
    ) -> list[Sent | Refused]:
        """Send all records with one producer and wait for what became of each."""

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: Start = "beginning",
        fetch_max_bytes: int | None = None,
    ) -> list[Received]:
        """Read until `count` records have come, or fewer when they do not come in time."""

    def positions(self, topic: str, times_ms: Sequence[int] = (), *, partition: int = 0) -> Positions:
        """What the consumer says of a partition's ends and of points in time."""


class ConfluentKafka:
    """librdkafka by way of confluent-kafka."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = 0,
        codec: Codec = "none",
        acks: Literal[0, 1, "all"] = "all",
        idempotence: bool = False,
    ) -> list[Sent | Refused]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "acks": str(acks),
                "enable.idempotence": idempotence,
                "linger.ms": 20,
                "message.max.bytes": LARGEST_REQUEST,
                "delivery.timeout.ms": int(WAIT_S * 1000),
            }
        )
        results: dict[int, Sent | Refused] = {}

        def remember(index: int) -> Callable[[Any, Any], None]:
            def report(error: Any, message: Any) -> None:
                if error is not None:
                    results[index] = Refused(error.code())
                else:
                    _, timestamp_ms = message.timestamp()
                    results[index] = Sent(message.partition(), message.offset(), timestamp_ms)

            return report

        for index, record in enumerate(records):
            place: dict[str, int] = {} if partition is None else {"partition": partition}
            if record.timestamp_ms is not None:
                place["timestamp"] = record.timestamp_ms
            while True:
                try:
                    producer.produce(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        on_delivery=remember(index),
                        **place,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(WAIT_S)
        return [results[index] for index in range(len(records))]

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: Start = "beginning",
        fetch_max_bytes: int | None = None,
    ) -> list[Received]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "unused: partitions are assigned",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        if fetch_max_bytes is not None:
            settings["fetch.message.max.bytes"] = fetch_max_bytes
            settings["fetch.max.bytes"] = max(fetch_max_bytes, 1024)
            settings["message.max.bytes"] = 1000  # librdkafka wants fetch.max.bytes at least as large
        offset = {"beginning": confluent_kafka.OFFSET_BEGINNING, "end": confluent_kafka.OFFSET_END}.get(
            start,  # type: ignore[arg-type]
            start,
        )
        consumer = confluent_kafka.Consumer(settings)
        received: list[Received] = []
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, int(offset))])
            deadline = time.monotonic() + WAIT_S
            while len(received) < count and time.monotonic() < deadline:
                for message in consumer.consume(min(count, 10_000), timeout=0.2):
                    if message.error() is not None:
                        raise confluent_kafka.KafkaException(message.error())
                    kind, timestamp_ms = message.timestamp()
                    received.append(
                        Received(
                            message.partition(),
                            message.offset(),
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                            timestamp_ms,
                            LOG_APPEND_TIME if kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME else CREATE_TIME,
                        )
                    )
        finally:
            consumer.close()
        return received

    def positions(self, topic: str, times_ms: Sequence[int] = (), *, partition: int = 0) -> Positions:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "unused: nothing is subscribed"}
        )
        try:
            beginning, end = consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(topic, partition), timeout=WAIT_S
            )
            by_time: dict[int, int | None] = {}
            for time_ms in times_ms:
                (found,) = consumer.offsets_for_times(
                    [confluent_kafka.TopicPartition(topic, partition, time_ms)], timeout=WAIT_S
                )
                by_time[time_ms] = None if found.offset == confluent_kafka.OFFSET_END else found.offset
            return Positions(beginning, end, by_time)
        finally:
            consumer.close()


class KafkaPython:
    """kafka-python, pure Python; its codecs come from python-snappy, lz4 and zstandard."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = 0,
        codec: Codec = "none",
        acks: Literal[0, 1, "all"] = "all",
        idempotence: bool = False,
    ) -> list[Sent | Refused]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=idempotence,
            linger_ms=20,
            max_request_size=LARGEST_REQUEST,
            retries=5,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(WAIT_S)
            results: list[Sent | Refused] = []
            for future in futures:
                try:
                    done = future.get(timeout=WAIT_S)
                    results.append(Sent(done.partition, done.offset, done.timestamp))
                except kafka.errors.BrokerResponseError as error:
                    results.append(Refused(error.errno))
            return results
        finally:
            producer.close(timeout=5)

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: Start = "beginning",
        fetch_max_bytes: int | None = None,
    ) -> list[Received]:
        limits = {}
        if fetch_max_bytes is not None:
            limits = {"fetch_max_bytes": fetch_max_bytes, "max_partition_fetch_bytes": fetch_max_bytes}
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="none", enable_auto_commit=False, **limits
        )
        received: list[Received] = []
        try:
            place = kafka.TopicPartition(topic, partition)
            consumer.assign([place])
            if start == "beginning":
                consumer.seek_to_beginning(place)
            elif start == "end":
                consumer.seek_to_end(place)
            else:
                consumer.seek(place, start)
            deadline = time.monotonic() + WAIT_S
            while len(received) < count and time.monotonic() < deadline:
                polled = consumer.poll(timeout_ms=200, max_records=max(count, 1))
                received.extend(_received(message) for message in polled.get(place, ()))
        finally:
            consumer.close()
        return received

    def positions(self, topic: str, times_ms: Sequence[int] = (), *, partition: int = 0) -> Positions:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.bootstrap)
        try:
            place = kafka.TopicPartition(topic, partition)
            found = {time_ms: consumer.offsets_for_times({place: time_ms})[place] for time_ms in times_ms}
            return Positions(
                consumer.beginning_offsets([place])[place],
                consumer.end_offsets([place])[place],
                {time_ms: None if one is None else one.offset for time_ms, one in found.items()},
            )
        finally:
            consumer.close()


class AioKafka:
    """aiokafka; each call runs its own event loop."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = 0,
        codec: Codec = "none",
        acks: Literal[0, 1, "all"] = "all",
        idempotence: bool = False,
    ) -> list[Sent | Refused]:
        async def send_all() -> list[Sent | Refused]:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks,
                enable_idempotence=idempotence,
                linger_ms=5,
                max_request_size=LARGEST_REQUEST,
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        partition=partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                await producer.flush()
                return [await self._result(future, acks) for future in futures]

        return asyncio.run(send_all())

    @staticmethod
    async def _result(future: Awaitable[Any], acks: Literal[0, 1, "all"]) -> Sent | Refused:
        try:
            done = await asyncio.wait_for(future, WAIT_S)
        except aiokafka.errors.BrokerResponseError as error:
            return Refused(error.errno)
        if acks == 0:
            return Sent(-1, -1)
        return Sent(done.partition, done.offset, done.timestamp)

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: Start = "beginning",
        fetch_max_bytes: int | None = None,
    ) -> list[Received]:
        async def read_all() -> list[Received]:
            limits = {}
            if fetch_max_bytes is not None:
                limits = {"fetch_max_bytes": fetch_max_bytes, "max_partition_fetch_bytes": fetch_max_bytes}
            received: list[Received] = []
            async with aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap, auto_offset_reset="none", enable_auto_commit=False, **limits
            ) as consumer:
                place = aiokafka.TopicPartition(topic, partition)
                consumer.assign([place])
                if start == "beginning":
                    await consumer.seek_to_beginning(place)
                elif start == "end":
                    await consumer.seek_to_end(place)
                else:
                    consumer.seek(place, start)
                deadline = time.monotonic() + WAIT_S
                while len(received) < count and time.monotonic() < deadline:
                    polled = await consumer.getmany(place, timeout_ms=200)
                    received.extend(_received(message) for message in polled.get(place, ()))
            return received

        return asyncio.run(read_all())

    def positions(self, topic: str, times_ms: Sequence[int] = (), *, partition: int = 0) -> Positions:
        async def find_all() -> Positions:
            async with aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap) as consumer:
                place = aiokafka.TopicPartition(topic, partition)
                found = {time_ms: (await consumer.offsets_for_times({place: time_ms}))[place] for time_ms in times_ms}
                return Positions(
                    (await consumer.beginning_offsets([place]))[place],
                    (await consumer.end_offsets([place]))[place],
                    {time_ms: None if one is None else one.offset for time_ms, one in found.items()},
                )

        return asyncio.run(find_all())


class JavaClient:
    """kafka-clients in the long-lived JVM."""

    name = "java"

    # The classes that the produce tests meet, by simple name.
    CODES: ClassVar[dict[str, int]] = {
        "RecordTooLargeException": MESSAGE_TOO_LARGE,
        "InvalidTimestampException": INVALID_TIMESTAMP,
        "InvalidRecordException": 87,
        "TimeoutException": 7,
    }

    def __init__(self, bootstrap: str, process: java.JavaClient) -> None:
        self.bootstrap = bootstrap
        self.process = process

    def call(self, command: str, **arguments: Any) -> Any:
        """An admin call: `arguments` and result are those of JavaClient.java."""
        return self.process.call(command, settings={"bootstrap.servers": self.bootstrap}, **arguments)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = 0,
        codec: Codec = "none",
        acks: Literal[0, 1, "all"] = "all",
        idempotence: bool = False,
    ) -> list[Sent | Refused]:
        return self.produce_many(
            [(topic, partition, record) for record in records],
            **{
                "compression.type": codec,
                "acks": str(acks),
                "enable.idempotence": str(idempotence).lower(),
            },
        )

    def produce_many(self, records: Sequence[tuple[str, int | None, Record]], **settings: str) -> list[Sent | Refused]:
        """Records of several topics and partitions in one producer, with any producer setting."""
        answers = self.process.call(
            "produce",
            settings={
                "bootstrap.servers": self.bootstrap,
                "linger.ms": "20",
                "max.request.size": str(LARGEST_REQUEST),
                "buffer.memory": str(2 * LARGEST_REQUEST),
                "delivery.timeout.ms": "40000",
                **settings,
            },
            records=[
                {
                    "topic": topic,
                    "partition": partition,
                    "timestamp": record.timestamp_ms,
                    "key": java.encode(record.key),
                    "value": java.encode(record.value),
                    "headers": [[name, java.encode(value)] for name, value in record.headers],
                }
                for topic, partition, record in records
            ],
        )
        return [
            Refused(self.CODES.get(answer["error"], -1))
            if "error" in answer
            else Sent(answer["partition"], answer["offset"], answer["timestamp"])
            for answer in answers
        ]

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: Start = "beginning",
        fetch_max_bytes: int | None = None,
    ) -> list[Received]:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "auto.offset.reset": "none",
            "enable.auto.commit": "false",
        }
        if fetch_max_bytes is not None:
            settings["fetch.max.bytes"] = settings["max.partition.fetch.bytes"] = str(fetch_max_bytes)
        answers = self.process.call("consume", settings=settings, assignment=[[topic, partition, start]], count=count)
        return [
            Received(
                answer["partition"],
                answer["offset"],
                java.decode(answer["key"]),
                java.decode(answer["value"]),
                tuple((name, java.decode(value)) for name, value in answer["headers"]),
                answer["timestamp"],
                answer["timestamp_type"],
            )
            for answer in answers
        ]

    def positions(self, topic: str, times_ms: Sequence[int] = (), *, partition: int = 0) -> Positions:
        answer = self.process.call(
            "positions",
            settings={"bootstrap.servers": self.bootstrap},
            partition=[topic, partition],
            times=list(times_ms),
        )
        return Positions(answer["beginning"], answer["end"], dict(zip(times_ms, answer["times"], strict=True)))


def _received(message: Any) -> Received:
    """The consumer records of kafka-python and aiokafka have the same fields."""
    return Received(
        message.partition,
        message.offset,
        message.key,
        message.value,
        tuple((name, value) for name, value in message.headers),
        message.timestamp,
        message.timestamp_type,
    )


def has_codec(client: Client, codec: Codec) -> bool:
    """kafka-python needs extra packages for its codecs; the other clients bring theirs."""
    if client.name != "kafka-python" or codec in ("none", "gzip"):
        return True
    with suppress(ImportError):
        __import__({"snappy": "snappy", "lz4": "lz4.frame", "zstd": "zstandard"}[codec])
        return True
    return False
