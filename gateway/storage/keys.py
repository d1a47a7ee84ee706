"""What rows are found by: a partition, and a producer in a partition."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PartitionKey", "ProducerKey"]


class PartitionKey(NamedTuple):
    topic_id: int
    partition: int


class ProducerKey(NamedTuple):
    topic_id: int
    partition: int
    producer_id: int

    @property
    def partition_key(self) -> PartitionKey:
        return PartitionKey(self.topic_id, self.partition)
