"""Offsets people ask for: by time, the log's ends, and the log's start moved forward."""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import OffsetOutOfRange, UnknownTopicOrPartition
from gateway.protocol.batches import MAX_TIMESTAMP_MS
from gateway.storage import log as storage
from gateway.storage.database import Database
from gateway.storage.log import PartitionKey, PartitionState

__all__ = ["FoundOffset", "Offsets"]

MAX_TIMESTAMP = -3


class FoundOffset(NamedTuple):
    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = 0


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
        return FoundOffset(*rows[0], leader_epoch=state.leader_epoch) if rows else NOTHING

    async def delete_before(self, key: PartitionKey, offset: int) -> int:
        """Make records below `offset` unreadable (-1: all of them); returns the log's new start."""
        states = await self.load([key])
        if key not in states:
            raise UnknownTopicOrPartition("the partition does not exist")
        state = states[key]
        wanted = state.next_offset if offset == -1 else offset
        rows = await self._database.rows(
            "log/raise_log_start", topic_id=key.topic_id, partition=key.partition, offset=wanted
        ) if wanted >= 0 else []
        if not rows:
            raise OffsetOutOfRange(f"offset {offset} is beyond the log's end {state.next_offset}")
        return int(rows[0][0])
