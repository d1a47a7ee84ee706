"""One measurement with confluent-kafka, in a process of its own: arguments in, a JSON line out.

The client's defaults, but for idempotence, which librdkafka has to be told, and for what `consume` explains.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks.workload import payloads

TIMEOUT_S = 60.0


class Deliveries:
    """Delivery reports: how long each took, and the first error."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.error = self.error or error
        else:
            self.latencies_s.append(message.latency())

    def require(self, records: int) -> None:
        if self.error is not None or len(self.latencies_s) != records:
            raise SystemExit(f"{len(self.latencies_s)} of {records} records were delivered: {self.error}")


def produce(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> dict[str, Any]:
    """As fast as the gateway takes them; the clock stops at the last delivery report."""
    producer = _producer(bootstrap, topic)
    reports = Deliveries()
    started = time.perf_counter()
    for number, value in enumerate(islice(cycle(payloads(record_bytes)), records)):
        while True:
            try:
                producer.produce(topic, value, on_delivery=reports)
                break
            except BufferError:  # the client's queue is full
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(TIMEOUT_S)
    seconds = time.perf_counter() - started
    reports.require(records)
    return {"records": records, "seconds": seconds}


def produce_at_rate(
    bootstrap: str, topic: str, *, records: int, warmup: int, record_bytes: int, rate: int
) -> dict[str, Any]:
    """At a fixed rate; milliseconds from produce() to the acknowledgement, but for the first records."""
    producer = _producer(bootstrap, topic)
    reports = Deliveries()
    started = time.perf_counter()
    for number, value in enumerate(islice(cycle(payloads(record_bytes)), records)):
        due = started + number / rate
        while (early := due - time.perf_counter()) > 0:
            producer.poll(early)
        producer.produce(topic, value, on_delivery=reports)
    producer.flush(TIMEOUT_S)
    reports.require(records)
    return {"latencies_ms": [round(latency * 1000, 3) for latency in reports.latencies_s[warmup:]]}


def consume(bootstrap: str, topic: str, *, partitions: int, records: int) -> dict[str, Any]:
    """All partitions from the start, by assign(): no group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "bench",
            "group.id": "benchmark",
            "enable.auto.commit": False,
            # By default it rests for a second whenever 100,000 records wait for the program: that second
            # says nothing of the gateway.
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.list_topics(topic, timeout=TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    count = 0
    started = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while count < records:
        for message in consumer.consume(10_000, timeout=0.1):
            if message.error() is not None:
                raise KafkaException(message.error())
            count += 1
        if time.monotonic() > deadline:
            raise SystemExit(f"{count} of {records} records arrived in {TIMEOUT_S:.0f} s")
    seconds = time.perf_counter() - started
    consumer.close()
    return {"records": count, "seconds": seconds}


def _producer(bootstrap: str, topic: str) -> Any:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "client.id": "bench"}
    )
    producer.list_topics(topic, timeout=TIMEOUT_S)  # connected before the clock starts
    return producer


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "produce": produce,
    "latency": produce_at_rate,
    "consume": consume,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    producing = commands.add_parser("produce")
    producing.add_argument("--record-bytes", type=int, required=True)
    latency = commands.add_parser("latency")
    latency.add_argument("--record-bytes", type=int, required=True)
    latency.add_argument("--rate", type=int, required=True)
    latency.add_argument("--warmup", type=int, required=True)
    consuming = commands.add_parser("consume")
    consuming.add_argument("--partitions", type=int, required=True)
    arguments = vars(parser.parse_args())
    measurement = MEASUREMENTS[arguments.pop("command")]
    print(json.dumps(measurement(arguments.pop("bootstrap"), arguments.pop("topic"), **arguments)))


if __name__ == "__main__":
    main()
