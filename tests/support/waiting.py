"""Waiting for a condition, so that no test waits for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    read: Callable[[], T], wanted: T, *, timeout_s: float = 60.0, explain: Callable[[], str] = lambda: ""
) -> None:
    """Read until the value is `wanted`; after the timeout, fail with the last value read and what `explain` tells."""
    deadline = time.monotonic() + timeout_s
    while (value := read()) != wanted:
        assert time.monotonic() < deadline, f"after {timeout_s} s still {value!r}, not {wanted!r}\n{explain()}"
        time.sleep(0.05)
