"""Consumers of one library in a process of their own, so that it can be killed or frozen.

Run as `python -m tests.support.group_worker <JSON>`: a line "+" on stdin adds a member, "-" closes the newest, the end
of stdin closes all. Each thing a member does is a line on stdout, written before the next thing is done:
`assigned <partition>`, `record <partition> <offset> <value>`, `committed <partition> <offset>`, each after the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Say = Callable[[str], None]
Records = Iterable[tuple[int, int, bytes]]
SESSION_MS, HEARTBEAT_MS, POLL_MS = 6_000, 1_000, 200


def say(*lines: str) -> None:
    """One write, so that lines of several threads do not mix and none is lost with the process."""
    now = time.monotonic_ns()
    os.write(1, "".join(f"{now} {line}\n" for line in lines).encode())


def say_records(records: Records) -> dict[int, int]:
    """Process records; returns the next offset of each partition."""
    found = list(records)
    say(*(f"record {partition} {offset} {value.decode()}" for partition, offset, value in found))
    return {partition: offset + 1 for partition, offset, _ in found}


def say_committed(positions: Mapping[int, int]) -> None:
    say(*(f"committed {partition} {offset}" for partition, offset in positions.items()))


def say_assigned(partitions: Iterable[int]) -> None:
    say(*(f"assigned {partition}" for partition in partitions))


def run_confluent_kafka(options: dict[str, Any], stop: threading.Event) -> None:
    import confluent_kafka

    if options["assignor"] == "consumer":  # KIP-848: the rest is the coordinator's to say
        protocol: dict[str, Any] = {"group.protocol": "consumer"}
    else:
        protocol = {
            "partition.assignment.strategy": options["assignor"],
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": options["bootstrap"],
            "group.id": options["group"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 2,
            **protocol,
        }
    )
    # What could not be committed in the middle of a rebalance is committed after it: whoever keeps a partition through
    # it does not read its records again.
    positions: dict[int, int] = {}

    def on_assign(_: Any, given: list[Any]) -> None:
        for one in given:
            positions.pop(one.partition, None)
        say_assigned(one.partition for one in given)

    consumer.subscribe([options["topic"]], on_assign=on_assign)
    while not stop.is_set():
        messages = [one for one in consumer.consume(200, POLL_MS / 1000) if one.error() is None]
        if messages:
            positions |= say_records((one.partition(), one.offset(), one.value()) for one in messages)
        kept = {one.partition for one in consumer.assignment()}
        offsets = [
            confluent_kafka.TopicPartition(options["topic"], *one) for one in positions.items() if one[0] in kept
        ]
        if not offsets:
            continue
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException:
            continue
        say_committed({one.partition: one.offset for one in offsets})
        positions.clear()
    consumer.close()


def run_kafka_python(options: dict[str, Any], stop: threading.Event) -> None:
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    class Listener(kafka.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            say_assigned(one.partition for one in assigned)

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options["bootstrap"],
        group_id=options["group"],
        partition_assignment_strategy=[RangePartitionAssignor],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    consumer.subscribe([options["topic"]], listener=Listener())
    while not stop.is_set():
        try:
            found = consumer.poll(timeout_ms=POLL_MS)
        except KafkaError as error:  # a connection that was refused comes out here now and then: it is polled again
            print(repr(error), file=sys.stderr)
            continue
        records = [one for many in found.values() for one in many]
        if not records:
            continue
        positions = say_records((one.partition, one.offset, one.value) for one in records)
        try:
            consumer.commit()
        except KafkaError:
            continue
        say_committed(positions)
    consumer.close()


def run_aiokafka(options: dict[str, Any], stop: threading.Event) -> None:
    asyncio.run(_run_aiokafka(options, stop))


async def _run_aiokafka(options: dict[str, Any], stop: threading.Event) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            say_assigned(one.partition for one in assigned)

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=options["bootstrap"],
        group_id=options["group"],
        partition_assignment_strategy=[RangePartitionAssignor],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    consumer.subscribe([options["topic"]], listener=Listener())
    await consumer.start()
    while not stop.is_set():
        found = await consumer.getmany(timeout_ms=POLL_MS)
        records = [one for many in found.values() for one in many]
        if not records:
            continue
        positions = say_records((one.partition, one.offset, one.value) for one in records)
        try:
            await consumer.commit({partition: many[-1].offset + 1 for partition, many in found.items() if many})
        except KafkaError:
            continue
        say_committed(positions)
    await consumer.stop()


RUNNERS = {"confluent-kafka": run_confluent_kafka, "kafka-python": run_kafka_python, "aiokafka": run_aiokafka}


def main() -> None:
    options = json.loads(sys.argv[1])
    run = RUNNERS[options["client"]]
    members: list[tuple[threading.Thread, threading.Event]] = []
    for line in sys.stdin:
        if line.strip() == "+":
            stop = threading.Event()
            thread = threading.Thread(target=run, args=(options, stop))
            thread.start()
            members.append((thread, stop))
        else:
            _close(members[-1:])
            del members[-1]
    _close(members)


def _close(members: list[tuple[threading.Thread, threading.Event]]) -> None:
    for _, stop in members:
        stop.set()
    for thread, _ in members:
        thread.join()


if __name__ == "__main__":
    main()
