"""Enrich records by joining a table of the database: each record gets the row of the table that its JSON names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.pipeline.job import Batch, Job
from gateway.pipeline.jobs.json_values import parse_values, require_bad
from gateway.pipeline.sinks import AppendToTable, output_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["enrich", "make_job"]

TABLE, JOINED, ON = "enriched", "customers", "customer_id"
DEFINITION = (
    'CREATE TABLE {table} (output_id text PRIMARY KEY, topic text NOT NULL, partition integer NOT NULL, "offset" '
    'bigint NOT NULL, "timestamp" timestamptz NOT NULL, value jsonb NOT NULL, {on} text NOT NULL, joined jsonb);'
)


def enrich(records: DataFrame, joined: DataFrame, *, on: str = ON) -> DataFrame:
    """Rows of `records`, whose column `on` names a row of `joined` by its column of the same name, as JSON if any."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    looked_up = joined.select(F.col(on).cast("string").alias(on), F.to_json(F.struct(*joined.columns)).alias("joined"))
    rows = records.join(looked_up, on, "left")
    return rows.select(
        output_id().alias("output_id"), "topic", "partition", "offset", "timestamp", "value", on, "joined"
    )


def make_job(
    topics: Sequence[str], *, table: str = TABLE, joined: str = JOINED, on: str = ON, bad: str = "fail"
) -> Job:
    """Records with the row of another table that a field of their JSON names, appended to a table."""
    require_bad(bad)

    def transform(records: DataFrame, batch: Batch) -> DataFrame:
        named = records.withColumn("json", records.value.cast("string"))
        parsed = parse_values(named, f"{on} STRING", required=(on,), bad=bad).withColumnRenamed("json", "value")
        other = batch.spark.read.jdbc(batch.database.jdbc_url, joined, properties=batch.database.jdbc_properties)
        return enrich(parsed, other, on=on)

    return Job(
        name="enrich",
        topics=topics,
        columns=("topic", "partition", "offset", "timestamp", "value"),
        transform=transform,
        sinks=AppendToTable(table, definition=DEFINITION.format(table=table, on=on)),
    )
