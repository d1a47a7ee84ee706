"""Sinks for plain tables: executors write to a staging table, one statement of the batch's transaction merges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from gateway.pipeline.database import Connection
from gateway.pipeline.job import Batch, Run
from gateway.pipeline.staging import Staged, settle, stage_rows
from gateway.pipeline.targets import Target, TargetUnfit, load_target, require_keys, require_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["OUTPUT_ID", "AddToTable", "AppendToTable", "UpsertTable", "output_id"]

OUTPUT_ID = "output_id"


def output_id(*columns: str) -> Column:
    """A stable id of an output row: a hash of the columns that name the input it comes from.

    By default topic, partition and offset; add a number where one record gives several rows.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    names = columns or ("topic", "partition", "offset")
    # Lengths first, so that ("a", "bc") and ("ab", "c") differ; a null is unlike any text.
    parts = []
    for name in names:
        text = F.col(name).cast("string")
        parts.append(F.coalesce(F.concat(F.length(text).cast("string"), F.lit(":"), text), F.lit("-")))
    return F.sha2(F.concat_ws(",", *parts), 256)


@dataclass(frozen=True)
class _TableSink:
    """What sinks for tables share: checks, staging, cleaning up."""

    table: str
    definition: str | None = None
    """A CREATE TABLE to show where the table is missing."""

    def prepare(self, run: Run, output: str, connection: Connection) -> None:
        self.check(load_target(connection, self.table, definition=self.definition))

    def check(self, target: Target) -> None:
        raise NotImplementedError

    def stage(self, batch: Batch, output: str, rows: DataFrame) -> Staged:
        with batch.database.connect() as connection:
            target = load_target(connection, self.table, definition=self.definition)
        self.check(target)
        self.check_columns(rows.columns)
        require_rows(target, rows.schema)
        return stage_rows(batch, output, rows, target.types(rows.columns))

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse rows without the columns that the sink itself needs."""

    def commit(self, batch: Batch, connection: Connection, staged: Staged) -> int:
        settle(connection, staged)
        target = load_target(connection, self.table, definition=self.definition)
        return connection.execute(self.merge(target, staged)).rowcount

    def merge(self, target: Target, staged: Staged) -> sql.Composed:
        raise NotImplementedError

    def _require(self, columns: Sequence[str], needed: Sequence[str]) -> None:
        for column in needed:
            if column not in columns:
                raise TargetUnfit(f"The job does not write column {column}, which the sink for {self.table} goes by.")


def _names(columns: Sequence[str], prefix: str | None = None) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(prefix, one) if prefix else sql.Identifier(one) for one in columns)


@dataclass(frozen=True)
class UpsertTable(_TableSink):
    """One row per key, the one with the highest version. A replay, or rows in another order, change nothing."""

    key: Sequence[str] = ()
    version: Sequence[str] = ()
    """Compared from left to right. One key must not have two different rows of one version."""

    def check(self, target: Target) -> None:
        if not self.key or not self.version:
            raise TargetUnfit(f"The sink for {self.table} needs the columns of its key and of its version.")
        require_keys(target, key=self.key, version=self.version)

    def check_columns(self, columns: Sequence[str]) -> None:
        self._require(columns, (*self.key, *self.version))

    def merge(self, target: Target, staged: Staged) -> sql.Composed:
        changed = [one for one in staged.columns if one not in self.key]
        return sql.SQL(
            "INSERT INTO {target} AS held ({columns})"
            " SELECT DISTINCT ON ({key}) {columns} FROM {staged} ORDER BY {key}, {newest}"
            " ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE ({held}) < ({new})"
        ).format(
            target=target.identifier,
            columns=_names(staged.columns),
            key=_names(self.key),
            staged=staged.identifier,
            newest=sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(one)) for one in self.version),
            changes=sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(one), sql.Identifier("excluded", one)) for one in changed
            ),
            held=_names(self.version, "held"),
            new=_names(self.version, "excluded"),
        )


@dataclass(frozen=True)
class AppendToTable(_TableSink):
    """Rows with a stable id, made by `output_id`: a row whose id is there already is left as it is."""

    id_column: str = OUTPUT_ID

    def check(self, target: Target) -> None:
        require_keys(target, key=(self.id_column,))

    def check_columns(self, columns: Sequence[str]) -> None:
        self._require(columns, (self.id_column,))

    def merge(self, target: Target, staged: Staged) -> sql.Composed:
        return sql.SQL(
            "INSERT INTO {target} ({columns}) SELECT DISTINCT ON ({id}) {columns} FROM {staged} ORDER BY {id}"
            " ON CONFLICT ({id}) DO NOTHING"
        ).format(
            target=target.identifier,
            columns=_names(staged.columns),
            staged=staged.identifier,
            id=sql.Identifier(self.id_column),
        )


@dataclass(frozen=True)
class AddToTable(_TableSink):
    """One row per key, to whose other columns those of each batch are added: counts and sums.

    Each batch is added once, whatever is killed. But a pipeline that is reset adds again what it reads again: empty
    the table with it.
    """

    key: Sequence[str] = ()

    def check(self, target: Target) -> None:
        if not self.key:
            raise TargetUnfit(f"The sink for {self.table} needs the columns of its key.")
        require_keys(target, key=self.key)

    def check_columns(self, columns: Sequence[str]) -> None:
        self._require(columns, self.key)
        if set(columns) == set(self.key):
            raise TargetUnfit(f"The job writes nothing but the key of {self.table}: there is nothing to add.")

    def merge(self, target: Target, staged: Staged) -> sql.Composed:
        added = [one for one in staged.columns if one not in self.key]
        return sql.SQL(
            "INSERT INTO {target} AS held ({key}, {added}) SELECT {key}, {sums} FROM {staged} GROUP BY {key}"
            " ORDER BY {key} ON CONFLICT ({key}) DO UPDATE SET {changes}"
        ).format(
            target=target.identifier,
            key=_names(self.key),
            added=_names(added),
            sums=sql.SQL(", ").join(
                sql.SQL("sum({column})::{type}").format(
                    column=sql.Identifier(one),
                    type=sql.SQL(target.columns[one].type),  # as format_type() spells it
                )
                for one in added
            ),
            staged=staged.identifier,
            changes=sql.SQL(", ").join(
                sql.SQL("{0} = coalesce({1}, 0) + coalesce({2}, 0)").format(
                    sql.Identifier(one), sql.Identifier("held", one), sql.Identifier("excluded", one)
                )
                for one in added
            ),
        )
