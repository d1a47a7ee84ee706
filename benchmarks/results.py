"""Numbers of one run: what each repetition measured, and their medians with spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.clients import Percentiles
from benchmarks.stack import CpuSeconds
from benchmarks.workload import Shape

__all__ = ["RAW_COPY", "Case", "Results", "Run", "Spread", "Summary"]

RAW_COPY = "raw COPY"


@dataclass(frozen=True, slots=True)
class Case:
    """What was measured: an activity, by a client, with records of a shape."""

    activity: str
    client: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition."""

    records_per_s: float
    gateway_cpu_s_per_million: float
    postgres_cpu_s_per_million: float

    @classmethod
    def of(cls, records_per_s: float, cpu: CpuSeconds, records: int) -> Run:
        return cls(records_per_s, cpu.gateway / records * 1e6, cpu.postgres / records * 1e6)


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Summary:
    records_per_s: Spread
    megabytes_per_s: float
    """Of values, in millions of bytes."""
    gateway_cpu_s_per_million: float
    postgres_cpu_s_per_million: float
    ratio: Spread
    """To raw COPY of the same shape in the same repetition."""


@dataclass
class Results:
    """Filled while the benchmark runs; every case has its repetitions in the same order."""

    environment: dict[str, Any]
    runs: dict[Case, list[Run]] = field(default_factory=lambda: defaultdict(list))
    latencies: dict[str, list[Percentiles]] = field(default_factory=lambda: defaultdict(list))

    def summaries(self) -> Iterator[tuple[Case, Summary]]:
        """By shape, then activity, then client, each in the order of measuring: raw COPY comes first."""
        shapes = list(dict.fromkeys(case.shape for case in self.runs))
        activities = list(dict.fromkeys(case.activity for case in self.runs))
        for case in sorted(self.runs, key=lambda c: (shapes.index(c.shape), activities.index(c.activity))):
            yield case, self._summary(case)

    def latency_summaries(self) -> Iterator[tuple[str, Spread, Spread]]:
        """Client, p50 and p99."""
        for client, measured in self.latencies.items():
            yield (
                client,
                Spread.of([one.p50_ms for one in measured]),
                Spread.of([one.p99_ms for one in measured]),
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "cases": [
                {
                    "activity": case.activity,
                    "client": case.client,
                    **asdict(case.shape),
                    "summary": asdict(summary),
                    "runs": [asdict(run) for run in self.runs[case]],
                }
                for case, summary in self.summaries()
            ],
            "latencies": [
                {"client": client, "runs": [asdict(one) for one in measured]}
                for client, measured in self.latencies.items()
            ],
        }

    def _summary(self, case: Case) -> Summary:
        runs = self.runs[case]
        limits = self.runs[Case(RAW_COPY, "", case.shape)]
        rates = Spread.of([run.records_per_s for run in runs])
        ratios = [run.records_per_s / limit.records_per_s for run, limit in zip(runs, limits, strict=True)]
        return Summary(
            records_per_s=rates,
            megabytes_per_s=rates.median * case.shape.record_bytes / 1e6,
            gateway_cpu_s_per_million=median(run.gateway_cpu_s_per_million for run in runs),
            postgres_cpu_s_per_million=median(run.postgres_cpu_s_per_million for run in runs),
            ratio=Spread.of(ratios),
        )
