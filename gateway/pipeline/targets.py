"""Target tables: what they look like, and whether rows of a DataFrame fit into one. Judged before any work is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from gateway.errors import PipelineError
from gateway.pipeline.database import Connection
from gateway.storage.statements import statement

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Target", "TargetColumn", "TargetUnfit", "load_target", "require_keys", "require_rows"]

# Which types of PostgreSQL take which of Spark, by typname; text may become whatever the server reads from text.
NUMBERS = ("int2", "int4", "int8", "numeric", "float4", "float8")
FITTING: Mapping[str, tuple[str, ...]] = {
    "tinyint": NUMBERS,
    "smallint": NUMBERS,
    "int": ("int4", "int8", "numeric", "float8"),
    "bigint": ("int8", "numeric"),
    "float": ("float4", "float8", "numeric"),
    "double": ("float8", "numeric"),
    "decimal": ("numeric",),
    "boolean": ("bool",),
    "binary": ("bytea",),
    "timestamp": ("timestamptz", "timestamp"),
    "timestamp_ntz": ("timestamp",),
    "date": ("date",),
}
TEXT_CATEGORIES = ("S", "E", "I")
TEXT_LIKE = ("json", "jsonb", "uuid", "xml", "citext", "macaddr")


class TargetUnfit(PipelineError):
    """The target table is missing or of another shape."""


@dataclass(frozen=True)
class TargetColumn:
    name: str
    type: str
    """As format_type() spells it."""
    typname: str
    category: str
    is_not_null: bool
    is_required: bool
    """Not null and without a default: an insert must name it."""
    is_writable: bool

    def takes(self, spark_type: str) -> bool:
        kind = spark_type.partition("(")[0].partition("<")[0]
        if kind in ("string", "varchar", "char"):
            return self.category in TEXT_CATEGORIES or self.typname in TEXT_LIKE
        if kind == "array":
            return self.category == "A"
        return self.typname in FITTING.get(kind, ())


@dataclass(frozen=True)
class Target:
    """A table as it is in the database."""

    schema: str
    table: str
    columns: Mapping[str, TargetColumn]
    unique: tuple[frozenset[str], ...]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def types(self, columns: Iterable[str]) -> dict[str, str]:
        return {column: self.columns[column].type for column in columns}


def load_target(connection: Connection, table: str, *, definition: str | None = None) -> Target:
    """`definition` is a CREATE TABLE that the refusal shows when there is no such table."""
    rows = connection.execute(statement("pipeline/load_target"), {"table": table}).fetchall()
    if not rows:
        advice = f"create it first: {definition}" if definition else "create it first, or name it with its schema."
        raise TargetUnfit(f"There is no table {table}: {advice}")
    keys = connection.execute(statement("pipeline/load_target_keys"), {"table": table}).fetchall()
    columns = {row[2]: TargetColumn(*row[2:]) for row in rows}
    return Target(rows[0][0], rows[0][1], columns, tuple(frozenset(names) for (names,) in keys))


def require_keys(target: Target, *, key: Sequence[str], version: Sequence[str] = ()) -> None:
    """Refuse a table in which a row cannot be found by its key, or whose versions could be null."""
    for column in (*key, *version):
        if column not in target.columns:
            raise TargetUnfit(f"Table {target.name} has no column {column}: add it, or name another.")
        if not target.columns[column].is_not_null:
            raise TargetUnfit(
                f"Column {column} of table {target.name} may be null, and rows are found by it: "
                f"ALTER TABLE {target.name} ALTER COLUMN {column} SET NOT NULL."
            )
    if frozenset(key) not in target.unique:
        columns = ", ".join(key)
        raise TargetUnfit(
            f"Table {target.name} has no unique index on ({columns}): CREATE UNIQUE INDEX ON {target.name} ({columns})."
        )


def require_rows(target: Target, schema: StructType) -> None:
    """Refuse rows that do not fit into the table, naming the first column that is wrong."""
    for field in schema.fields:
        column = target.columns.get(field.name)
        if column is None:
            raise TargetUnfit(
                f"Table {target.name} has no column {field.name}, which the job writes as "
                f"{field.dataType.simpleString()}: add it, or drop it in the job."
            )
        if not column.is_writable:
            raise TargetUnfit(f"Column {field.name} of table {target.name} is generated: drop it in the job.")
        if not column.takes(field.dataType.simpleString()):
            raise TargetUnfit(
                f"Column {field.name} of table {target.name} is {column.type}, and the job writes "
                f"{field.dataType.simpleString()}: cast one of them (structures and maps: with to_json)."
            )
    written = {field.name for field in schema.fields}
    for column in target.columns.values():
        if column.is_required and column.name not in written:
            raise TargetUnfit(
                f"Column {column.name} of table {target.name} is not null and without a default, and the job does not "
                "write it: write it, or give it a default."
            )
