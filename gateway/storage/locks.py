"""Advisory locks: which number stands for what, in one place.

One-number keys (objsubid 1 in pg_locks) are partitions: topic id in the upper half, partition in the lower,
so that kafka.partition_locks can name them. Two-number keys are the classes below.
All are transaction-level: PgBouncer's transaction pooling keeps working.
"""

from __future__ import annotations

__all__ = ["partition_key"]


def partition_key(topic_id: int, partition: int) -> int:
    return topic_id << 32 | partition
