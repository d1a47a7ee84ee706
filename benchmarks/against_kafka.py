"""Tablewire and Apache Kafka side by side: the same client, the same shapes, in turn within each repetition."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.apache_kafka import ApacheKafka
from benchmarks.bench import Bench
from benchmarks.clients import Client, Guarantee, JavaClient, Percentiles, Performed
from benchmarks.machine import time_flushes, time_wakes
from benchmarks.raw_copy import prepare_rows, time_copy
from benchmarks.results import (
    CONSUME_ROWS,
    CONSUME_TAIL,
    FLUSHED_KAFKA,
    KAFKA,
    MACHINE,
    PRODUCE,
    RAW_COPY,
    TABLEWIRE,
    TRANSACTIONAL,
    Case,
    Run,
    Timing,
)
from benchmarks.stack import Topic
from benchmarks.workload import DEFAULT, Part, Shape

__all__ = ["measure_against_kafka"]


@dataclass(frozen=True)
class _Place:
    """A shape's topic on either side."""

    shape: Shape
    ours: Topic
    theirs: str


def measure_against_kafka(bench: Bench) -> None:
    """Kafka is not restarted with the gateway: its log is read the same way before and after, and a new JVM
    would only have to compile everything again.
    """
    kafka, java = bench.kafka, next(client for client in bench.clients if isinstance(client, JavaClient))
    assert kafka is not None, "this part is left out where Kafka is missing"
    side_by_side = _SideBySide(bench, kafka, java)
    if bench.repetition == 0:
        side_by_side.warm_up()
    side_by_side.measure_throughput()
    side_by_side.measure_machine()
    for client in bench.clients:
        side_by_side.measure_latency(client)


@dataclass(frozen=True)
class _SideBySide:
    bench: Bench
    kafka: ApacheKafka
    java: JavaClient

    def warm_up(self) -> None:
        """A JVM compiles what it runs, and needs many records to become as fast as it is. A new PostgreSQL makes the
        files of its log as it comes to them, and uses them again later."""
        for shape in self.bench.workload.shapes:
            records = DEFAULT.kafka_records[shape.record_bytes]
            with self.kafka.topic(shape.partitions) as theirs, self.bench.topic(shape.partitions) as ours:
                for bootstrap, topic in ((self.kafka.bootstrap, theirs), (self.bench.stack.bootstrap, ours.name)):
                    self.java.produce(bootstrap, topic, shape, records)
                    self.java.consume(bootstrap, topic, shape, records)

    def measure_throughput(self) -> None:
        with ExitStack() as topics:
            places = []
            for shape in self.bench.workload.shapes:
                place = _Place(
                    shape,
                    topics.enter_context(self.bench.topic(shape.partitions)),
                    topics.enter_context(self.kafka.topic(shape.partitions)),
                )
                self._produce(place)
                self._consume(place, CONSUME_TAIL)
                places.append(place)
            self.bench.stack.restart_gateway()
            for place in places:
                self._consume(place, CONSUME_ROWS)

    def measure_machine(self) -> None:
        """The yardstick of latencies, in the same minute."""
        seconds = self.bench.workload.kafka_latency_seconds
        directory = self.bench.stack.directory
        self._in_turn(
            partial(self._alone, lambda: self._record_latency(MACHINE, "late after a sleep", time_wakes(seconds))),
            partial(
                self._alone,
                lambda: self._record_latency(MACHINE, "fdatasync of 8 KiB", time_flushes(directory, seconds)),
            ),
        )

    def measure_latency(self, client: Client) -> None:
        workload = self.bench.workload
        shape, rate, seconds = workload.latency_shape, workload.latency_rate, workload.kafka_latency_seconds

        def time(broker: str, bootstrap: str, topic: str) -> None:
            measured = client.latency(bootstrap, topic, shape, rate=rate, seconds=seconds)
            self._record_latency(broker, client.name, measured)

        with self.bench.topic(shape.partitions) as ours, self.kafka.topic(shape.partitions) as theirs:
            self._in_turn(
                partial(self._alone, partial(time, TABLEWIRE, self.bench.stack.bootstrap, ours.name)),
                partial(time, KAFKA, self.kafka.bootstrap, theirs),
            )

    # --- producing ---------------------------------------------------------------------------

    def _produce(self, place: _Place) -> None:
        legs = [
            partial(self._alone, partial(self._produce_ours, place)),
            partial(self._produce_kafka, place),
            partial(self._produce_flushed, place.shape),
            partial(self._alone, partial(self._copy, place.shape)),
        ]
        if place.shape in self.bench.workload.transaction_shapes:
            legs.append(partial(self._alone, partial(self._produce_transactional, place.shape)))
        self._in_turn(*legs)

    def _produce_ours(self, place: _Place) -> None:
        self._record(PRODUCE, place.shape, TABLEWIRE, self._produced(place.ours, place.shape))

    def _produce_transactional(self, shape: Shape) -> None:
        with self.bench.topic(shape.partitions) as topic:
            run = self._produced(topic, shape, Guarantee.TRANSACTIONAL)
        self._record(TRANSACTIONAL, shape, TABLEWIRE, run)

    def _produced(self, topic: Topic, shape: Shape, guarantee: Guarantee = Guarantee.IDEMPOTENT) -> Run:
        records = self._records(shape)
        client = partial(self.java.perform, self.bench.stack.bootstrap, topic.name, shape, records, guarantee)
        run = _with_client(partial(self.bench.run, records=records), client)
        self.bench.require_rows(topic, records)
        return run

    def _produce_kafka(self, place: _Place) -> None:
        self._record(PRODUCE, place.shape, KAFKA, self._produced_to_kafka(place.theirs, place.shape))

    def _produce_flushed(self, shape: Shape) -> None:
        with self.kafka.topic(shape.partitions, is_flushed=True) as topic:
            self._record(PRODUCE, shape, FLUSHED_KAFKA, self._produced_to_kafka(topic, shape))

    def _produced_to_kafka(self, topic: str, shape: Shape) -> Run:
        records = self._records(shape)
        client = partial(self.java.perform, self.kafka.bootstrap, topic, shape, records)
        return _with_client(partial(self.kafka.run, records=records), client)

    def _copy(self, shape: Shape) -> None:
        records = self._records(shape)
        with self.bench.topic(shape.partitions) as topic:
            data = prepare_rows(shape, topic_id=topic.topic_id, records=records)
            url = self.bench.stack.database_url
            run = self.bench.run(lambda: records / time_copy(url, data), records=records)
            self.bench.require_rows(topic, records)
        self._record(PRODUCE, shape, RAW_COPY, run)

    # --- consuming ---------------------------------------------------------------------------

    def _consume(self, place: _Place, activity: str) -> None:
        self._in_turn(
            partial(self._alone, partial(self._consume_ours, place, activity)),
            partial(self._consume_kafka, place, activity),
        )

    def _consume_ours(self, place: _Place, activity: str) -> None:
        records = self._records(place.shape)
        consume = partial(self.java.consume, self.bench.stack.bootstrap, place.ours.name, place.shape, records)
        self._record(activity, place.shape, TABLEWIRE, self.bench.run(consume, records=records))

    def _consume_kafka(self, place: _Place, activity: str) -> None:
        records = self._records(place.shape)
        consume = partial(self.java.consume, self.kafka.bootstrap, place.theirs, place.shape, records)
        self._record(activity, place.shape, KAFKA, self.kafka.run(consume, records=records))

    # --- what all of them need ---------------------------------------------------------------

    def _in_turn(self, *legs: Callable[[], None]) -> None:
        """Each repetition begins with another one, each with nothing left to write from before."""
        first = self.bench.repetition % len(legs)
        for leg in (*legs[first:], *legs[:first]):
            self.bench.stack.settle()
            self.kafka.settle()
            leg()

    def _alone(self, leg: Callable[[], None]) -> None:
        """Without Kafka beside it. An idle gateway and its database do not show in Kafka's runs, and stay."""
        with self.kafka.resting():
            leg()

    def _record(self, activity: str, shape: Shape, broker: str, run: Run) -> None:
        client = "" if broker == RAW_COPY else self.java.name
        self.bench.record(Case(activity, client, shape, broker), run)

    def _record_latency(self, whose: str, what: str, measured: Percentiles) -> None:
        self.bench.results.timings[Timing(Part.KAFKA, f"{whose}, {what}")].append(measured)
        self.bench.say(f"{whose}: latency {what} p50 {measured.p50_ms:.1f} ms, p99 {measured.p99_ms:.1f} ms")

    def _records(self, shape: Shape) -> int:
        return self.bench.workload.kafka_records[shape.record_bytes]


def _with_client(run: Callable[[Callable[[], float]], Run], client: Callable[[], Performed]) -> Run:
    """A run with what it took the client, too."""
    performed: list[Performed] = []

    def produce() -> float:
        performed.append(client())
        return performed[0].records_per_s

    return replace(run(produce), client_cpu_s_per_million=performed[0].cpu_s_per_million)
