"""Produce and consume next to raw COPY, and the latency of acknowledgements."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.bench import Bench
from benchmarks.raw_copy import prepare_rows, time_copy
from benchmarks.results import CONSUME_ROWS, CONSUME_TAIL, PRODUCE, RAW_COPY, Case, Timing
from benchmarks.workload import Part, Shape

__all__ = ["measure_latency", "measure_throughput"]


def measure_throughput(bench: Bench) -> None:
    """Consuming needs records: without the part that counts it, producing is done but not recorded."""
    for shape in bench.workload.shapes:
        _measure_shape(bench, shape, bench.workload.records[shape.record_bytes])


def measure_latency(bench: Bench) -> None:
    shape, rate, seconds = (
        bench.workload.latency_shape,
        bench.workload.latency_rate,
        bench.workload.latency_seconds,
    )
    for client in bench.clients:
        with bench.topic(shape.partitions) as topic:
            measured = client.latency(bench.stack.bootstrap, topic.name, shape, rate=rate, seconds=seconds)
        bench.results.timings[Timing(Part.LATENCY, client.name)].append(measured)
        bench.say(f"{shape}: latency {client.name} p50 {measured.p50_ms:.1f} ms, p99 {measured.p99_ms:.1f} ms")


def _measure_shape(bench: Bench, shape: Shape, records: int) -> None:
    stack = bench.stack
    _measure_raw_copy(bench, shape, records)
    with ExitStack() as topics:
        places = [(client, topics.enter_context(bench.topic(shape.partitions))) for client in bench.clients]
        for client, topic in places:
            stack.settle()
            produce = partial(client.produce, stack.bootstrap, topic.name, shape, records)
            produced = bench.run(produce, records=records)
            bench.require_rows(topic, records)
            if Part.PRODUCE in bench.parts:
                bench.record(Case(PRODUCE, client.name, shape), produced)
            if Part.CONSUME in bench.parts:
                consume = partial(client.consume, stack.bootstrap, topic.name, shape, records)
                bench.record(Case(CONSUME_TAIL, client.name, shape), bench.run(consume, records=records))
        if Part.CONSUME in bench.parts:
            stack.restart_gateway()
            for client, topic in places:
                consume = partial(client.consume, stack.bootstrap, topic.name, shape, records)
                bench.record(Case(CONSUME_ROWS, client.name, shape), bench.run(consume, records=records))


def _measure_raw_copy(bench: Bench, shape: Shape, records: int) -> None:
    with bench.topic(shape.partitions) as topic:
        data = prepare_rows(shape, topic_id=topic.topic_id, records=records)
        copied = bench.run(lambda: records / time_copy(bench.stack.database_url, data), records=records)
        bench.require_rows(topic, records)
    bench.record(Case(RAW_COPY, "", shape), copied)
