"""Results for people: the same two tables on the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.results import Results, Spread

__all__ = ["markdown", "print_tables", "write_markdown"]

BEGIN = "<!-- results: written by python -m benchmarks --markdown -->"
END = "<!-- end of results -->"

THROUGHPUT = (
    "records × partitions",
    "activity",
    "client",
    "records/s",
    "(min–max)",
    "MB/s",
    "gateway CPU s/M",
    "PostgreSQL CPU s/M",
    "of raw COPY",
    "(min–max)",
)
LATENCY = ("client", "p50 ms", "(min–max)", "p99 ms", "(min–max)")
TEXT_COLUMNS = {"records × partitions", "activity", "client"}


def print_tables(results: Results, console: Console) -> None:
    for title, heads, rows in _tables(results):
        table = Table()
        for head in heads:
            table.add_column(head, justify="left" if head in TEXT_COLUMNS else "right")
        for row in rows:
            table.add_row(*row)
        console.print(title, table, highlight=False)


def markdown(results: Results) -> str:
    pieces = []
    for title, heads, rows in _tables(results):
        lines = [title, "", _line(heads), _line("---" if head in TEXT_COLUMNS else "---:" for head in heads)]
        pieces.append("\n".join([*lines, *map(_line, rows)]))
    return "\n\n".join(pieces) + "\n"


def write_markdown(results: Results, path: Path) -> None:
    """Between the marks, where `path` has them; otherwise the tables are the whole file."""
    tables = markdown(results)
    if path.exists() and BEGIN in (text := path.read_text(encoding="utf-8")):
        before, _, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not end:
            raise ValueError(f"{path} has the mark {BEGIN} without {END}")
        tables = f"{before}{BEGIN}\n\n{tables}\n{END}{after}"
    path.write_text(tables, encoding="utf-8")


def _tables(results: Results) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    facts = results.environment
    clients = ", ".join(f"{name} {version}" for name, version in facts["clients"].items())
    counts = ", ".join(f"{count:,} of {size} B" for size, count in facts["records"].items())
    throughput = (
        f"Throughput: medians of {facts['repetitions']} repetitions, {counts} each; {facts['cores']} cores, "
        f"PostgreSQL {facts['postgresql']}, Python {facts['python']}, {clients}."
    )
    yield throughput, THROUGHPUT, list(_throughput_rows(results))
    yield f"Latency of acks=all: {facts['latency']}.", LATENCY, list(_latency_rows(results))


def _throughput_rows(results: Results) -> Iterator[tuple[str, ...]]:
    for case, summary in results.summaries():
        rate, ratio = summary.records_per_s, summary.ratio
        yield (
            str(case.shape),
            case.activity,
            case.client,
            f"{rate.median:,.0f}",
            f"{rate.low:,.0f}–{rate.high:,.0f}",
            f"{summary.megabytes_per_s:.1f}",
            f"{summary.gateway_cpu_s_per_million:.1f}",
            f"{summary.postgres_cpu_s_per_million:.1f}",
            f"{ratio.median:.2f}",
            f"{ratio.low:.2f}–{ratio.high:.2f}",
        )


def _latency_rows(results: Results) -> Iterator[tuple[str, ...]]:
    for client, *percentiles in results.latency_summaries():
        yield (client, *(text for spread in percentiles for text in _milliseconds(spread)))


def _milliseconds(spread: Spread) -> tuple[str, str]:
    return f"{spread.median:.1f}", f"{spread.low:.1f}–{spread.high:.1f}"


def _line(cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
