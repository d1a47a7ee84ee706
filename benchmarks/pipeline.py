"""`python -m benchmarks.pipeline` (`make bench-pipeline`): Spark reads 10 million rows, next to psql's \\copy of them.

The rows are copied into the real table with its indexes. Each Spark session is a process of its own. At the end, how
long a record takes from produce to the committed result of a pipeline that runs continuously.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console

from benchmarks.pipeline_reader import HEAP
from benchmarks.raw_copy import fill
from benchmarks.report import Section, print_section, write_section
from benchmarks.results import growth_of
from benchmarks.workload import Shape
from gateway.storage import schema
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.embedded_home import packaged_programs
from gateway.storage.statements import statement

PARTITIONS = 4
VALUE_BYTES = 100
TOPIC = "bench"
SHAPE = Shape(VALUE_BYTES, PARTITIONS)
LINEAR = 1.25
"""The time per row may be so many times that of fewer rows: more is growth, less is noise."""
BOUNDED = 1.25
"""So may the JVM's memory, which has reached its heap's limit before the first measurement ends."""
DELAY_SECONDS = 20

REPOSITORY = Path(__file__).resolve().parents[1]

COLUMNS = 'topic, partition, "offset", "timestamp", key, value, headers, producer_id'


@dataclass(frozen=True, slots=True)
class Read:
    what: str
    rows: int
    seconds: float
    jvm_peak_mb: float | None = None

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


class Table:
    """A PostgreSQL as `make run` starts it, with one topic."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.url = server.url
        schema.migrate(self.url)
        self._database = psycopg.connect(self.url, autocommit=True)
        inserted = self._database.execute(
            statement("topics/insert_topic"), {"name": TOPIC, "partition_count": PARTITIONS}
        ).fetchone()
        assert inserted is not None
        self.topic_id: int = inserted[0]
        self._database.execute(
            statement("topics/insert_partitions"), {"topic_id": self.topic_id, "first": 0, "last": PARTITIONS}
        )
        self._database.execute(statement("topics/create_storage"), {"topic_id": self.topic_id})

    def fill(self, rows: int) -> None:
        each = rows // PARTITIONS
        fill(self.url, SHAPE, topic_id=self.topic_id, offsets=range(each))
        self._database.execute(
            "UPDATE kafka.partitions SET next_offset = %s, last_stable_offset = %s WHERE topic_id = %s",
            [each, each, self.topic_id],
        )
        # As autovacuum does while rows come in: readers do not pay for hint bits, and the planner knows the table.
        self._database.execute("VACUUM (ANALYZE) kafka.messages")
        self._database.execute("ANALYZE kafka.partitions, kafka.topics")

    def copy_out(self, rows: int) -> Read:
        """psql's \\copy of the same rows and columns, in one process."""
        end = rows // PARTITIONS
        query = f'SELECT {COLUMNS} FROM kafka.committed_messages WHERE topic_id = {self.topic_id} AND "offset" < {end}'
        command = [
            str(packaged_programs() / "psql"),
            self.url,
            "-qX",
            "-c",
            f"\\copy ({query}) TO '/dev/null' (FORMAT binary)",
        ]
        started = time.perf_counter()
        subprocess.run(command, check=True)
        return Read("psql \\copy", rows, time.perf_counter() - started)

    @property
    def version(self) -> str:
        return str(self._database.info.parameter_status("server_version"))


def main(
    *,
    rows: Annotated[int, typer.Option(min=40_000, help="How many rows are read at most.")] = 10_000_000,
    repetitions: Annotated[int, typer.Option(min=1, max=20, help="How often everything is measured.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run: 200,000 rows, once.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section to this file, between its marks.")
    ] = None,
) -> None:
    """Measure Spark's reads of committed rows next to psql's \\copy of the same rows."""
    if quick:
        rows, repetitions = 200_000, 1
    progress = Console(stderr=True, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="tablewire-bench-"))
    reads: list[Read] = []
    try:
        with EmbeddedPostgres(directory / "data") as server:
            table = Table(server)
            progress.print(f"making {rows:,} rows")
            table.fill(rows)
            for _ in range(repetitions):
                reads += measure(table, rows, directory, progress)
            facts = _facts(rows, repetitions, table.version)
        progress.print("delay of a continuous run")
        delays = measure_delays(2 if quick else DELAY_SECONDS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    section = build_section(reads, delays, rows, facts)
    print_section("pipeline", section, Console(width=150))
    if json_file is not None:
        numbers = {"reads": [asdict(one) for one in reads], "delays": delays}
        json_file.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    if markdown_file is not None:
        write_section("pipeline", section, markdown_file)


def measure(table: Table, rows: int, directory: Path, progress: Console) -> list[Read]:
    """One repetition: \\copy and Spark take turns, so that neither has the warmer cache."""
    sizes = [rows // 10, rows // 5, rows // 2, rows]
    done = [table.copy_out(rows)]
    done += spark_reads(table, "local[1]", [(rows, "jdbc")], directory)
    done += spark_reads(table, "local[2]", [*((size, "jdbc") for size in sizes), (rows, "source")], directory)
    done.append(table.copy_out(rows))
    for one in done:
        progress.print(f"{one.what}, {one.rows:,} rows: {one.seconds:.1f} s, {one.rows_per_s:,.0f} rows/s")
    return done


def spark_reads(table: Table, master: str, reads: list[tuple[int, str]], directory: Path) -> list[Read]:
    task = {
        "master": master,
        "url": table.url,
        "topic": TOPIC,
        "partitions": PARTITIONS,
        "warm_up": min(reads[0][0], 200_000),
        "reads": reads,
        "directory": str(directory),
    }
    command = [sys.executable, "-m", "benchmarks.pipeline_reader", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    answered = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY)
    lines: list[dict[str, Any]] = [json.loads(line) for line in answered.stdout.splitlines() if line.startswith("{")]
    return [
        Read(f"{one['way']}, {master}", one["rows"], one["seconds"], one["jvm_peak_mb"])
        for one in lines[2:]  # the first two warm up
    ]


def measure_delays(seconds: int) -> list[dict[str, Any]]:
    """A line per rate of records, with a PostgreSQL, a gateway and a Spark of their own."""
    command = [sys.executable, "-m", "benchmarks.pipeline_delay", "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    answered = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY)
    return [json.loads(line) for line in answered.stdout.splitlines() if line.startswith("{")]


def build_section(reads: list[Read], delays: list[dict[str, Any]], rows: int, facts: str) -> Section:
    cases: dict[tuple[str, int], list[Read]] = {}
    for one in reads:
        cases.setdefault((one.what, one.rows), []).append(one)
    rate = {case: median(one.rows_per_s for one in measured) for case, measured in cases.items()}
    full = {what: speed for (what, size), speed in rate.items() if size == rows}
    copy = full["psql \\copy"]
    sizes = sorted(size for what, size in cases if what == "jdbc, local[2]")
    growth = growth_of([1 / rate["jdbc, local[2]", size] for size in sizes])
    peaks = {size: max(one.jvm_peak_mb or 0 for one in cases["jdbc, local[2]", size]) for size in sizes}
    both, single = full["jdbc, local[2]"], full["jdbc, local[1]"]
    speed = (
        f"JDBC reads {both / copy:.2f} of the rows/s of psql's \\copy on two cores, {single / copy:.2f} on one: "
        f"{both / single:.2f} times as many on two as on one."
    )
    linear = (
        f"Target: time is linear in the rows, per row at most {LINEAR} times that of fewer, from {sizes[0]:,} to "
        f"{sizes[-1]:,}. Result: {growth:.2f}, {'met' if growth <= LINEAR else 'missed'}."
    )
    more = peaks[sizes[-1]] / peaks[sizes[0]]
    memory = (
        f"Target: memory is bounded, at most {BOUNDED} times as much for {sizes[-1] // sizes[0]} times the rows. "
        f"Result: the JVM's resident peak, with a heap of {HEAP}, is {peaks[sizes[0]]:,.0f} MB after {sizes[0]:,} rows "
        f"and {peaks[sizes[-1]]:,.0f} MB after {sizes[-1]:,}, {more:.2f}, {'met' if more <= BOUNDED else 'missed'}."
    )
    section = Section([speed, linear, memory, facts])
    table: list[tuple[str, ...]] = []
    for (what, size), measured in cases.items():
        speeds = [one.rows_per_s for one in measured]
        resident = [read.jvm_peak_mb for read in measured if read.jvm_peak_mb is not None]
        table.append(
            (
                what,
                f"{size:,}",
                f"{median(one.seconds for one in measured):.1f}",
                f"{median(speeds):,.0f}",
                f"{min(speeds):,.0f}–{max(speeds):,.0f}",
                f"{median(speeds) / copy:.2f}",
                f"{max(resident):,.0f}" if resident else "",
            )
        )
    heads: tuple[str, ...] = ("what", "rows", "s", "rows/s", "(min–max)", "of \\copy", "JVM peak MB")
    section.tables.append((heads, table))
    heads = ("produce to committed result, at records/s", "records", "batches", "p50 ms", "p99 ms")
    section.tables.append((heads, [tuple(f"{value:,}" for value in one.values()) for one in delays]))
    return section


def _facts(rows: int, repetitions: int, version: str) -> str:
    from importlib.metadata import version as package_version

    return (
        f"Medians of {repetitions} repetitions, {rows:,} rows of {VALUE_BYTES} B in {PARTITIONS} partitions; "
        f"{os.cpu_count()} cores for PostgreSQL and Spark together, PostgreSQL {version}, "
        f"PySpark {package_version('pyspark')}, Python {platform.python_version()}."
    )


if __name__ == "__main__":
    typer.run(main)
