"""CPU time of process trees, from /proc: of what runs, and of what ended and was reaped; of a process as time goes by;
and a process's memory."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

__all__ = ["CpuHistory", "resident_peak_mb", "tree_cpu_seconds"]

LOOK_SECONDS = 0.02

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# Fields of /proc/<pid>/stat, counted after the program's name, which may hold anything.
_PARENT = 1
_TIMES = slice(11, 15)  # utime, stime, and of reaped children cutime, cstime


def tree_cpu_seconds(root: int) -> float:
    """User and system time that `root` and all its descendants have used so far.

    A descendant that ended counts through its parent, which has waited for it.
    """
    tree = _read_tree(root)
    # One that was reaped after its parent was read is in neither: read again until nobody has left.
    while tree.keys() != (again := _read_tree(root)).keys():
        tree = again
    return sum(again.values()) / _TICKS_PER_SECOND


class CpuHistory:
    """How much CPU time a process had used at any moment while the context lasted."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._times: list[float] = []
        self._used: list[float] = []
        self._is_over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def seconds(self, *, since: float, until: float) -> float:
        """CPU seconds between two times of time.monotonic()."""
        return self._at(until) - self._at(since)

    def _at(self, moment: float) -> float:
        return self._used[max(0, bisect_right(self._times, moment) - 1)]

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):  # it was waited for
            used, _ = _ticks_and_parent(self._stat)
            self._times.append(time.monotonic())
            self._used.append(used / _TICKS_PER_SECOND)


def resident_peak_mb(pid: int) -> float:
    """The most memory the process ever had resident, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _read_tree(root: int) -> dict[int, int]:
    """The clock ticks of each process."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        pid = int(stat.parent.name)
        try:
            ticks[pid], parent = _ticks_and_parent(stat)
        except (FileNotFoundError, ProcessLookupError):
            continue
        children[parent].append(pid)
    if root not in ticks:
        raise ProcessLookupError(f"process {root} has ended")
    tree: dict[int, int] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        tree[pid] = ticks[pid]
        waiting += children[pid]
    return tree


def _ticks_and_parent(stat: Path) -> tuple[int, int]:
    fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    return sum(map(int, fields[_TIMES])), int(fields[_PARENT])
