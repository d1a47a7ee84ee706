"""Copy topics to another topic, every committed record once: a filter or a repair of your own starts from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.pipeline.job import Job
from gateway.pipeline.sinks import WriteTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["in_order", "make_job"]


def in_order(records: DataFrame) -> DataFrame:
    """Records of one partition one after the other, as they were written; keys decide where they go."""
    keys = ["topic", "partition"]
    ordered = records.repartition(*keys).sortWithinPartitions(*keys, "offset")
    return ordered.select("key", "value", "timestamp", "headers")


def make_job(topics: Sequence[str], *, target: str, bootstrap: str | None = None) -> Job:
    """Keys, values, timestamps and headers of the records in another topic, one transaction per batch."""
    return Job(
        name="copy-to-topic",
        topics=topics,
        columns=("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
        transform=lambda records, _: in_order(records),
        sinks=WriteTopic(target, bootstrap=bootstrap),
    )
