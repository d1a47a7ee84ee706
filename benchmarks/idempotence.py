"""What deduplication costs: the same client with idempotence on and off, in turns.

Numbering records also costs the clients, on the same cores; batches that were made beforehand show what it costs
gateway and database, and the same clients next to Apache Kafka what it costs there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from benchmarks.apache_kafka import ApacheKafka
from benchmarks.bench import Bench
from benchmarks.clients import Client, Prepared
from benchmarks.results import IDEMPOTENCE_OFF, IDEMPOTENCE_ON, KAFKA, Case, Run
from benchmarks.stack import CpuSeconds
from benchmarks.turns import Turns
from benchmarks.workload import Shape

__all__ = ["measure_idempotence"]

ACTIVITIES = {"off": IDEMPOTENCE_OFF, "on": IDEMPOTENCE_ON}


class Taken(NamedTuple):
    runs: dict[str, Run]
    """Of each side the median turn, with the CPU of all its turns."""
    on_of_off: float
    """The median of neighbouring turns' ratios: what a turn suffers from, its neighbour mostly does as well."""
    written: int
    """Records of either side."""


def measure_idempotence(bench: Bench) -> None:
    for shape in bench.workload.idempotence_shapes:
        with nullcontext() if bench.kafka is None else bench.kafka.resting():
            for client in bench.clients:
                _measure(bench, client, shape)
            _measure(bench, Prepared(), shape)
        if bench.kafka is not None:
            for client in bench.clients:
                _measure_kafka(bench, bench.kafka, client, shape)


def _measure(bench: Bench, client: Client | Prepared, shape: Shape) -> None:
    records = bench.workload.turn_records[shape.record_bytes]
    with bench.topic(shape.partitions) as off, bench.topic(shape.partitions) as on:
        with client.turns(bench.stack.bootstrap, {"off": off.name, "on": on.name}, shape, records) as turns:
            taken = _take(bench, turns, bench.stack.cpu_seconds, bench.stack.settle)
        for topic in (off, on):
            bench.require_rows(topic, taken.written)
    _record(bench, taken, client, shape)


def _measure_kafka(bench: Bench, kafka: ApacheKafka, client: Client, shape: Shape) -> None:
    records = bench.workload.turn_records[shape.record_bytes]
    with ExitStack() as context:
        topics = {side: context.enter_context(kafka.topic(shape.partitions)) for side in ACTIVITIES}
        bench.stack.settle()
        turns = context.enter_context(client.turns(kafka.bootstrap, topics, shape, records))
        taken = _take(bench, turns, lambda: CpuSeconds(kafka.cpu_seconds(), 0.0), kafka.settle)
    _record(bench, taken, client, shape, KAFKA)


def _record(bench: Bench, taken: Taken, client: Client | Prepared, shape: Shape, broker: str = "") -> None:
    off, on = (Case(ACTIVITIES[side], client.name, shape, broker) for side in ("off", "on"))
    bench.record(off, taken.runs["off"])
    bench.record(on, taken.runs["on"])
    bench.results.neighbours[on, off].append(taken.on_of_off)


def _take(bench: Bench, turns: Turns, cpu_seconds: Callable[[], CpuSeconds], settle: Callable[[], None]) -> Taken:
    """What is written by a checkpoint, or by the kernel for Kafka, is written between turns: one that begins by itself
    takes half a second or more, so that some turns of either side fall into it and some do not."""
    done: dict[str, list[Run]] = {side: [] for side in ACTIVITIES}
    written = dict.fromkeys(ACTIVITIES, 0)
    for number in range(bench.workload.warmup_turns + bench.workload.turns):
        if number % bench.workload.turns_until_settled == 0:
            settle()
        for side in sorted(ACTIVITIES, reverse=(bench.repetition + number) % 2 == 0):
            before = cpu_seconds()
            records, seconds = turns.take(side)
            written[side] += records
            if number >= bench.workload.warmup_turns:
                done[side].append(Run.of(records / seconds, cpu_seconds() - before, records))
    assert written["off"] == written["on"]
    rates = {side: [run.records_per_s for run in runs] for side, runs in done.items()}
    return Taken(
        {side: replace(Run.joined(runs), records_per_s=median(rates[side])) for side, runs in done.items()},
        median(on / off for on, off in zip(rates["on"], rates["off"], strict=True)),
        written["on"],
    )
