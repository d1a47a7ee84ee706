"""What every part measures with: topics, runs with their CPU time, and comparisons in which drift cancels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.apache_kafka import ApacheKafka
from benchmarks.clients import Client, ClientFailed
from benchmarks.results import Case, Results, Run
from benchmarks.stack import Stack, Topic
from benchmarks.workload import Part, Shape, Workload

__all__ = ["Bench", "Leg", "Say"]

Say = Callable[[str], None]


class Leg(NamedTuple):
    """One side of a comparison."""

    activity: str
    run: Callable[[], Run]


@dataclass(frozen=True)
class Bench:
    """One repetition of some parts."""

    repetition: int

    stack: Stack
    clients: Sequence[Client]
    workload: Workload
    results: Results
    parts: Sequence[Part]
    say: Say
    kafka: ApacheKafka | None = None
    """Only where Java is there, and only for the parts that compare with it."""

    @contextmanager
    def topic(self, partitions: int, **configs: str) -> Iterator[Topic]:
        """An empty topic, for as long as it is needed, and nothing left to write from before."""
        topic = self.stack.create_topic(partitions, **configs)
        self.stack.settle()
        yield topic
        self.stack.drop_topic(topic)

    def run(self, action: Callable[[], float], *, records: int) -> Run:
        """What `action`, which returns records per second, achieves and costs."""
        before = self.stack.cpu_seconds()
        rate = action()
        return Run.of(rate, self.stack.cpu_seconds() - before, records)

    def record(self, case: Case, run: Run) -> None:
        self.results.runs[case].append(run)
        words = (f"{case.shape}:", case.activity, case.client, case.broker, f"{run.records_per_s:,.0f} records/s")
        self.say(" ".join(filter(None, words)))

    def compare(
        self,
        client: Client,
        shape: Shape,
        base: Leg,
        other: Leg,
        *,
        is_doubled: bool = False,
    ) -> None:
        """Run both. Doubled, in the order base, other, other, base: what grows or fades meanwhile falls on both
        alike. Otherwise every second repetition turns the order round.
        """
        order = [base, other] if self.repetition % 2 else [other, base]
        if is_doubled:
            order += reversed(order)
        done: dict[str, list[Run]] = {base.activity: [], other.activity: []}
        for leg in order:
            done[leg.activity].append(leg.run())
        for activity, runs in done.items():
            self.record(Case(activity, client.name, shape), Run.joined(runs))

    def require_rows(self, topic: Topic, records: int) -> None:
        """A fast loss is no speed."""
        if (found := self.stack.count_rows(topic)) != records:
            raise ClientFailed(f"{records} records were sent, {found} rows are there")
