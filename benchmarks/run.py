"""The order of measuring.

Every repetition goes once through all shapes, so that a slow minute of the machine hits them alike.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.clients import Client, ClientFailed
from benchmarks.raw_copy import prepare_rows, time_copy
from benchmarks.results import RAW_COPY, Case, Results, Run
from benchmarks.stack import Stack, Topic
from benchmarks.workload import QUICK, Shape, Workload

__all__ = ["CONSUME_ROWS", "CONSUME_TAIL", "PRODUCE", "measure"]

PRODUCE = "produce"
CONSUME_TAIL = "consume, tail"
CONSUME_ROWS = "consume, rows"

Say = Callable[[str], None]


def measure(stack: Stack, clients: Sequence[Client], workload: Workload, say: Say) -> Results:
    """Run everything, telling progress by `say`. The first, short round warms up and is forgotten."""
    started = time.monotonic()
    warmup = Results({})
    for shape in workload.shapes:
        _measure_shape(stack, clients, shape, QUICK.records[shape.record_bytes], warmup, _nothing)
    say(f"warmed up in {time.monotonic() - started:.0f} s")
    results = Results(_environment(stack, clients, workload))
    for repetition in range(1, workload.repetitions + 1):
        tell = partial(_tell, say, f"[{repetition}/{workload.repetitions}]")
        for shape in workload.shapes:
            records = workload.records[shape.record_bytes]
            _measure_shape(stack, clients, shape, records, results, tell)
        for client in clients:
            _measure_latency(stack, client, workload, results, tell)
    results.environment["duration_s"] = round(time.monotonic() - started)
    return results


def _measure_shape(
    stack: Stack, clients: Sequence[Client], shape: Shape, records: int, results: Results, say: Say
) -> None:
    def timed(activity: str, client: str, action: Callable[[], float]) -> None:
        before = stack.cpu_seconds()
        rate = action()
        run = Run.of(rate, stack.cpu_seconds() - before, records)
        results.runs[Case(activity, client, shape)].append(run)
        say(f"{shape}: {activity} {client}".rstrip() + f" {rate:,.0f} records/s")

    _measure_raw_copy(stack, shape, records, timed)
    topics = [stack.create_topic(shape.partitions) for _ in clients]
    for client, topic in zip(clients, topics, strict=True):
        stack.settle()
        timed(PRODUCE, client.name, partial(client.produce, stack.bootstrap, topic.name, shape, records))
        _require_rows(stack, topic, records)
        timed(CONSUME_TAIL, client.name, partial(client.consume, stack.bootstrap, topic.name, shape, records))
    stack.restart_gateway()
    for client, topic in zip(clients, topics, strict=True):
        timed(CONSUME_ROWS, client.name, partial(client.consume, stack.bootstrap, topic.name, shape, records))
        stack.drop_topic(topic)


def _measure_raw_copy(
    stack: Stack, shape: Shape, records: int, timed: Callable[[str, str, Callable[[], float]], None]
) -> None:
    topic = stack.create_topic(shape.partitions)
    data = prepare_rows(shape, topic_id=topic.topic_id, records=records)
    stack.settle()
    timed(RAW_COPY, "", lambda: records / time_copy(stack.database_url, data))
    _require_rows(stack, topic, records)
    stack.drop_topic(topic)


def _measure_latency(stack: Stack, client: Client, workload: Workload, results: Results, say: Say) -> None:
    shape = workload.latency_shape
    topic = stack.create_topic(shape.partitions)
    stack.settle()
    measured = client.latency(
        stack.bootstrap, topic.name, shape, rate=workload.latency_rate, seconds=workload.latency_seconds
    )
    results.latencies[client.name].append(measured)
    stack.drop_topic(topic)
    say(f"{shape}: latency {client.name} p50 {measured.p50_ms:.1f} ms, p99 {measured.p99_ms:.1f} ms")


def _require_rows(stack: Stack, topic: Topic, records: int) -> None:
    """A fast loss is no speed."""
    if (found := stack.count_rows(topic)) != records:
        raise ClientFailed(f"{records} records were sent, {found} rows are there")


def _environment(stack: Stack, clients: Sequence[Client], workload: Workload) -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "postgresql": stack.postgres_version,
        "clients": {client.name: client.version for client in clients},
        "repetitions": workload.repetitions,
        "records": {str(size): count for size, count in workload.records.items()},
        "latency": f"{workload.latency_rate:,} records/s of {workload.latency_shape}, "
        f"{workload.latency_seconds} s each",
    }


def _tell(say: Say, prefix: str, text: str) -> None:
    say(f"{prefix} {text}")


def _nothing(text: str) -> None:
    pass
