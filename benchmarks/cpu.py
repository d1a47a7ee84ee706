"""CPU time of process trees, from /proc: of what runs, and of what ended and was reaped; and a process's memory."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

__all__ = ["resident_peak_mb", "tree_cpu_seconds"]

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
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(stat.parent.name)
        ticks[pid] = sum(map(int, fields[_TIMES]))
        children[int(fields[_PARENT])].append(pid)
    if root not in ticks:
        raise ProcessLookupError(f"process {root} has ended")
    tree: dict[int, int] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        tree[pid] = ticks[pid]
        waiting += children[pid]
    return tree
