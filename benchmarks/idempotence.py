"""What deduplication costs: the same client with idempotence on and off, in turns.

Numbering records also costs the clients, on the same cores; batches that were made beforehand show what it costs
gateway and database, and the same clients next to Apache Kafka what it costs there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from statistics import median

from benchmarks.apache_kafka import ApacheKafka
from benchmarks.bench import Bench
from benchmarks.clients import Client, Prepared
from benchmarks.results import IDEMPOTENCE_OFF, IDEMPOTENCE_ON, KAFKA, Case, Run
from benchmarks.stack import CpuSeconds
from benchmarks.turns import Turns
from benchmarks.workload import Shape

__all__ = ["measure_idempotence"]

ACTIVITIES = {"off": IDEMPOTENCE_OFF, "on": IDEMPOTENCE_ON}


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
            runs, written = _take(bench, turns, bench.stack.cpu_seconds)
        for topic in (off, on):
            bench.require_rows(topic, written)
    for side, run in runs.items():
        bench.record(Case(ACTIVITIES[side], client.name, shape), run)


def _measure_kafka(bench: Bench, kafka: ApacheKafka, client: Client, shape: Shape) -> None:
    records = bench.workload.turn_records[shape.record_bytes]
    with ExitStack() as context:
        topics = {side: context.enter_context(kafka.topic(shape.partitions)) for side in ACTIVITIES}
        bench.stack.settle()
        kafka.settle()
        turns = context.enter_context(client.turns(kafka.bootstrap, topics, shape, records))
        runs, _ = _take(bench, turns, lambda: CpuSeconds(kafka.cpu_seconds(), 0.0))
    for side, run in runs.items():
        bench.record(Case(ACTIVITIES[side], client.name, shape, KAFKA), run)


def _take(bench: Bench, turns: Turns, cpu_seconds: Callable[[], CpuSeconds]) -> tuple[dict[str, Run], int]:
    """The median turn of each side, since a checkpoint that falls on one of them is no difference between them, with
    the CPU of all its turns; and how many records each has written."""
    done: dict[str, list[Run]] = {side: [] for side in ACTIVITIES}
    written = dict.fromkeys(ACTIVITIES, 0)
    for number in range(bench.workload.warmup_turns + bench.workload.turns):
        for side in sorted(ACTIVITIES, reverse=(bench.repetition + number) % 2 == 0):
            before = cpu_seconds()
            records, seconds = turns.take(side)
            written[side] += records
            if number >= bench.workload.warmup_turns:
                done[side].append(Run.of(records / seconds, cpu_seconds() - before, records))
    assert written["off"] == written["on"]
    medians = {
        side: Run(
            median(run.records_per_s for run in runs),
            sum(run.gateway_cpu_s_per_million for run in runs) / len(runs),
            sum(run.postgres_cpu_s_per_million for run in runs) / len(runs),
        )
        for side, runs in done.items()
    }
    return medians, written["on"]
