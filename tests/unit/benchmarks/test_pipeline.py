"""How the pipeline benchmark judges what it measured."""

from __future__ import annotations

import pytest

from benchmarks.pipeline import Read, build_section

ROWS = 1_000
DELAYS = [{"records_per_second": 10, "records": 1_990, "batches": 84, "p50_ms": 353.8, "p99_ms": 1524.8}]


def reads(*, last_seconds: float, last_mb: float) -> list[Read]:
    """\\copy, one core, and four sizes on two: 10 ms per row but for the last."""
    sizes = {100: 1.0, 200: 2.0, 500: 5.0, ROWS: last_seconds}
    of_sizes = [
        Read("jdbc, local[2]", size, seconds, last_mb if size == ROWS else 500.0) for size, seconds in sizes.items()
    ]
    return [Read("psql \\copy", ROWS, 8.0), Read("jdbc, local[1]", ROWS, 20.0, 400.0), *of_sizes]


@pytest.mark.parametrize(
    ("seconds", "mb", "linear", "memory"),
    [(10.0, 510.0, "1.00, met", "1.02, met"), (13.0, 700.0, "1.30, missed", "1.40, missed")],
)
def test_time_and_memory_that_grow_with_the_rows_are_missed_targets(
    seconds: float, mb: float, linear: str, memory: str
) -> None:
    speed, of_time, of_memory, facts = build_section(
        reads(last_seconds=seconds, last_mb=mb), DELAYS, ROWS, "Facts."
    ).sentences
    assert f"JDBC reads {8 / seconds:.2f} of the rows/s" in speed
    assert f"{20 / seconds:.2f} times as many on two as on one" in speed
    assert of_time.endswith(f"{linear}.")
    assert of_memory.endswith(f"{memory}.")
    assert facts == "Facts."


def test_delays_have_a_table_of_their_own() -> None:
    section = build_section(reads(last_seconds=10.0, last_mb=510.0), DELAYS, ROWS, "Facts.")
    assert section.tables[1][1] == [("10", "1,990", "84", "353.8", "1,524.8")]
