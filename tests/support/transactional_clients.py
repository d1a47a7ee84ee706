"""Transactional clients under one small surface, so that one test states a behaviour for all of them.

Nothing here knows of the gateway: each class only calls its library's public, documented interface.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
from aiokafka.structs import TopicPartition as AioTopicPartition

from tests.support import java

T = TypeVar("T")
WAIT_S = 60.0
SOURCE = Path(__file__).with_name("TransactionalClient.java")
_numbers = itertools.count(1)


class Fenced(Exception):
    """Another instance has taken over: this producer is of no use any more."""


class Failed(Exception):
    """The transaction cannot be committed."""


class Producer(Protocol):
    """One instance of a transactional producer. What goes wrong is `Fenced` or `Failed`."""

    def begin(self) -> None: ...

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        """Send, and wait until the broker has the records."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...

    def copy(self, source: str, target: str, *, group: str, count: int) -> int:
        """Consume `count` records, produce copies, and commit the offsets, transaction by transaction.

        Every third one is aborted and done again.
        """


class Client(Protocol):
    def open(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Producer: ...

    def read(self, topic: str, *, partition: int = 0, committed: bool = True) -> list[str]:
        """Everything up to where the partition ends for this consumer, which must get there."""


# --- librdkafka ------------------------------------------------------------------------------


class ConfluentProducer:
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, 30_000),
                "linger.ms": 5,
                "log_level": 2,
            }
        )
        self._do(lambda: self._producer.init_transactions(WAIT_S))

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        failures: list[Any] = []
        for value in values:
            self._do(
                lambda value=value: self._producer.produce(  # type: ignore[misc]
                    topic, value.encode(), partition=partition, on_delivery=lambda error, _: failures.append(error)
                )
            )
        self._do(lambda: self._producer.flush(WAIT_S))
        for error in failures:
            if error is not None:
                self._do(lambda error=error: _raise(confluent_kafka.KafkaException(error)))  # type: ignore[misc]

    def commit(self) -> None:
        self._do(lambda: self._producer.commit_transaction(WAIT_S))

    def abort(self) -> None:
        self._do(lambda: self._producer.abort_transaction(WAIT_S))

    def close(self) -> None:
        with suppress(confluent_kafka.KafkaException):  # what a fenced one says for good-bye
            self._producer.flush(0)

    def copy(self, source: str, target: str, *, group: str, count: int) -> int:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([source])
        copied = 0
        deadline = time.monotonic() + 60
        transactions = itertools.count(1)
        try:
            while copied < count and time.monotonic() < deadline:
                messages = [each for each in consumer.consume(20, timeout=0.5) if each.error() is None]
                if not messages:
                    continue
                self.begin()
                for message in messages:
                    self._producer.produce(target, b"copy of " + message.value(), partition=message.partition())
                offsets = consumer.position(consumer.assignment())
                self._do(
                    lambda offsets=offsets: self._producer.send_offsets_to_transaction(  # type: ignore[misc]
                        [each for each in offsets if each.offset >= 0], consumer.consumer_group_metadata(), WAIT_S
                    )
                )
                if next(transactions) % 3 == 0:
                    self.abort()
                    for place in consumer.committed(consumer.assignment(), timeout=WAIT_S):
                        consumer.seek(
                            confluent_kafka.TopicPartition(place.topic, place.partition, max(0, place.offset))
                        )
                else:
                    self.commit()
                    copied += len(messages)
        finally:
            consumer.close()
        return copied

    @staticmethod
    def _do(work: Callable[[], T]) -> T:
        try:
            return work()
        except confluent_kafka.KafkaException as failure:
            error = failure.args[0]
            if error.code() in (confluent_kafka.KafkaError._FENCED, 90):
                raise Fenced(str(error)) from failure
            raise Failed(str(error)) from failure


def _raise(error: BaseException) -> None:
    raise error


class Confluent:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def open(self, transactional_id: str, *, timeout_ms: int = 60_000) -> ConfluentProducer:
        return ConfluentProducer(self.bootstrap, transactional_id, timeout_ms=timeout_ms)

    def read(self, topic: str, *, partition: int = 0, committed: bool = True) -> list[str]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused: partitions are assigned",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        values: list[str] = []
        deadline = time.monotonic() + WAIT_S
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
            while time.monotonic() < deadline:
                message = consumer.poll(0.5)
                if message is None:
                    continue
                if message.error() is None:
                    values.append(message.value().decode())
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return values
                else:
                    raise confluent_kafka.KafkaException(message.error())
        finally:
            consumer.close()
        raise AssertionError(f"the end was not reached after {values[-1:]}")


# --- aiokafka --------------------------------------------------------------------------------


class _Loop:
    """An event loop in a thread of its own, for a client that lives in one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 90.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        async def cancel_all() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=2) if others else None

        self.do(cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class AioKafkaProducer:
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._loop = _Loop()
        try:
            self._producer = self._do(self._start(transactional_id, timeout_ms))
        except (Fenced, Failed):
            self._loop.close()
            raise

    async def _start(self, transactional_id: str, timeout_ms: int) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def begin(self) -> None:
        self._do(self._producer.begin_transaction())

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        async def send_all() -> None:
            sent = [await self._producer.send(topic, value.encode(), partition=partition) for value in values]
            for one in sent:
                await asyncio.wait_for(one, WAIT_S)

        self._do(send_all())

    def commit(self) -> None:
        self._do(self._producer.commit_transaction())

    def abort(self) -> None:
        self._do(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._loop.do(self._producer.stop(), timeout_s=5)  # one whose sender is dead waits for it for ever
        except (aiokafka.errors.KafkaError, TimeoutError):
            pass
        finally:
            self._loop.close()

    def copy(self, source: str, target: str, *, group: str, count: int) -> int:
        return self._do(self._copy(source, target, group, count))

    async def _copy(self, source: str, target: str, group: str, count: int) -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            source,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        copied = 0
        deadline = time.monotonic() + 60
        transactions = itertools.count(1)
        try:
            while copied < count and time.monotonic() < deadline:
                found = await consumer.getmany(timeout_ms=500, max_records=20)
                if not found:
                    continue
                await self._producer.begin_transaction()
                for place, records in found.items():
                    for record in records:
                        await self._producer.send(target, b"copy of " + record.value, partition=place.partition)
                offsets = {place: records[-1].offset + 1 for place, records in found.items()}
                await self._producer.send_offsets_to_transaction(offsets, group)
                if next(transactions) % 3 == 0:
                    await self._producer.abort_transaction()
                    for place in found:
                        consumer.seek(place, await consumer.committed(place) or 0)
                else:
                    await self._producer.commit_transaction()
                    copied += sum(map(len, found.values()))
        finally:
            await consumer.stop()
        return copied

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.do(work)
        except aiokafka.errors.ProducerFenced as failure:
            raise Fenced(str(failure)) from failure
        except (aiokafka.errors.KafkaError, TimeoutError) as failure:
            raise Failed(repr(failure)) from failure


class AioKafka:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def open(self, transactional_id: str, *, timeout_ms: int = 60_000) -> AioKafkaProducer:
        return AioKafkaProducer(self.bootstrap, transactional_id, timeout_ms=timeout_ms)

    def read(self, topic: str, *, partition: int = 0, committed: bool = True) -> list[str]:
        async def read_all() -> list[str]:
            place = AioTopicPartition(topic, partition)
            async with aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                enable_auto_commit=False,
                isolation_level="read_committed" if committed else "read_uncommitted",
            ) as consumer:
                consumer.assign([place])
                await consumer.seek_to_end(place)
                end = await consumer.position(place)
                await consumer.seek_to_beginning(place)
                values: list[str] = []
                deadline = time.monotonic() + WAIT_S
                while await consumer.position(place) < end:
                    assert time.monotonic() < deadline, f"stuck before {end} after {values[-1:]}"
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        values += [record.value.decode() for record in records]
                return values

        return asyncio.run(read_all())


# --- kafka-python ----------------------------------------------------------------------------


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._do(self._producer.init_transactions)

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        def send_all() -> None:
            sent = [self._producer.send(topic, value.encode(), partition=partition) for value in values]
            self._producer.flush(WAIT_S)
            for one in sent:
                one.get(WAIT_S)

        self._do(send_all)

    def commit(self) -> None:
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        self._do(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=5)

    def copy(self, source: str, target: str, *, group: str, count: int) -> int:
        consumer = kafka.KafkaConsumer(
            source,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        copied = 0
        deadline = time.monotonic() + 60
        transactions = itertools.count(1)
        try:
            while copied < count and time.monotonic() < deadline:
                found = consumer.poll(timeout_ms=500, max_records=20)
                if not found:
                    continue
                self.begin()
                offsets = {}
                for place, records in found.items():
                    for record in records:
                        self._producer.send(target, b"copy of " + record.value, partition=place.partition)
                    offsets[place] = kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1)
                self._do(
                    lambda offsets=offsets: self._producer.send_offsets_to_transaction(  # type: ignore[misc]
                        offsets, consumer.group_metadata()
                    )
                )
                if next(transactions) % 3 == 0:
                    self.abort()
                    for place in found:
                        consumer.seek(place, consumer.committed(place) or 0)
                else:
                    self.commit()
                    copied += sum(map(len, found.values()))
        finally:
            consumer.close()
        return copied

    @staticmethod
    def _do(work: Callable[[], T]) -> T:
        try:
            return work()
        except kafka.errors.ProducerFencedError as failure:
            raise Fenced(str(failure)) from failure
        except kafka.errors.KafkaError as failure:
            raise Failed(repr(failure)) from failure


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def open(self, transactional_id: str, *, timeout_ms: int = 60_000) -> KafkaPythonProducer:
        return KafkaPythonProducer(self.bootstrap, transactional_id, timeout_ms=timeout_ms)

    def read(self, topic: str, *, partition: int = 0, committed: bool = True) -> list[str]:
        place = kafka.TopicPartition(topic, partition)
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        try:
            consumer.assign([place])
            consumer.seek_to_end(place)
            end = consumer.position(place)
            assert consumer.end_offsets([place])[place] == end
            consumer.seek_to_beginning(place)
            values: list[str] = []
            deadline = time.monotonic() + WAIT_S
            while consumer.position(place) < end:
                assert time.monotonic() < deadline, f"stuck before {end} after {values[-1:]}"
                for records in consumer.poll(timeout_ms=200).values():
                    values += [record.value.decode() for record in records]
            return values
        finally:
            consumer.close()


# --- Java ------------------------------------------------------------------------------------

FENCED_KINDS = {"ProducerFencedException", "InvalidProducerEpochException"}


class JavaProducer:
    def __init__(self, process: java.JavaClient, bootstrap: str, transactional_id: str, *, timeout_ms: int) -> None:
        self._process = process
        self._bootstrap = bootstrap
        self._name = f"producer-{next(_numbers)}"
        self._call(
            "open",
            settings={
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "delivery.timeout.ms": 30_000,
                "request.timeout.ms": 10_000,
                "max.block.ms": 30_000,
                "linger.ms": 5,
            },
        )

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, *values: str, partition: int = 0) -> None:
        self._call("send", records=[[topic, partition, value] for value in values])

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        self._call("close")

    def copy(self, source: str, target: str, *, group: str, count: int) -> int:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "max.poll.records": 20,
        }
        return int(self._call("copy", topic=source, target=target, count=count, settings=settings))

    def _call(self, command: str, **arguments: Any) -> Any:
        try:
            return self._process.call(command, name=self._name, **arguments)
        except java.JavaError as failure:
            if failure.kind in FENCED_KINDS:
                raise Fenced(str(failure)) from failure
            raise Failed(str(failure)) from failure


class Java:
    def __init__(self, bootstrap: str, process: java.JavaClient) -> None:
        self.bootstrap = bootstrap
        self._process = process

    def open(self, transactional_id: str, *, timeout_ms: int = 60_000) -> JavaProducer:
        return JavaProducer(self._process, self.bootstrap, transactional_id, timeout_ms=timeout_ms)

    def read(self, topic: str, *, partition: int = 0, committed: bool = True) -> list[str]:
        found: list[str] = self._process.call(
            "read",
            topic=topic,
            partition=partition,
            settings={
                "bootstrap.servers": self.bootstrap,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": "false",
                "auto.offset.reset": "none",
            },
        )
        return found
