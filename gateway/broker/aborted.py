"""Which aborted transactions a read_committed consumer must skip in what it is given.

Below the last stable offset nothing changes any more, so what was read once is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from gateway.storage.database import Database
from gateway.storage.keys import PartitionKey
from gateway.storage.transactions import AbortedRange, load_aborted

__all__ = ["AbortedTransactions"]

MAX_PARTITIONS = 10_000
MAX_RANGES_PER_PARTITION = 50_000


@dataclass(slots=True)
class _Known:
    from_offset: int
    to_offset: int  # every range that ends at or after from_offset and before to_offset is in `ranges`
    ends: list[int] = field(default_factory=list)
    ranges: list[AbortedRange] = field(default_factory=list)


class AbortedTransactions:
    """Aborted ranges per partition, read as consumers get there."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[PartitionKey, _Known] = {}

    async def find(
        self, key: PartitionKey, *, start_offset: int, end_offset: int, last_stable_offset: int
    ) -> list[AbortedRange]:
        """Those that overlap `[start_offset, end_offset)`, in order of their first offsets."""
        known = self._known.get(key)
        if known is None or start_offset < known.from_offset or len(known.ranges) > MAX_RANGES_PER_PARTITION:
            if len(self._known) >= MAX_PARTITIONS:
                self._known.clear()
            known = self._known[key] = _Known(start_offset, start_offset)
        if known.to_offset < last_stable_offset:
            for found in await load_aborted(self._database, key, from_offset=known.to_offset):
                # Another task may have read on meanwhile; one that ends beyond is read when it is stable.
                if known.to_offset <= found.last_offset < last_stable_offset:
                    known.ends.append(found.last_offset)
                    known.ranges.append(found)
            known.to_offset = max(known.to_offset, last_stable_offset)
        first = bisect_left(known.ends, start_offset)
        overlapping = [each for each in known.ranges[first:] if each.first_offset < end_offset]
        return sorted(overlapping, key=lambda each: each.first_offset)
