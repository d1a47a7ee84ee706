"""Advisory locks: which number stands for what, in one place.

One-number keys (objsubid 1 in pg_locks) are partitions: topic id in the upper half, partition in the lower,
so that kafka.partition_locks can name them. Two-number keys are the classes below.
All are transaction-level: PgBouncer's transaction pooling keeps working.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HOUSEKEEPING", "MIGRATION", "NumberedLock", "partition_key", "pipeline_lock", "staging_lock"]


class NumberedLock(NamedTuple):
    """A two-number key."""

    class_id: int
    number: int


MIGRATION = NumberedLock(1, 0)
"""One migration at a time."""

HOUSEKEEPING = NumberedLock(2, 0)
"""One gateway at a time keeps house."""


PIPELINE_CLASS = 3
"""One runner of a pipeline at a time; pipelines whose names have one checksum exclude each other."""


def pipeline_lock(checksum: int) -> NumberedLock:
    return NumberedLock(PIPELINE_CLASS, checksum - 2**31)


STAGING_CLASS = 4
"""Held by whoever still needs a staging table, from before it is made until it is dropped; by its name's checksum."""


def staging_lock(checksum: int) -> NumberedLock:
    return NumberedLock(STAGING_CLASS, checksum - 2**31)


def partition_key(topic_id: int, partition: int) -> int:
    return topic_id << 32 | partition
