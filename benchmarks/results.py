"""Numbers of one run: what each repetition measured, and their medians with spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.clients import Percentiles
from benchmarks.stack import CpuSeconds
from benchmarks.workload import Part, Shape

__all__ = ["COMPARISONS", "Case", "Comparison", "Results", "Run", "Spread", "Summary", "Timing", "growth_of"]

EFFECTS = {1: "one effect to a commit", 100: "100 effects to a commit"}
RAW_COPY = "raw COPY"
PRODUCE = "produce"
CONSUME_TAIL = "consume, tail"
CONSUME_ROWS = "consume, rows"
IDEMPOTENCE_OFF = "produce, idempotence off"
IDEMPOTENCE_ON = "produce, idempotence on"
KEYS_OFF = "produce, business keys off"
KEYS_ON = "produce, business keys on"
NOT_TRANSACTIONAL = "produce, idempotent"
TRANSACTIONAL = "produce, transactional"
UNCOMMITTED_TAIL = "read_uncommitted, tail"
COMMITTED_TAIL = "read_committed, tail"
UNCOMMITTED_ROWS = "read_uncommitted, rows"
COMMITTED_ROWS = "read_committed, rows"

TABLEWIRE = "Tablewire"
KAFKA = "Apache Kafka"
FLUSHED_KAFKA = "Apache Kafka, flush.messages=1"
MACHINE = "The machine"
"""What it does by itself, for comparison."""


@dataclass(frozen=True, slots=True)
class Case:
    """What was measured: an activity, by a client, with records of a shape."""

    activity: str
    client: str
    shape: Shape
    broker: str = ""
    """Named only where several are measured side by side."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One activity against another of the same client, shape and repetition."""

    part: Part
    activity: str
    base: str
    at_least: float
    """The target of the ratio."""


COMPARISONS = (
    Comparison(Part.IDEMPOTENCE, IDEMPOTENCE_ON, IDEMPOTENCE_OFF, 0.95),
    Comparison(Part.TRANSACTIONS, TRANSACTIONAL, NOT_TRANSACTIONAL, 0.8),
    Comparison(Part.TRANSACTIONS, COMMITTED_TAIL, UNCOMMITTED_TAIL, 0.9),
    Comparison(Part.TRANSACTIONS, COMMITTED_ROWS, UNCOMMITTED_ROWS, 0.9),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Something of which single times were taken."""

    part: Part
    name: str


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition."""

    records_per_s: float
    gateway_cpu_s_per_million: float
    postgres_cpu_s_per_million: float
    client_cpu_s_per_million: float | None = None
    """Where it was measured."""

    @classmethod
    def of(cls, records_per_s: float, cpu: CpuSeconds, records: int) -> Run:
        return cls(records_per_s, cpu.gateway / records * 1e6, cpu.postgres / records * 1e6)

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """Several of equally many records as one: all their records in all their time."""
        return cls(
            len(runs) / sum(1 / run.records_per_s for run in runs),
            sum(run.gateway_cpu_s_per_million for run in runs) / len(runs),
            sum(run.postgres_cpu_s_per_million for run in runs) / len(runs),
        )


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        known = list(values)
        return cls(median(known), min(known), max(known))


@dataclass(frozen=True, slots=True)
class Summary:
    records_per_s: Spread
    megabytes_per_s: float
    """Of values, in millions of bytes."""
    gateway_cpu_s_per_million: float
    postgres_cpu_s_per_million: float
    client_cpu_s_per_million: float | None


@dataclass
class Results:
    """Filled while the benchmark runs; every case has its repetitions in the same order."""

    environment: dict[str, Any]
    runs: dict[Case, list[Run]] = field(default_factory=lambda: defaultdict(list))
    neighbours: dict[tuple[Case, Case], list[float]] = field(default_factory=lambda: defaultdict(list))
    """Where two cases took turns: of each repetition, the ratio of the first to the second as neighbouring turns show
    it."""
    timings: dict[Timing, list[Percentiles]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[Part, int] = field(default_factory=dict)
    """How long each part took."""

    def cases(self, *activities: str, broker: str = "") -> Iterator[Case]:
        """By shape, then activity, then client, each in the order of measuring."""
        shapes = list(dict.fromkeys(case.shape for case in self.runs))
        chosen = [case for case in self.runs if case.activity in activities and case.broker == broker]
        yield from sorted(chosen, key=lambda case: (shapes.index(case.shape), activities.index(case.activity)))

    def side_by_side(self) -> list[Case]:
        """Those of all brokers: by activity, then by shape, in the order of measuring."""
        activities = {case.activity for case in self.runs if case.broker == TABLEWIRE}
        chosen = [case for case in self.runs if case.broker and case.activity in activities]
        order = list(dict.fromkeys(case.activity for case in chosen))
        shapes = list(dict.fromkeys(case.shape for case in chosen))
        return sorted(chosen, key=lambda case: (order.index(case.activity), shapes.index(case.shape), case.broker))

    def summary(self, case: Case) -> Summary:
        runs = self.runs[case]
        rates = Spread.of(run.records_per_s for run in runs)
        of_clients = [run.client_cpu_s_per_million for run in runs if run.client_cpu_s_per_million is not None]
        return Summary(
            records_per_s=rates,
            megabytes_per_s=rates.median * case.shape.record_bytes / 1e6,
            gateway_cpu_s_per_million=median(run.gateway_cpu_s_per_million for run in runs),
            postgres_cpu_s_per_million=median(run.postgres_cpu_s_per_million for run in runs),
            client_cpu_s_per_million=median(of_clients) if of_clients else None,
        )

    def ratio(self, case: Case, base: Case) -> Spread:
        """Of records per second, repetition by repetition."""
        if (case, base) in self.neighbours:
            return Spread.of(self.neighbours[case, base])
        pairs = zip(self.runs[case], self.runs[base], strict=True)
        return Spread.of(run.records_per_s / other.records_per_s for run, other in pairs)

    def ceiling(self, shape: Shape, client: str, base: Case) -> Spread | None:
        """What the same client would reach of `base` if the gateway cost nothing, PostgreSQL what raw COPY costs, and
        no core were ever idle; None where that was not measured. The client is taken as cheap as it was next to either
        broker: it compiles for as long as it runs."""
        used = [Case(PRODUCE, client, shape, broker) for broker in (TABLEWIRE, KAFKA)]
        used += [Case(PRODUCE, "", shape, RAW_COPY), base]
        if not all(case in self.runs for case in used):
            return None
        reached = []
        for *runs, copied, other in zip(*(self.runs[case] for case in used), strict=True):
            taken = [run.client_cpu_s_per_million for run in runs if run.client_cpu_s_per_million is not None]
            if taken:
                busy_s_per_million = min(taken) + copied.postgres_cpu_s_per_million
                reached.append(self.environment["cores"] * 1e6 / busy_s_per_million / other.records_per_s)
        return Spread.of(reached) if reached else None

    def of_raw_copy(self, case: Case) -> Spread:
        return self.ratio(case, Case(RAW_COPY, "", case.shape))

    def compared(self, comparison: Comparison, *, broker: str = "") -> Iterator[tuple[Case, Case, Spread]]:
        """Each case, what it is measured against, and the ratio."""
        for case in self.cases(comparison.activity, broker=broker):
            base = Case(comparison.base, case.client, case.shape, broker)
            yield case, base, self.ratio(case, base)

    def timed(self, part: Part) -> Iterator[tuple[str, Spread, Spread]]:
        """Name, p50 and p99."""
        for timing, measured in self.timings.items():
            if timing.part is part:
                yield (
                    timing.name,
                    Spread.of(one.p50_ms for one in measured),
                    Spread.of(one.p99_ms for one in measured),
                )

    def p50_ratio(self, timing: Timing, base: Timing) -> Spread:
        pairs = zip(self.timings[timing], self.timings[base], strict=True)
        return Spread.of(one.p50_ms / other.p50_ms for one, other in pairs)

    def as_json(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "seconds": self.seconds,
            "cases": [
                {
                    "activity": case.activity,
                    "client": case.client,
                    "broker": case.broker,
                    **asdict(case.shape),
                    "summary": asdict(self.summary(case)),
                    "runs": [asdict(run) for run in runs],
                }
                for case, runs in self.runs.items()
            ],
            "comparisons": [
                {
                    **asdict(comparison),
                    "client": case.client,
                    **asdict(case.shape),
                    "ratio": asdict(ratio),
                }
                for comparison in COMPARISONS
                for case, _, ratio in self.compared(comparison)
            ],
            "timings": [
                {**asdict(timing), "runs": [asdict(one) for one in measured]}
                for timing, measured in self.timings.items()
            ],
        }


def growth_of(costs: Sequence[float]) -> float:
    """The most that a cost grew from any size to any larger one."""
    return max(later / earlier for number, earlier in enumerate(costs) for later in costs[number + 1 :])
