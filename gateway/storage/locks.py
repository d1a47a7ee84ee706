"""Advisory locks: which number stands for what, in one place.

One-number keys (objsubid 1 in pg_locks) are partitions: topic id in the upper half, partition in the lower,
so that kafka.partition_locks can name them. Two-number keys are the classes below.
All are transaction-level: PgBouncer's transaction pooling keeps working.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HOUSEKEEPING", "MIGRATION", "NumberedLock", "partition_key"]


class NumberedLock(NamedTuple):
    """A two-number key."""

    class_id: int
    number: int


MIGRATION = NumberedLock(1, 0)
"""One migration at a time."""

HOUSEKEEPING = NumberedLock(2, 0)
"""One gateway at a time keeps house."""


def partition_key(topic_id: int, partition: int) -> int:
    return topic_id << 32 | partition
