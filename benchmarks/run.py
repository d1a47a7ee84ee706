"""The order of measuring: part after part, each in repetitions that go once through everything in it.

A slow minute of the machine so hits what is compared alike.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.against_kafka import measure_against_kafka
from benchmarks.apache_kafka import ApacheKafka
from benchmarks.bench import Bench, Say
from benchmarks.clients import Client, JavaClient
from benchmarks.groups import measure_groups
from benchmarks.idempotence import measure_idempotence
from benchmarks.keys import measure_keys
from benchmarks.raw_copy import prepare_rows, time_copy
from benchmarks.results import Results
from benchmarks.stack import Stack
from benchmarks.throughput import measure_latency, measure_throughput
from benchmarks.transactions import measure_transactions
from benchmarks.worker import measure_worker
from benchmarks.workload import QUICK, Part, Shape, Workload

__all__ = ["measure"]

STEPS: tuple[tuple[tuple[Part, ...], Callable[[Bench], None]], ...] = (
    ((Part.PRODUCE, Part.CONSUME), measure_throughput),
    ((Part.LATENCY,), measure_latency),
    ((Part.KAFKA,), measure_against_kafka),
    ((Part.IDEMPOTENCE,), measure_idempotence),
    ((Part.TRANSACTIONS,), measure_transactions),
    ((Part.KEYS,), measure_keys),
    ((Part.WORKER,), measure_worker),
    # Last: its groups stay in the database.
    ((Part.GROUPS,), measure_groups),
)


AGE_SHAPE, AGE_TOPICS, AGE_RECORDS = Shape(1024, 6), 5, 200_000
"""Together more than the buffers, and than the log that is kept to be used again."""

BESIDE_KAFKA = (Part.PRODUCE, Part.CONSUME, Part.LATENCY)
"""What the Java client does next to Apache Kafka too, and need not do twice."""


def measure(
    stack: Stack,
    clients: Sequence[Client],
    workload: Workload,
    parts: Collection[Part],
    say: Say,
    *,
    kafka: ApacheKafka | None = None,
) -> Results:
    """Measure `parts`, telling progress by `say`. A short round warms each of them up and is forgotten."""
    results = Results(_environment(stack, clients, workload))
    if workload.records != QUICK.records:
        _age(stack)
    for together, step in STEPS:
        wanted = [part for part in together if part in parts]
        if not wanted or (wanted == [Part.KAFKA] and kafka is None):
            continue
        if kafka is not None and Part.KAFKA in parts and wanted[0] in BESIDE_KAFKA:
            taking_part: Sequence[Client] = [client for client in clients if not isinstance(client, JavaClient)]
        else:
            taking_part = clients
        started = time.monotonic()
        if workload.records != QUICK.records:
            step(Bench(0, stack, taking_part, QUICK, Results({}), wanted, _nothing, kafka))
            say(f"{' and '.join(wanted)}: warmed up in {time.monotonic() - started:.0f} s")
        for repetition in range(1, workload.repetitions + 1):
            tell = partial(_tell, say, f"[{repetition}/{workload.repetitions}]")
            step(Bench(repetition, stack, taking_part, workload, results, wanted, tell, kafka))
        # Parts that are measured together took their time together.
        results.seconds[wanted[0]] = round(time.monotonic() - started)
    return results


def _age(stack: Stack) -> None:
    """Make the database one that has been at work. A new one makes the files of its log as it comes to them, filling
    each with zeros first, and touches each of its buffers for the first time; producing took it twice the CPU."""
    with ExitStack() as topics:
        for _ in range(AGE_TOPICS):
            topic = stack.create_topic(AGE_SHAPE.partitions)
            topics.callback(stack.drop_topic, topic)
            time_copy(stack.database_url, prepare_rows(AGE_SHAPE, topic_id=topic.topic_id, records=AGE_RECORDS))
    stack.settle()


def _environment(stack: Stack, clients: Sequence[Client], workload: Workload) -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "postgresql": stack.postgres_version,
        "clients": {client.name: client.version for client in clients},
        "repetitions": workload.repetitions,
        "records": {str(size): count for size, count in workload.records.items()},
        "kafka_records": {str(size): count for size, count in workload.kafka_records.items()},
        "compared_records": {str(size): count for size, count in workload.compared_records.items()},
        "turn_records": {str(size): workload.turns * count for size, count in workload.turn_records.items()},
        "kafka_latency": f"{workload.latency_rate:,} records/s of {workload.latency_shape}, "
        f"{workload.kafka_latency_seconds} s each",
        "latency": f"{workload.latency_rate:,} records/s of {workload.latency_shape}, "
        f"{workload.latency_seconds} s each",
        "commits": f"{workload.commits} transactions of {workload.commit_records} records over "
        f"{workload.commit_shape.partitions} partitions each",
        "groups": f"{workload.group_load}, {workload.group_load.seconds} s each",
    }


def _tell(say: Say, prefix: str, text: str) -> None:
    say(f"{prefix} {text}")


def _nothing(text: str) -> None:
    pass
