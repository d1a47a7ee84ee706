"""Offsets people ask for: by time, the log's ends, the log's start moved forward; and the bytes between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from gateway.errors import OffsetOutOfRange, UnknownTopicOrPartition
from gateway.protocol.layout import MAX_TIMESTAMP_MS
from gateway.storage import log as storage
from gateway.storage.database import Database
from gateway.storage.keys import PartitionKey
from gateway.storage.log import PartitionState

__all__ = ["FoundOffset", "Offsets", "PartitionSize"]

MAX_TIMESTAMP = -3


class FoundOffset(NamedTuple):
    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = 0


class PartitionSize(NamedTuple):
    topic_id: int
    topic: str
    partition: int
    size_bytes: int


NOTHING = FoundOffset(-1, -1, -1)


class Offsets:
    """Looks offsets up in the database: what is answered is true for every gateway."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, keys: list[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        return await storage.load_partitions(self._database, keys)

    async def find(
        self, key: PartitionKey, state: PartitionState, timestamp_ms: int, *, read_committed: bool
    ) -> FoundOffset:
        """The offset for one of Kafka's special times, or of the first record at or after a time."""
        end_offset = state.last_stable_offset if read_committed else state.next_offset
        match timestamp_ms:
            case -1:
                return FoundOffset(end_offset, leader_epoch=state.leader_epoch)
            case -2 | -4:  # -4, the earliest that is not in tiered storage: there is none
                return FoundOffset(state.log_start_offset, leader_epoch=state.leader_epoch)
            case -5 | -6:  # tiered storage holds nothing
                return NOTHING
        if timestamp_ms > MAX_TIMESTAMP_MS or timestamp_ms < MAX_TIMESTAMP:
            return NOTHING
        name = "log/find_max_timestamp" if timestamp_ms == MAX_TIMESTAMP else "log/find_offset_by_time"
        rows = await self._database.rows(
            name,
            topic_id=key.topic_id,
            partition=key.partition,
            start_offset=state.log_start_offset,
            end_offset=end_offset,
            timestamp_ms=timestamp_ms,
        )
        return FoundOffset(rows[0][0], rows[0][1], state.leader_epoch) if rows else NOTHING

    async def delete_before(self, key: PartitionKey, offset: int) -> int:
        """Make records below `offset` unreadable (-1: all of them); returns the log's new start."""
        states = await self.load([key])
        if key not in states:
            raise UnknownTopicOrPartition("the partition does not exist")
        state = states[key]
        wanted = state.next_offset if offset == -1 else offset
        rows = (
            await self._database.rows(
                "log/raise_log_start", topic_id=key.topic_id, partition=key.partition, offset=wanted
            )
            if wanted >= 0
            else []
        )
        if not rows:
            raise OffsetOutOfRange(f"offset {offset} is beyond the log's end {state.next_offset}")
        return int(rows[0][0])

    async def load_sizes(self, topics: Sequence[str] | None) -> list[PartitionSize]:
        """Bytes on disk per partition, by topic and partition; None asks for all topics.

        Partitions share their topic's table, so its bytes are divided by the records each keeps; the last one
        takes what is left over, and the sum is the table's size.
        """
        # PostgreSQL's text cannot hold a NUL; a name with one is no topic's.
        names = None if topics is None else [name for name in topics if "\0" not in name]
        rows = await self._database.rows("log/load_sizes", names=names)
        sizes: list[PartitionSize] = []
        for (topic_id, name), partitions in groupby(rows, key=lambda row: row[:2]):
            left_bytes: int | None = None
            for _, _, partition, kept, kept_in_topic, topic_bytes in (found := list(partitions)):
                left_bytes = (topic_bytes or 0) if left_bytes is None else left_bytes
                is_last = partition == found[-1][2]
                share = left_bytes if is_last else (topic_bytes or 0) * kept // max(1, kept_in_topic)
                left_bytes -= share
                sizes.append(PartitionSize(topic_id, name, partition, share))
        return sizes
