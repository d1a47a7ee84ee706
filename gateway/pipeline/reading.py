"""Committed records as DataFrames over JDBC: each task reads one offset range of one partition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gateway.domain.cuts import Cut, PartitionRange, require_readable, split_ranges
from gateway.errors import PipelineError
from gateway.pipeline.cuts import Bound, fix_cut, load_logs
from gateway.pipeline.database import Connection, connected
from gateway.pipeline.session import database_of
from gateway.storage.statements import statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["COLUMNS", "range_predicate", "read_as_of", "read_cut", "read_topic"]

# Headers as the text that Spark takes them for: PostgreSQL has no LIKE for jsonb.
TABLE = (
    '(SELECT topic, partition, "offset", "timestamp", key, value, headers::text AS headers, producer_id, topic_id'
    " FROM kafka.committed_messages) AS records"
)
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "producer_id")
ROWS_PER_TASK = 250_000
FETCH_BYTES = 16 * 1024 * 1024
FETCH_ROWS = range(10, 10_001)
"""What the driver holds at a time: by the topic's mean row, within these bounds. Without a fetch size it would be the
whole range of a task."""


def read_topic(
    spark: SparkSession,
    topics: str | Sequence[str],
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    columns: Sequence[str] | None = None,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """Committed records of one or more topics, as of one instant: the cut is fixed now, the rows are read later."""
    cut = fix_cut(database_of(spark), topics, start=start, end=end)
    return read_cut(spark, cut, columns=columns, rows_per_task=rows_per_task)


def read_as_of(
    spark: SparkSession,
    topics: str | Sequence[str],
    at: datetime | Cut | str,
    *,
    columns: Sequence[str] | None = None,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """The topics as they were: up to the first record at or after a time, or to the end of a cut or its JSON."""
    if isinstance(at, str):
        at = Cut.from_json(at)
    return read_topic(spark, topics, end=at, columns=columns, rows_per_task=rows_per_task)


def read_cut(
    spark: SparkSession,
    cut: Cut,
    *,
    columns: Sequence[str] | None = None,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """The committed records of a cut. Two reads of one cut are equal, however much was produced in between."""
    chosen = _columns(columns)
    predicates = [range_predicate(one) for one in split_ranges(cut.ranges, rows_per_task)]
    database = database_of(spark)
    with connected(database) as connection:
        require_readable(cut, load_logs(connection, cut.topics))
        fetch_rows = _fetch_rows(connection, cut)
    rows = spark.read.jdbc(
        database.jdbc_url,
        TABLE,
        predicates=predicates or ["false"],
        properties={**database.jdbc_properties, "fetchsize": str(fetch_rows)},
    )
    return rows.select(*chosen)


def _fetch_rows(connection: Connection, cut: Cut) -> int:
    parameters = {"topic_ids": sorted({one.topic_id for one in cut.ranges})}
    found = connection.execute(statement("pipeline/load_row_bytes"), parameters).fetchone()
    row_bytes = (found[0] if found else None) or 1
    return int(min(max(FETCH_BYTES // row_bytes, FETCH_ROWS.start), FETCH_ROWS.stop - 1))


def _columns(columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(COLUMNS)
    if isinstance(columns, str) or not columns or (unknown := [one for one in columns if one not in COLUMNS]):
        wrong = repr(columns) if isinstance(columns, str) or not columns else ", ".join(unknown)
        raise PipelineError(f"There is no column {wrong}: choose from {', '.join(COLUMNS)}.")
    return list(columns)


def range_predicate(one: PartitionRange) -> str:
    """Reaches the primary key of the topic's own table, which is chosen when the query is planned.

    Tasks read when the rows are asked for, maybe long after the cut was fixed and looked at: one whose records are
    deleted by then raises, once and before it reads. SQL has no other way to raise than a cast that fails; the
    subquery keeps the planner from trying it.
    """
    gone = (
        f"Offsets from {one.start} of partition {one.partition} of topic {one.topic} were deleted since this cut was "
        "fixed: fix a new cut"
    ).replace("'", "''")
    return (
        f"topic_id = {one.topic_id} AND partition = {one.partition} "
        f'AND "offset" >= {one.start} AND "offset" < {one.end} '
        f"AND CASE WHEN EXISTS (SELECT FROM kafka.partitions p WHERE p.topic_id = {one.topic_id}"
        f" AND p.partition = {one.partition} AND p.log_start_offset <= {one.start})"
        f" THEN true ELSE (SELECT '{gone}')::boolean END"
    )
