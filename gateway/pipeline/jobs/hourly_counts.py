"""Records per topic and hour. Reading committed rows only is the source's promise, not this job's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.pipeline.job import Job
from gateway.pipeline.sinks import AddToTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["hourly_counts", "make_job"]

TABLE = "hourly_counts"
DEFINITION = (
    "CREATE TABLE {table} (topic text NOT NULL, hour timestamptz NOT NULL, records bigint NOT NULL, "
    "bytes bigint NOT NULL, PRIMARY KEY (topic, hour));"
)


def hourly_counts(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    hour = F.date_trunc("hour", "timestamp")
    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    counts = F.count("*").alias("records"), F.sum(size).cast("bigint").alias("bytes")
    return records.groupBy("topic", hour.alias("hour")).agg(*counts)


def make_job(topics: Sequence[str], *, table: str = TABLE) -> Job:
    """Records and bytes of keys and values per topic and hour of their timestamps, in a table."""
    return Job(
        name="hourly-counts",
        topics=topics,
        columns=("topic", "timestamp", "key", "value"),
        transform=lambda records, _: hourly_counts(records),
        sinks=AddToTable(table, key=("topic", "hour"), definition=DEFINITION.format(table=table)),
    )
