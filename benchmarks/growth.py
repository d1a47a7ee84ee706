"""`python -m benchmarks.growth` (`make bench-growth`): what a record costs as partitions, producers and rows grow.

Cost is CPU time per record, of the gateway and of PostgreSQL; next to it records per second and the gateway's memory.
Plots go to build/growth. Before each measurement the gateway is started anew, so that it has nothing in memory, and
answers a few requests, so that nobody pays for its imports.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.__main__ import TABLE_WIDTH, unwind_on_termination
from benchmarks.clients import ClientFailed, Guarantee, Prepared, fetch_range
from benchmarks.plots import Panel, draw
from benchmarks.raw_copy import fill
from benchmarks.report import Section, print_section, write_section
from benchmarks.results import Run, growth_of
from benchmarks.stack import Stack, StackFailed, Topic
from benchmarks.workload import Shape
from gateway.errors import StartupError
from tests.support.gateway_process import GatewayFailed

PARTITIONS = (1, 10, 100, 1_000)
PRODUCERS = (1, 10, 100, 500)
MILLION = 1_000_000
ROWS = (0, 1 * MILLION, 5 * MILLION, 20 * MILLION, 50 * MILLION)
ROW_BYTES, MORE_BYTES = 250, 6 * 1024**3
"""What a row takes on disk, and what the cluster does besides: its log above all."""
SHAPE = Shape(100, 6)
WARM_UP = Shape(100, 1)
DISK_SHAPES = (Shape(100, 6), Shape(1024, 6))
FETCHES = ("earliest", "middle", "end")
FLAT = 1.5
"""A record may cost so many times what it costs at a smaller size: more is growth, less is noise."""

TAIL_BYTES = 32 * 1024 * 1024
"""Smaller than by default, and filled by every measurement: what else would grow in memory is not hidden by it."""
SETTINGS = {"TABLEWIRE_TAIL_CACHE_BYTES": str(TAIL_BYTES)}


@dataclass(frozen=True, slots=True)
class Load:
    """How much one measurement moves."""

    partition_records: int = 600_000
    producer_records: int = 900_000
    rows_records: int = 300_000
    fetch_records: int = 300_000
    disk_records: int = 300_000


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: of an activity, at a size."""

    activity: str
    size: int
    run: Run
    peak_mb: float

    @property
    def cost(self) -> float:
        """CPU seconds of gateway and PostgreSQL per million records."""
        return self.run.gateway_cpu_s_per_million + self.run.postgres_cpu_s_per_million


@dataclass(frozen=True, slots=True)
class Disk:
    """What a record takes, in bytes."""

    shape: Shape
    guarantee: Guarantee
    table: float
    indexes: float
    wal: float


class Growth:
    """Everything that is measured, on one stack."""

    def __init__(self, stack: Stack, load: Load, say: Callable[[str], None], *, repetitions: int) -> None:
        self._stack = stack
        self._load = load
        self._say = say
        self._repetitions = repetitions
        self._warm_up = stack.create_topic(1)
        self.points: list[Point] = []
        self.disk: list[Disk] = []

    def measure_partitions(self) -> None:
        for partitions in self._in_turns(PARTITIONS):
            produce = partial(self._produce_anew, Shape(SHAPE.record_bytes, partitions), self._load.partition_records)
            self._record("partitions", partitions, produce)

    def measure_producers(self) -> None:
        for producers in self._in_turns(PRODUCERS):
            produce = partial(self._produce_anew, SHAPE, self._load.producer_records, producers=producers)
            self._record("producers", producers, produce)

    def measure_rows(self, sizes: Iterable[int]) -> None:
        """One topic that grows: filled by COPY to each size, written to by the gateway, read at three places."""
        topic = self._stack.create_topic(SHAPE.partitions)
        each = 0
        for size in sizes:
            if (wanted := size // SHAPE.partitions) > each:
                self._say(f"rows: filling up to {size:,}")
                fill(self._stack.database_url, SHAPE, topic_id=topic.topic_id, offsets=range(each, wanted))
                self._stack.take_in(topic, wanted)
                each = wanted
            for _ in range(self._repetitions):
                produced: list[int] = []
                self._record("rows", size, partial(self._produce, topic, SHAPE, self._load.rows_records, sent=produced))
                each += produced[0] // SHAPE.partitions
            wanted = min(each, self._load.fetch_records // SHAPE.partitions)
            starts = {"earliest": 0, "middle": (each - wanted) // 2, "end": each - wanted}
            for place in FETCHES * self._repetitions:
                fetch = partial(self._fetch, topic, range(starts[place], starts[place] + wanted))
                self._record(f"fetch, {place}", size, fetch)
        self._stack.drop_topic(topic)

    def measure_disk(self) -> None:
        for shape in DISK_SHAPES:
            for guarantee in (Guarantee.NONE, Guarantee.IDEMPOTENT):
                topic = self._stack.create_topic(shape.partitions)
                self._stack.settle()
                records = self._load.disk_records * 100 // shape.record_bytes
                before = self._stack.wal_position()
                done = Prepared().produce(self._stack.bootstrap, topic.name, shape, records, guarantee)
                wal = self._stack.wal_position() - before
                table, indexes = self._stack.storage_bytes(topic)
                found = Disk(shape, guarantee, *(size_bytes / done.records for size_bytes in (table, indexes, wal)))
                self.disk.append(found)
                self._say(
                    f"{shape}, {guarantee.value}: {found.table:.0f} + {found.indexes:.0f} B, WAL {found.wal:.0f} B"
                )
                self._stack.drop_topic(topic)

    def _in_turns(self, sizes: Sequence[int]) -> Iterable[int]:
        """Every size as often as asked for, upwards and downwards by turns: what drifts falls on all."""
        for repetition in range(self._repetitions):
            yield from reversed(sizes) if repetition % 2 else sizes

    def _record(self, activity: str, size: int, measure: Callable[[], Run]) -> None:
        self._stack.restart_gateway()
        self._produce(self._warm_up, WARM_UP, 1)
        fetch_range(self._stack.bootstrap, self._warm_up.name, WARM_UP, range(1))
        self._stack.settle()
        run = measure()
        point = Point(activity, size, run, self._stack.gateway_peak_mb())
        self.points.append(point)
        self._say(
            f"{activity} {size:,}: {run.records_per_s:,.0f} records/s, CPU s/M {run.gateway_cpu_s_per_million:.2f} + "
            f"{run.postgres_cpu_s_per_million:.2f}, {point.peak_mb:.0f} MB"
        )

    def _produce_anew(self, shape: Shape, records: int, *, producers: int = 1) -> Run:
        topic = self._stack.create_topic(shape.partitions)
        run = self._produce(topic, shape, records, producers=producers)
        self._stack.drop_topic(topic)
        return run

    def _produce(
        self, topic: Topic, shape: Shape, records: int, *, producers: int = 1, sent: list[int] | None = None
    ) -> Run:
        before = self._stack.cpu_seconds()
        done = Prepared().produce(
            self._stack.bootstrap, topic.name, shape, records, Guarantee.IDEMPOTENT, producers=producers
        )
        if sent is not None:
            sent.append(done.records)
        return Run.of(done.records_per_s, self._stack.cpu_seconds() - before, done.records)

    def _fetch(self, topic: Topic, offsets: range) -> Run:
        before = self._stack.cpu_seconds()
        done = fetch_range(self._stack.bootstrap, topic.name, SHAPE, offsets)
        return Run.of(done.records_per_s, self._stack.cpu_seconds() - before, done.records)


@dataclass(frozen=True, slots=True)
class Medians:
    """An activity at one size, over its repetitions."""

    records_per_s: float
    gateway: float
    postgres: float
    cost: float
    cost_low: float
    cost_high: float
    peak_mb: float
    """The highest, not the median."""


def summarise(points: Sequence[Point]) -> dict[str, dict[int, Medians]]:
    """By activity and size, in the order of measuring."""
    found: dict[str, dict[int, list[Point]]] = {}
    for point in points:
        found.setdefault(point.activity, {}).setdefault(point.size, []).append(point)
    return {
        activity: {
            size: Medians(
                median(one.run.records_per_s for one in measured),
                median(one.run.gateway_cpu_s_per_million for one in measured),
                median(one.run.postgres_cpu_s_per_million for one in measured),
                median(one.cost for one in measured),
                min(one.cost for one in measured),
                max(one.cost for one in measured),
                max(one.peak_mb for one in measured),
            )
            for size, measured in sorted(by_size.items())
        }
        for activity, by_size in found.items()
    }


def build_section(points: Sequence[Point], disk: Sequence[Disk], facts: str) -> Section:
    summaries = summarise(points)
    section = Section()
    for activity, by_size in summaries.items():
        if len(by_size) > 1:
            sizes, ratio = list(by_size), growth_of([one.cost for one in by_size.values()])
            verdict = "met" if ratio <= FLAT else "missed"
            section.sentences.append(
                f"{activity.capitalize()}, {sizes[0]:,} to {sizes[-1]:,}: a record costs at most {ratio:.2f} times "
                f"what it does at a smaller size, target {FLAT}: {verdict}."
            )
    peak = max((point.peak_mb for point in points), default=0.0)
    section.sentences += [f"Memory: the gateway never had more than {peak:,.0f} MB resident.", facts]
    table: list[tuple[str, ...]] = [
        (
            activity,
            f"{size:,}",
            f"{one.records_per_s:,.0f}",
            f"{one.gateway:.2f}",
            f"{one.postgres:.2f}",
            f"{one.cost_low:.2f}–{one.cost_high:.2f}",
            f"{one.cost / next(iter(by_size.values())).cost:.2f}",
            f"{one.peak_mb:,.0f}",
        )
        for activity, by_size in summaries.items()
        for size, one in by_size.items()
    ]
    if table:
        heads: tuple[str, ...] = ("activity", "size", "records/s", "gateway CPU s/M", "PostgreSQL CPU s/M")
        heads += ("both (min–max)", "times the first", "gateway peak MB")
        section.tables.append((heads, table))
    if disk:
        rows: list[tuple[str, ...]] = [
            (
                str(one.shape),
                "idempotent" if one.guarantee is Guarantee.IDEMPOTENT else "plain",
                f"{one.table + one.indexes:.0f}",
                f"{one.table:.0f}",
                f"{one.indexes:.0f}",
                f"{one.wal:.0f}",
            )
            for one in disk
        ]
        heads = ("records × partitions", "producer", "bytes on disk per record", "of the table", "of its indexes")
        section.tables.append(((*heads, "WAL bytes per record"), rows))
    return section


def plot(points: Sequence[Point], directory: Path) -> list[Path]:
    """A file per thing that grows: speed, cost and memory next to each other."""
    summaries = summarise(points)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for activity in ("partitions", "producers", "rows"):
        if activity not in summaries:
            continue
        sizes = summaries[activity]
        places = [_short(size) for size in sizes]
        costs = {
            "gateway": [one.gateway for one in sizes.values()],
            "PostgreSQL": [one.postgres for one in sizes.values()],
        }
        panels = [
            Panel("produce, records/s", activity, places, {"produce": [one.records_per_s for one in sizes.values()]}),
            Panel("produce, CPU seconds per million records", activity, places, costs),
            Panel("gateway, peak MB resident", activity, places, {"produce": [one.peak_mb for one in sizes.values()]}),
        ]
        if activity == "rows":
            fetched = {name: summaries.get(f"fetch, {name}", {}) for name in FETCHES}
            lines = {
                name: [by_size[size].cost if size in by_size else None for size in sizes]
                for name, by_size in fetched.items()
            }
            panels.append(Panel("fetch, CPU seconds per million records", activity, places, lines))
        path = directory / f"{activity}.svg"
        draw(panels, path)
        written.append(path)
    return written


def _short(size: int) -> str:
    return f"{size // MILLION} M" if size >= MILLION else f"{size:,}"


def main(
    *,
    rows: Annotated[int, typer.Option(min=0, help="The most rows in the table; 50 million need 20 GB of disk.")] = ROWS[
        -1
    ],
    only: Annotated[
        list[str] | None, typer.Option(help="Only partitions, producers, rows or disk; may be given several times.")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, max=20, help="How often each size is measured.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run: few records, once.")] = False,
    plots: Annotated[Path, typer.Option(help="Where the plots go.")] = Path("build/growth"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section to this file, between its marks.")
    ] = None,
) -> None:
    """Measure what a record costs as partitions, producers and rows grow, and what it takes on disk."""
    unwind_on_termination()
    load = Load(20_000, 20_000, 20_000, 20_000, 20_000) if quick else Load()
    repetitions = 1 if quick else repetitions
    sizes = [size for size in ROWS if size < rows] + [rows]
    progress = Console(stderr=True, highlight=False)
    if shutil.disk_usage(tempfile.gettempdir()).free < rows * ROW_BYTES + MORE_BYTES:
        raise typer.BadParameter(f"{tempfile.gettempdir()} has no room for {rows:,} rows: ask for fewer with --rows")
    try:
        with Stack(settings=SETTINGS) as stack:
            growth = Growth(stack, load, progress.print, repetitions=repetitions)
            steps: dict[str, Callable[[], None]] = {
                "disk": growth.measure_disk,
                "partitions": growth.measure_partitions,
                "producers": growth.measure_producers,
                "rows": partial(growth.measure_rows, sizes),
            }
            for name, step in steps.items():
                if only is None or name in only:
                    step()
            facts = _facts(repetitions, stack.postgres_version)
    except (StackFailed, GatewayFailed, ClientFailed, StartupError) as failed:
        progress.print(str(failed), style="red", markup=False)
        raise typer.Exit(1) from None
    section = build_section(growth.points, growth.disk, facts)
    print_section("growth", section, Console(width=TABLE_WIDTH))
    for path in plot(growth.points, plots):
        print(path)
    if json_file is not None:
        numbers = {"points": [asdict(one) for one in growth.points], "disk": [asdict(one) for one in growth.disk]}
        json_file.write_text(json.dumps(numbers, indent=2, default=str) + "\n", encoding="utf-8")
    if markdown_file is not None:
        write_section("growth", section, markdown_file)


def _facts(repetitions: int, version: str) -> str:
    return (
        f"Medians of {repetitions} repetitions; {os.cpu_count()} cores for client, gateway and PostgreSQL together, "
        f"PostgreSQL {version}, Python {platform.python_version()}; tail cache of {TAIL_BYTES // 1024 // 1024} MB."
    )


if __name__ == "__main__":
    typer.run(main)
