"""What the machine does by itself: how late it wakes who sleeps, and how long it takes to make a page durable.

Whatever waits for others, as a request does for a commit and a commit for the disk, pays this several times over.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.clients import Percentiles

__all__ = ["time_flushes", "time_wakes"]

GAP_SECONDS = 0.005
"""Between two of them: as often as a client with 5 ms of linger sends."""

PAGE = b"x" * 8192


def time_wakes(seconds: float) -> Percentiles:
    """How much longer than asked for a sleep takes."""
    late_ms = []
    for _ in range(round(seconds / GAP_SECONDS)):
        started = time.perf_counter()
        time.sleep(GAP_SECONDS)
        late_ms.append((time.perf_counter() - started - GAP_SECONDS) * 1000)
    return Percentiles.of(late_ms)


def time_flushes(directory: Path, seconds: float) -> Percentiles:
    """Write a page in place and flush it, as the smallest commit does with the database's log."""
    times_ms = []
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(PAGE)
        file.flush()
        os.fsync(file.fileno())
        for _ in range(round(seconds / GAP_SECONDS)):
            time.sleep(GAP_SECONDS)
            started = time.perf_counter()
            os.pwrite(file.fileno(), PAGE, 0)
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - started) * 1000)
    return Percentiles.of(times_ms)
