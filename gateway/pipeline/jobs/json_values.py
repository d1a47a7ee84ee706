"""JSON values for jobs: a value that is not the JSON it should be ends the batch with a sentence that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["parse_values"]

UNREADABLE = "_unreadable"


def parse_values(records: DataFrame, schema: str, *, required: tuple[str, ...]) -> DataFrame:
    """The records with the fields of their values as columns, as in `schema`, instead of the values.

    Fields in `required` must be there. A record without a value (a tombstone) is left out.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    def refuse(why: str) -> Column:
        place = F.format_string("offset %d of partition %d of topic %s", "offset", "partition", "topic")
        return F.raise_error(F.concat(F.lit("The record at "), place, F.lit(why)))

    parsed = F.from_json(
        F.col("value").cast("string"),
        f"{schema}, {UNREADABLE} STRING",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNREADABLE},
    )
    unusable = F.col("parsed").isNull() | F.col(f"parsed.{UNREADABLE}").isNotNull()
    checked = F.when(unusable, refuse(f" is not JSON of the form {schema}"))
    for name in required:
        checked = checked.when(F.col(f"parsed.{name}").isNull(), refuse(f" has no {name} in its JSON"))
    kept = [one for one in records.columns if one != "value"]
    return (
        records.where("value IS NOT NULL")
        .withColumn("parsed", parsed)
        .withColumn("parsed", checked.otherwise(F.col("parsed")).dropFields(UNREADABLE))
        .select(*kept, "parsed.*")
    )
