"""Which aborted transactions a read_committed consumer must skip in what it is given.

Below the last stable offset no transaction is open: those that began there, and were aborted, are known for good,
even if their markers lie beyond it. So what was read once is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.storage.database import Database
from gateway.storage.keys import PartitionKey
from gateway.storage.transactions import AbortedRange, load_aborted

__all__ = ["AbortedTransactions"]

MAX_PARTITIONS = 10_000
MAX_RANGES_PER_PARTITION = 50_000
READ_AHEAD_OFFSETS = 100_000


@dataclass(slots=True)
class _Known:
    """Every range that ends at or after `from_offset` and begins before `to_offset`, by its beginning."""

    from_offset: int
    to_offset: int
    firsts: list[int] = field(default_factory=list)
    latest_ends: list[int] = field(default_factory=list)
    """The largest end of a range up to this one: it only grows, so that it can be searched."""
    ranges: list[AbortedRange] = field(default_factory=list)

    def add(self, found: Iterable[AbortedRange]) -> None:
        for each in found:
            latest_end = self.latest_ends[-1] if self.latest_ends else each.last_offset
            self.firsts.append(each.first_offset)
            self.latest_ends.append(max(each.last_offset, latest_end))
            self.ranges.append(each)

    def find(self, *, start_offset: int, end_offset: int) -> list[AbortedRange]:
        first = bisect_left(self.latest_ends, start_offset)
        last = bisect_left(self.firsts, end_offset)
        return [each for each in self.ranges[first:last] if each.last_offset >= start_offset]


class AbortedTransactions:
    """Aborted ranges per partition, read as consumers get there."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[PartitionKey, _Known] = {}

    def clear(self) -> None:
        self._known.clear()

    async def find(
        self, key: PartitionKey, *, start_offset: int, end_offset: int, last_stable_offset: int
    ) -> list[AbortedRange]:
        """Those that overlap `[start_offset, end_offset)`, in order of their first offsets."""
        known = self._known.get(key)
        if known is None or start_offset < known.from_offset or len(known.ranges) > MAX_RANGES_PER_PARTITION:
            known = await self._begin(key, start_offset, min(last_stable_offset, end_offset + READ_AHEAD_OFFSETS))
        elif known.to_offset < end_offset:
            await self._read_on(key, known, min(last_stable_offset, end_offset + READ_AHEAD_OFFSETS))
        return known.find(start_offset=start_offset, end_offset=end_offset)

    async def _begin(self, key: PartitionKey, from_offset: int, to_offset: int) -> _Known:
        known = _Known(from_offset, to_offset)
        known.add(
            await load_aborted(
                self._database, key, ending_from=from_offset, beginning_from=0, beginning_before=to_offset
            )
        )
        if len(self._known) >= MAX_PARTITIONS:
            self._known.clear()
        self._known[key] = known
        return known

    async def _read_on(self, key: PartitionKey, known: _Known, to_offset: int) -> None:
        asked_from = known.to_offset
        found = await load_aborted(
            self._database, key, ending_from=asked_from, beginning_from=asked_from, beginning_before=to_offset
        )
        # Another task may have read on meanwhile.
        known.add(each for each in found if each.first_offset >= known.to_offset)
        known.to_offset = max(known.to_offset, to_offset)
