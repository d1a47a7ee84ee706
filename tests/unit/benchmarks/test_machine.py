"""The machine's own share of a latency."""

from __future__ import annotations

from pathlib import Path

from benchmarks.machine import time_flushes, time_wakes


def test_a_sleep_ends_late_never_early() -> None:
    late = time_wakes(0.1)
    assert 0 <= late.p50_ms <= late.p99_ms


def test_a_flush_takes_time_and_leaves_nothing(tmp_path: Path) -> None:
    flushed = time_flushes(tmp_path, 0.1)
    assert 0 < flushed.p50_ms <= flushed.p99_ms
    assert not list(tmp_path.iterdir())
