"""Puts from a DataFrame: executors write them to a staging table by JDBC, for one statement to apply.

A task that Spark runs twice leaves its puts twice, which changes nothing: a put is idempotent. The table is an ordinary
one, not unlogged: rows that a crash of the database takes away would be missing from the state. Tables that killed
drivers have left are dropped by who comes next.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from gateway.domain.state import Encoding, InvalidState
from gateway.pipeline.database import hold_lock
from gateway.pipeline.session import database_of
from gateway.pipeline.staging import SCHEMA, STATE_PREFIX, drop_abandoned, lock_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from gateway.pipeline.database import PipelineDatabase

__all__ = ["StagedPuts", "staged_puts"]

BATCH_ROWS = 5_000
TYPES = {Encoding.BYTES: ("binary",), Encoding.TEXT: ("binary", "string"), Encoding.JSON: ("binary", "string")}
INTEGERS = ("tinyint", "smallint", "int", "bigint")


class StagedPuts(NamedTuple):
    """A table of puts, as SQL writes its name, and how many rows Spark counted."""

    table: str
    rows: int


@contextmanager
def staged_puts(
    rows: DataFrame,
    *,
    version: str | tuple[str, str] = ("epoch", "round"),
    keys: Encoding = Encoding.BYTES,
    values: Encoding = Encoding.BYTES,
    schema: str = SCHEMA,
) -> Iterator[StagedPuts]:
    """Rows of `rows` as (key, value, epoch, round) in a table that is gone after the block."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    epoch, number = (None, version) if isinstance(version, str) else version
    puts = rows.select(
        _content(rows, "key", keys).alias("key"),
        _content(rows, "value", values).alias("value"),
        (F.lit(0) if epoch is None else _integer(rows, epoch)).cast("bigint").alias("epoch"),
        _integer(rows, number).cast("bigint").alias("round"),
    )
    database = database_of(rows.sparkSession)
    with _new_table(database, schema) as name:
        counted = Observation()
        puts.observe(counted, F.count(F.lit(1)).alias("rows")).write.mode("append").jdbc(
            database.jdbc_url,
            f"{schema}.{name}",
            properties={**database.jdbc_properties, "batchsize": str(BATCH_ROWS), "reWriteBatchedInserts": "true"},
        )
        yield StagedPuts(f"{schema}.{name}", int(counted.get["rows"]))


@contextmanager
def _new_table(database: PipelineDatabase, schema: str) -> Iterator[str]:
    """The name of a table for puts. A lock says that it is needed: one without it was left by who was killed."""
    with closing(database.connect(autocommit=False)) as holding:
        while not hold_lock(holding, lock_of(name := f"{STATE_PREFIX}{secrets.token_hex(8)}")):
            pass  # another one's name has the same checksum
        table = sql.Identifier(schema, name)
        # Other connections than the caller's must see it, so it is not part of the caller's transaction.
        with database.connect() as connection:
            drop_abandoned(connection, schema)
            try:
                connection.execute(
                    sql.SQL("CREATE TABLE {} (key bytea, value bytea, epoch bigint, round bigint)").format(table)
                )
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as refused:
                said = (str(refused).splitlines() or [""])[0]
                raise InvalidState(f"No staging table can be made in schema {schema}: {said}.") from None
        try:
            yield name
        finally:
            with database.connect() as connection:
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))


def _content(rows: DataFrame, name: str, encoding: Encoding) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    found = _type_of(rows, name)
    if found not in TYPES[encoding]:
        raise InvalidState(
            f"Column {name} has type {found}; for the encoding {encoding} it must be {' or '.join(TYPES[encoding])}."
        )
    if encoding is Encoding.JSON:
        return F.udf(_canonical(), "binary")(F.col(name).cast("string"))
    return F.col(name).cast("binary")


def _integer(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if (found := _type_of(rows, name)) not in INTEGERS:
        raise InvalidState(f"Column {name} has type {found}; versions are integers.")
    return F.col(name)


def _type_of(rows: DataFrame, name: str) -> str:
    types = dict(rows.dtypes)
    if name not in types:
        raise InvalidState(f"There is no column {name}: there are {', '.join(types) or 'none'}.")
    return types[name]


def _canonical() -> Callable[[str | None], bytes | None]:
    """JSON, however it was spelled, as `canonical_json` spells it. Made here so that Spark sends the function itself:
    executors need not have this package."""

    def spell(text: str | None) -> bytes | None:
        if text is None:
            return None
        try:
            content = json.loads(text)
            spelled = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            return spelled.encode()
        except ValueError as wrong:
            raise ValueError(f"A key or value is not JSON: {wrong}.") from None

    return spell
