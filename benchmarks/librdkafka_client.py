"""One measurement with confluent-kafka, in a process of its own: arguments in, a JSON line out.

The client's defaults, but for idempotence, which librdkafka has to be told, and for what is explained where it is set.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks.turns import Turn
from benchmarks.workload import payloads

TIMEOUT_S = 60.0
REST_S = 0.1


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


def produce(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    transaction_ms: int | None,
    with_keys: bool,
) -> dict[str, Any]:
    """As fast as the gateway takes them; the clock stops at the last delivery report or commit.

    `with_keys`: each record has a header with a business key of its own.
    """
    producer = _producer(bootstrap, topic, is_transactional=transaction_ms is not None)
    reports = Deliveries()
    # The first record waits for the producer id, which librdkafka asks for when it likes: it is not timed.
    _send_first(producer, topic, record_bytes, reports, is_transactional=transaction_ms is not None)
    timed = records - 1
    started = time.perf_counter()
    if transaction_ms is not None:
        _send_in_transactions(producer, topic, timed, record_bytes, reports, transaction_s=transaction_ms / 1000)
    else:
        _send_all(producer, topic, timed, record_bytes, reports, with_keys=with_keys)
    seconds = time.perf_counter() - started
    reports.require(records)
    return {"records": timed, "seconds": seconds}


def make_sender(
    bootstrap: str, topic: str, *, records: int, record_bytes: int, is_idempotent: bool
) -> Callable[[], Turn]:
    """What sends the records whenever it is called."""
    # Each record goes to a partition of its own choice. By default librdkafka stays with one for 10 ms; an idempotent
    # producer, which has one request per partition in flight, then spins while it waits, on cores that others need.
    producer = _producer(bootstrap, topic, is_idempotent=is_idempotent, settings={"sticky.partitioning.linger.ms": 0})

    def send() -> Turn:
        reports = Deliveries()
        started = time.perf_counter()
        _send_all(producer, topic, records, record_bytes, reports)
        seconds = time.perf_counter() - started
        reports.require(records)
        return Turn(records, seconds)

    return send


def time_commits(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    partitions: int,
    transactions: int,
    is_flushed_first: bool,
) -> dict[str, Any]:
    """Milliseconds of each commit_transaction(); the records are sent within it, or before if flushed first."""
    producer = _producer(bootstrap, topic, is_transactional=True)
    reports = Deliveries()
    values = list(islice(cycle(payloads(record_bytes)), records))
    # The first ones open connections and prepare statements.
    warmup = max(1, transactions // 10)
    latencies_ms = []
    for _ in range(warmup + transactions):
        producer.begin_transaction()
        for number, value in enumerate(values):
            _send(producer, topic, value, reports, partition=number % partitions)
            if number % 1000 == 999:
                producer.poll(0)
        if is_flushed_first:
            producer.flush(TIMEOUT_S)
            # Whoever writes much leaves work to the kernel and to PostgreSQL's background; that is not EndTxn's.
            time.sleep(REST_S)
        started = time.perf_counter()
        producer.commit_transaction(TIMEOUT_S)
        latencies_ms.append(round((time.perf_counter() - started) * 1000, 3))
    reports.require(records * (warmup + transactions))
    return {"latencies_ms": latencies_ms[warmup:]}


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


def consume(bootstrap: str, topic: str, *, partitions: int, records: int, isolation: str) -> dict[str, Any]:
    """All partitions from the start, by assign(): no group."""
    consumer = Consumer(
        {
            "isolation.level": isolation,
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


def _send_first(producer: Any, topic: str, record_bytes: int, reports: Deliveries, *, is_transactional: bool) -> None:
    if is_transactional:
        producer.begin_transaction()
    _send(producer, topic, payloads(record_bytes)[0], reports)
    producer.flush(TIMEOUT_S)
    if is_transactional:
        producer.commit_transaction(TIMEOUT_S)


def _send_all(
    producer: Any, topic: str, records: int, record_bytes: int, reports: Deliveries, *, with_keys: bool = False
) -> None:
    for number, value in enumerate(islice(cycle(payloads(record_bytes)), records)):
        if with_keys:
            _send(producer, topic, value, reports, headers=[("idempotency-key", b"key-%d" % number)])
        else:
            _send(producer, topic, value, reports)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(TIMEOUT_S)


def _send_in_transactions(
    producer: Any, topic: str, records: int, record_bytes: int, reports: Deliveries, *, transaction_s: float
) -> None:
    """As Kafka's ProducerPerformance does it: the next transaction begins when the last one is committed."""
    producer.begin_transaction()
    ends = time.perf_counter() + transaction_s
    for number, value in enumerate(islice(cycle(payloads(record_bytes)), records), start=1):
        _send(producer, topic, value, reports)
        if number % 1000 == 0:
            producer.poll(0)
        if number < records and time.perf_counter() >= ends:
            producer.commit_transaction(TIMEOUT_S)
            producer.begin_transaction()
            ends = time.perf_counter() + transaction_s
    producer.commit_transaction(TIMEOUT_S)


def _send(producer: Any, topic: str, value: bytes, reports: Deliveries, **more: Any) -> None:
    while True:
        try:
            producer.produce(topic, value, on_delivery=reports, **more)
            break
        except BufferError:  # the client's queue is full
            producer.poll(0.1)


def _producer(
    bootstrap: str,
    topic: str,
    *,
    is_idempotent: bool = True,
    is_transactional: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "client.id": "bench", **(settings or {})}
    # Five requests in flight is what idempotence allows. Without it librdkafka has no limit, and a comparison
    # would be of that and not of deduplication.
    settings |= {"enable.idempotence": is_idempotent, "max.in.flight.requests.per.connection": 5}
    if is_transactional:
        settings["transactional.id"] = topic
    producer = Producer(settings)
    producer.list_topics(topic, timeout=TIMEOUT_S)  # connected before the clock starts
    if is_transactional:
        producer.init_transactions(TIMEOUT_S)
    return producer


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "produce": produce,
    "latency": produce_at_rate,
    "consume": consume,
    "commit": time_commits,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True, help="of a transaction, where commits are timed")
    commands = parser.add_subparsers(dest="command", required=True)
    producing = commands.add_parser("produce")
    producing.add_argument("--record-bytes", type=int, required=True)
    producing.add_argument("--transaction-ms", type=int)
    producing.add_argument("--with-keys", action="store_true")
    latency = commands.add_parser("latency")
    latency.add_argument("--record-bytes", type=int, required=True)
    latency.add_argument("--rate", type=int, required=True)
    latency.add_argument("--warmup", type=int, required=True)
    consuming = commands.add_parser("consume")
    consuming.add_argument("--partitions", type=int, required=True)
    consuming.add_argument("--isolation", default="read_committed", help="librdkafka's own default")
    committing = commands.add_parser("commit")
    committing.add_argument("--record-bytes", type=int, required=True)
    committing.add_argument("--partitions", type=int, required=True)
    committing.add_argument("--transactions", type=int, required=True)
    committing.add_argument("--flush-first", dest="is_flushed_first", action="store_true")
    arguments = vars(parser.parse_args())
    measurement = MEASUREMENTS[arguments.pop("command")]
    print(json.dumps(measurement(arguments.pop("bootstrap"), arguments.pop("topic"), **arguments)))


if __name__ == "__main__":
    main()
