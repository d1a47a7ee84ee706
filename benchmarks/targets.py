"""What Tablewire is to reach next to Apache Kafka, and whether a run reached it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.results import (
    CONSUME_ROWS,
    CONSUME_TAIL,
    FLUSHED_KAFKA,
    KAFKA,
    PRODUCE,
    RAW_COPY,
    TABLEWIRE,
    TRANSACTIONAL,
    Case,
    Results,
    Spread,
    Timing,
)
from benchmarks.workload import Part, Shape

__all__ = ["Judged", "judge"]

CLIENT = "Java"
SMALL, LARGE = 100, 1024

PRODUCE_TARGETS = (
    (Shape(LARGE, 6), ((KAFKA, 0.9), (FLUSHED_KAFKA, 2.0), (RAW_COPY, 0.5))),
    (Shape(LARGE, 1), ((KAFKA, 0.6), (FLUSHED_KAFKA, 1.5))),
    (Shape(SMALL, 6), ((KAFKA, 0.55), (FLUSHED_KAFKA, 1.0), (RAW_COPY, 0.5))),
    (Shape(SMALL, 1), ((KAFKA, 0.4),)),
)
CONSUME_TARGETS = ((CONSUME_TAIL, 0.5), (CONSUME_ROWS, 0.25))
TRANSACTIONAL_AT_LEAST = 0.8
P50_AT_MOST_MS, P99_AT_MOST_MS = 5.0, 25.0
SHAPES = tuple(shape for shape, _ in PRODUCE_TARGETS)


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure of a run, its target, and whether the median met it."""

    what: str
    against: str
    figure: Spread
    target: str
    is_met: bool
    ceiling: Spread | None = None
    """What a gateway that costs nothing would reach, where that is known."""


def judge(results: Results) -> Iterator[Judged]:
    """In the order of the targets; what a run did not measure is left out."""
    for shape, aims in PRODUCE_TARGETS:
        for broker, at_least in aims:
            client = "" if broker == RAW_COPY else CLIENT
            base = Case(PRODUCE, client, shape, broker)
            for judged in _ratio(results, Case(PRODUCE, CLIENT, shape, TABLEWIRE), base, broker, at_least):
                yield replace(judged, ceiling=results.ceiling(shape, CLIENT, base))
    for activity, at_least in CONSUME_TARGETS:
        for shape in SHAPES:
            base = Case(activity, CLIENT, shape, KAFKA)
            yield from _ratio(results, Case(activity, CLIENT, shape, TABLEWIRE), base, KAFKA, at_least)
    for shape in SHAPES:
        ours, plain = (Case(activity, CLIENT, shape, TABLEWIRE) for activity in (TRANSACTIONAL, PRODUCE))
        yield from _ratio(results, ours, plain, "idempotent produce", TRANSACTIONAL_AT_LEAST)
    yield from _latencies(results)
    for shape in SHAPES:
        if shape.record_bytes == SMALL:
            yield from _cpu(results, Case(PRODUCE, CLIENT, shape, TABLEWIRE))


def _ratio(results: Results, ours: Case, base: Case, against: str, at_least: float) -> Iterator[Judged]:
    if ours in results.runs and base in results.runs:
        ratio = results.ratio(ours, base)
        yield Judged(f"{ours.activity}, {ours.shape}", against, ratio, f"≥ {at_least:g}", ratio.median >= at_least)


def _latencies(results: Results) -> Iterator[Judged]:
    for timing, measured in list(results.timings.items()):
        broker, _, client = timing.name.partition(", ")
        if timing.part is not Part.KAFKA or broker != TABLEWIRE:
            continue
        p50, p99 = Spread.of(one.p50_ms for one in measured), Spread.of(one.p99_ms for one in measured)
        for name, figure, at_most in (("p50 ms", p50, P50_AT_MOST_MS), ("p99 ms", p99, P99_AT_MOST_MS)):
            yield Judged(f"latency {name}, {client}", "", figure, f"≤ {at_most:g}", figure.median <= at_most)
        ratio = results.p50_ratio(timing, Timing(Part.KAFKA, f"{KAFKA}, {client}"))
        yield Judged(f"latency p50, {client}", KAFKA, ratio, "≤ 1", ratio.median <= 1)


def _cpu(results: Results, case: Case) -> Iterator[Judged]:
    if case in results.runs:
        runs = results.runs[case]
        ratio = Spread.of(run.gateway_cpu_s_per_million / run.postgres_cpu_s_per_million for run in runs)
        yield Judged(f"gateway CPU, {case.activity}, {case.shape}", "PostgreSQL's CPU", ratio, "≤ 1", ratio.median <= 1)
