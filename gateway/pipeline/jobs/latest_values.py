"""The latest value of every key, as a compacted topic would keep it; a null value stays as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.pipeline.job import Job
from gateway.pipeline.sinks import UpsertTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["latest_values", "make_job"]

TABLE = "latest_values"
DEFINITION = (
    'CREATE TABLE {table} (topic text NOT NULL, key bytea NOT NULL, value bytea, partition integer NOT NULL, "offset" '
    'bigint NOT NULL, "timestamp" timestamptz NOT NULL, PRIMARY KEY (topic, key));'
)


def latest_values(records: DataFrame) -> DataFrame:
    """One row per topic and key: that of the highest offset. Records without a key have no latest value."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    newest = F.max_by(F.struct("value", "partition", "offset", "timestamp"), F.struct("offset", "partition"))
    keyed = records.where("key IS NOT NULL").groupBy("topic", "key").agg(newest.alias("newest"))
    return keyed.select("topic", "key", "newest.*")


def make_job(topics: Sequence[str], *, table: str = TABLE) -> Job:
    """The latest value of each key by offset, in a table: a key is expected to stay in its partition."""
    return Job(
        name="latest-values",
        topics=topics,
        columns=("topic", "partition", "offset", "timestamp", "key", "value"),
        transform=lambda records, _: latest_values(records),
        sinks=UpsertTable(
            table,
            key=("topic", "key"),
            version=("offset", "partition"),
            definition=DEFINITION.format(table=table),
        ),
    )
