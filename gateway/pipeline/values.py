"""Values as columns: keys and values are bytes, and mostly text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from gateway.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["BadJson", "with_json", "with_text"]

BadJson = Literal["fail", "null", "column"]
"""What a value does that is not JSON of the schema: end the read with an error, become nulls, or go to a column."""

BAD_COLUMN = "bad_value"


def with_text(rows: DataFrame, columns: Sequence[str] = ("key", "value")) -> DataFrame:
    """The same rows with these columns as text. Bytes that are not UTF-8 end the read with an error."""
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    return rows.withColumns({name: F.decode(F.col(name), "UTF-8") for name in columns})


def with_json(rows: DataFrame, schema: StructType | str, *, bad: BadJson = "fail", column: str = "value") -> DataFrame:
    """The same rows with the fields of a JSON object as columns, in place of `column`.

    A null value (a tombstone) gives null fields. What is not JSON, or does not fit the schema, fails the read by
    default, naming its topic, partition and offset; with bad="null" its fields are null; with bad="column" they are
    null too and its text is in the column bad_value, which is null for all others.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if bad not in ("fail", "null", "column"):
        raise PipelineError(f'bad is "fail", "null" or "column", not {bad!r}.')
    parsed_schema = _with_bad_column(schema)
    names = [name for name in parsed_schema.fieldNames() if name != BAD_COLUMN]
    if taken := sorted((set(names) | {BAD_COLUMN}) & (set(rows.columns) - {column})):
        raise PipelineError(f"The rows have a column {taken[0]} already: rename it, or name the field otherwise.")
    text = F.col(column).cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD_COLUMN}
    parsed = rows.withColumn("_json", F.from_json(text, parsed_schema, options))
    # A document of another kind, such as a list, gives nulls without a word.
    is_bad = F.col(column).isNotNull() & (
        F.col("_json").isNull() | F.col(f"_json.{BAD_COLUMN}").isNotNull() | ~F.trim(text).startswith("{")
    )
    fields = {name: F.when(~is_bad, F.col("_json").getField(name)) for name in names}
    if bad == "fail":
        said = F.concat(
            F.lit("The "),
            F.lit(column),
            F.lit(" at offset "),
            F.col("offset"),
            F.lit(" of partition "),
            F.col("partition"),
            F.lit(" of topic "),
            F.col("topic"),
            F.lit(' is not JSON of the schema: read with bad="null" or bad="column" to go on.'),
        )
        first = names[0]
        fields[first] = F.when(is_bad, F.raise_error(said).cast(parsed_schema[first].dataType)).otherwise(fields[first])
    if bad == "column":
        fields[BAD_COLUMN] = F.when(is_bad, text)
    kept = [name for name in rows.columns if name != column]
    return parsed.withColumns(fields).select(*kept, *fields)


def _with_bad_column(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StringType, StructType

    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise PipelineError("The schema of a JSON value names at least one field, as in `id long, amount double`.")
    return StructType([*parsed.fields]).add(BAD_COLUMN, StringType())
