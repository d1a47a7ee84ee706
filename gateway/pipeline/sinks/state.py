"""The sink for kafka.state: rows of a batch become versions of keys in the batch's transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.domain.state import Outcome
from gateway.errors import PipelineError
from gateway.pipeline.database import Connection
from gateway.pipeline.job import Batch, Run
from gateway.pipeline.staging import Staged, settle, stage_rows
from gateway.pipeline.state import State, apply_staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PutState", "read_state"]

TYPES = {"key": "bytea", "value": "bytea", "epoch": "bigint", "round": "bigint"}


@dataclass(frozen=True)
class PutState:
    """Puts rows (key, value) into a namespace of this pipeline, which its checkpoints cover.

    Key and value are bytes or text; a null value deletes. The version is (epoch, round) where the rows have these
    columns, else (0, the batch's id): later batches replace earlier ones.
    """

    namespace: str

    def prepare(self, run: Run, output: str, connection: Connection) -> None:
        State.create(connection, self.namespace, pipeline=run.pipeline)

    def stage(self, batch: Batch, output: str, rows: DataFrame) -> Staged:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        if missing := [one for one in ("key", "value") if one not in rows.columns]:
            raise PipelineError(f"Rows for kafka.state need the columns key and value; {missing[0]} is missing.")
        columns = [F.col(one).cast("binary") for one in ("key", "value")]
        for name, made in (("epoch", F.lit(0)), ("round", F.lit(batch.id))):
            columns.append((F.col(name) if name in rows.columns else made).cast("bigint").alias(name))
        return stage_rows(batch, output, rows.select(*columns), TYPES)

    def commit(self, batch: Batch, connection: Connection, staged: Staged) -> int:
        settle(connection, staged)
        outcomes = apply_staged(connection, self.namespace, staged.name, expected=staged.rows)
        return outcomes.get(Outcome.APPLIED, 0) + outcomes.get(Outcome.BUFFERED, 0)


def read_state(batch: Batch, namespace: str, keys: DataFrame) -> DataFrame:
    """What a namespace holds, before this batch, of the keys in column `key` of `keys`: key, value, epoch, round.

    Only these are read, however large the namespace is.
    """
    wanted = keys.selectExpr("CAST(key AS BINARY) AS key").where("key IS NOT NULL").distinct()
    staged = stage_rows(batch, f"keys of {namespace}", wanted, {"key": "bytea"})
    name = namespace.replace("'", "''")
    query = (
        f"(SELECT s.key, s.value, s.epoch, s.round FROM kafka.state s WHERE s.namespace = '{name}' "  # noqa: S608
        f"AND s.key IN (SELECT key FROM {staged.name})) AS held"
    )
    return batch.spark.read.jdbc(batch.database.jdbc_url, query, properties=batch.database.jdbc_properties)
