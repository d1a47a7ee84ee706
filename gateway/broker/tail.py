"""The newest batches in memory, as they arrived, so that consumers at the end of the log cost no query.

Holds only what this gateway committed, and per partition only an unbroken run of offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from gateway.protocol.batches import StoredBatch
from gateway.storage.keys import PartitionKey

__all__ = ["Tail"]


@dataclass(slots=True)
class _PartitionTail:
    base_offsets: list[int] = field(default_factory=list)
    batches: list[bytes | StoredBatch] = field(default_factory=list)
    first: int = 0  # entries before it were evicted; they are cut off now and then, not one by one
    next_offset: int = -1
    is_forgotten: bool = False


class Tail:
    """Batches per partition under one byte limit; the oldest of all go first."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._partitions: dict[PartitionKey, _PartitionTail] = {}
        self._age: deque[tuple[PartitionKey, _PartitionTail]] = deque()
        self._forgotten = 0  # entries of the age queue that stand for nothing any more

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def add(self, key: PartitionKey, *, base_offset: int, next_offset: int, batch: bytes | StoredBatch) -> None:
        """Remember a batch that was committed."""
        if len(batch) > self._limit_bytes:
            self.forget(key)
            return
        partition = self._partitions.get(key)
        if partition is None or partition.next_offset != base_offset:
            self.forget(key)  # another gateway wrote in between: what is older no longer connects
            partition = self._partitions[key] = _PartitionTail()
        partition.base_offsets.append(base_offset)
        partition.batches.append(batch)
        partition.next_offset = next_offset
        self._age.append((key, partition))
        self._size_bytes += len(batch)
        while self._size_bytes > self._limit_bytes:
            self._evict_oldest()

    def read(
        self, key: PartitionKey, *, start_offset: int, end_offset: int, max_bytes: int
    ) -> tuple[list[bytes], int] | None:
        """Whole batches from the one that holds `start_offset`, up to the limits but at least one, and the offset
        after them; None when that offset is not held or its batch reaches beyond `end_offset`."""
        partition = self._partitions.get(key)
        if partition is None or not start_offset < partition.next_offset:
            return None
        bases = partition.base_offsets
        position = bisect_right(bases, start_offset, lo=partition.first) - 1
        if position < partition.first:
            return None
        found: list[bytes] = []
        size_bytes = 0
        next_offset = start_offset
        while position < len(bases):
            batch = partition.batches[position]
            after = bases[position + 1] if position + 1 < len(bases) else partition.next_offset
            if after > end_offset or (found and size_bytes + len(batch) > max_bytes):
                break
            if not isinstance(batch, bytes):
                batch = partition.batches[position] = bytes(batch)
            found.append(batch)
            size_bytes += len(batch)
            next_offset = after
            position += 1
        return (found, next_offset) if found else None

    def holds(self, key: PartitionKey, offset: int) -> bool:
        partition = self._partitions.get(key)
        return partition is not None and partition.base_offsets[partition.first] <= offset < partition.next_offset

    def forget(self, key: PartitionKey) -> None:
        """Drop what is held of a partition."""
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        partition.is_forgotten = True
        held = partition.batches[partition.first :]
        self._size_bytes -= sum(map(len, held))
        self._forgotten += len(held)
        if self._forgotten > 1000 and self._forgotten * 2 > len(self._age):
            self._age = deque(entry for entry in self._age if not entry[1].is_forgotten)
            self._forgotten = 0

    def forget_topic(self, topic_id: int) -> None:
        for key in [key for key in self._partitions if key.topic_id == topic_id]:
            self.forget(key)

    def clear(self) -> None:
        for key in list(self._partitions):
            self.forget(key)

    def _evict_oldest(self) -> None:
        key, partition = self._age.popleft()
        if partition.is_forgotten:
            self._forgotten -= 1
            return
        self._size_bytes -= len(partition.batches[partition.first])
        partition.batches[partition.first] = b""
        partition.first += 1
        if partition.first == len(partition.batches):
            del self._partitions[key]
        elif partition.first >= 1024 and partition.first * 2 > len(partition.batches):
            del partition.base_offsets[: partition.first]
            del partition.batches[: partition.first]
            partition.first = 0
