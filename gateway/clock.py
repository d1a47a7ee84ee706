"""The time, so that what depends on it can be given another one."""

from __future__ import annotations

import time

__all__ = ["monotonic_seconds", "now_ms"]

monotonic_seconds = time.monotonic


def now_ms() -> int:
    """Milliseconds since 1970, as Kafka counts time."""
    return time.time_ns() // 1_000_000
