"""Staging tables: where executors write rows of a batch before the driver merges them in the batch's transaction.

A task's rows are one database transaction. A task that Spark ran twice (an executor died after its commit, or was slow)
has left its rows twice: the table notes which transaction wrote a row, and one of them counts. Tables are ordinary, not
unlogged: rows that a database's crash takes away would be missing from the result.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import errors, sql

from gateway.errors import PipelineError
from gateway.pipeline.database import Connection, hold_lock
from gateway.storage.locks import NumberedLock, staging_lock
from gateway.storage.statements import statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gateway.pipeline.job import Batch

__all__ = [
    "PART",
    "ROW",
    "SCHEMA",
    "STATE_PREFIX",
    "Staged",
    "drop_abandoned",
    "drop_staging",
    "lock_of",
    "settle",
    "stage_rows",
]

SCHEMA = "kafka_staging"
PART, ROW, WRITER = "tablewire_part", "tablewire_row", "tablewire_writer"
BATCH_ROWS = 5_000
LOCK_TIMEOUT = "60s"
STATE_PREFIX = "state_"
"""Of tables that belong to no pipeline: puts of a DataFrame into kafka.state."""
DROP_TIMEOUT = "1s"


class StagingLost(PipelineError):
    """What the executors wrote is not all there."""


@dataclass(frozen=True)
class Staged:
    """A table in which the rows of one output wait."""

    table: str
    columns: tuple[str, ...]
    rows: int
    """How many there must be, as Spark counted them."""

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, self.table)

    @property
    def name(self) -> str:
        return f"{SCHEMA}.{self.table}"


def stage_rows(batch: Batch, output: str, rows: DataFrame, types: Mapping[str, str]) -> Staged:
    """Write `rows`, whose columns become the PostgreSQL types given, to a table of this try's own."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    table = f"{_prefix(batch.pipeline)}{batch.id}_{_digest(output, 6)}_{batch.attempt}"
    staged = Staged(table, tuple(types), 0)
    with batch.database.connect() as connection:
        connection.execute(_definition(staged, types))
        connection.execute(
            sql.SQL("COMMENT ON TABLE {} IS {}").format(
                staged.identifier, sql.Literal(f"Batch {batch.id} of pipeline {batch.pipeline}, output {output}")
            )
        )
    counted = Observation()
    (
        rows.select(*types)
        .observe(counted, F.count(F.lit(1)).alias("rows"))
        .withColumn(PART, F.spark_partition_id())
        .write.mode("append")
        .jdbc(
            batch.database.jdbc_url,
            staged.name,
            properties={
                **batch.database.jdbc_properties,
                "batchsize": str(BATCH_ROWS),
                "reWriteBatchedInserts": "true",
                # Text is given its column's type by the server: json, uuid, an enum.
                "stringtype": "unspecified",
            },
        )
    )
    return Staged(table, tuple(types), int(counted.get["rows"]))


def _definition(staged: Staged, types: Mapping[str, str]) -> sql.Composed:
    columns = [sql.SQL("{} {}").format(sql.Identifier(name), _type(kind)) for name, kind in types.items()]
    notes = sql.SQL(
        "{} integer NOT NULL, {} bigint GENERATED ALWAYS AS IDENTITY, {} xid8 NOT NULL DEFAULT pg_current_xact_id()"
    ).format(sql.Identifier(PART), sql.Identifier(ROW), sql.Identifier(WRITER))
    return sql.SQL("CREATE TABLE {} ({})").format(staged.identifier, sql.SQL(", ").join([*columns, notes]))


def _type(name: str) -> sql.SQL:
    """A type as format_type() or this package spells it, never a user's text."""
    return sql.SQL(name)


def settle(connection: Connection, staged: Staged) -> None:
    """In the batch's transaction: leave each task's rows once, and let nobody add to them any more."""
    parts = {"part": sql.Identifier(PART), "writer": sql.Identifier(WRITER), "table": staged.identifier}
    try:
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT)))
        # A task that is still at work for nothing, because Spark gave it up, is waited for: it ends by itself.
        connection.execute(sql.SQL("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE").format(**parts))
    except errors.UndefinedTable:
        raise StagingLost(
            f"The staging table {staged.name} is gone: another runner of the pipeline has begun and cleared it away."
        ) from None
    connection.execute(
        sql.SQL(
            "DELETE FROM {table} AS extra USING (SELECT {part}, min({writer}) AS first FROM {table}"
            " GROUP BY {part} HAVING count(DISTINCT {writer}) > 1) AS kept"
            " WHERE extra.{part} = kept.{part} AND extra.{writer} > kept.first"
        ).format(**parts)
    )
    found = connection.execute(sql.SQL("SELECT count(*) FROM {table}").format(**parts)).fetchone()
    if found is None or found[0] != staged.rows:
        raise StagingLost(
            f"Spark wrote {staged.rows} rows to {staged.name} and {found and found[0]} are there: the database lost "
            "some, as a failover without synchronous replication may. Run the pipeline again."
        )


def drop_staging(connection: Connection, pipeline: str, *, attempt: str = "") -> list[str]:
    """Drop the staging tables of one try at a batch, or all of a pipeline, which killed runs have left. Their names."""
    tables = _find(connection, SCHEMA, _prefix(pipeline), attempt)
    for table in tables:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, table)))
    return tables


def drop_abandoned(connection: Connection, schema: str = SCHEMA) -> list[str]:
    """Drop the tables of puts into kafka.state that killed drivers have left. Their names."""
    dropped = []
    for table in _find(connection, schema, STATE_PREFIX):
        try:
            with connection.transaction():
                if hold_lock(connection, lock_of(table)):  # whoever needs it would hold it
                    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(DROP_TIMEOUT)))
                    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, table)))
                    dropped.append(table)
        except errors.LockNotAvailable:
            pass  # an executor has not noticed yet that its driver is gone: the next one drops it
    return dropped


def lock_of(table: str) -> NumberedLock:
    """What the maker of a table holds for as long as it needs it."""
    return staging_lock(zlib.crc32(table.encode()))


def _find(connection: Connection, schema: str, prefix: str, attempt: str = "") -> list[str]:
    parameters = {"schema": schema, "prefix": prefix, "attempt": attempt}
    return [name for (name,) in connection.execute(statement("pipeline/find_staging"), parameters).fetchall()]


def _prefix(pipeline: str) -> str:
    return f"p_{_digest(pipeline, 16)}_"


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
