"""JSON values for jobs: a value that is not the JSON it should be ends the batch with a sentence that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["parse_values", "require_bad"]

UNREADABLE = "_unreadable"


def parse_values(records: DataFrame, schema: str, *, required: tuple[str, ...], bad: str = "fail") -> DataFrame:
    """The records with the fields of their values as columns, as in `schema`, instead of the values.

    Fields in `required` must be there. A record without a value (a tombstone) is left out, and with bad="skip" so is
    one whose value is not such JSON.
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
    rows = records.where("value IS NOT NULL").withColumn("parsed", parsed)
    if require_bad(bad) == "skip":
        rows = rows.where(~unusable).where(" AND ".join(f"parsed.`{name}` IS NOT NULL" for name in required))
    else:
        rows = rows.withColumn("parsed", checked.otherwise(F.col("parsed")))
    kept = [one for one in records.columns if one != "value"]
    return rows.withColumn("parsed", F.col("parsed").dropFields(UNREADABLE)).select(*kept, "parsed.*")


def require_bad(bad: str) -> str:
    """What a job does with a value that is not the JSON it should be."""
    if bad not in ("fail", "skip"):
        raise PipelineError(f"bad is fail or skip, not {bad!r}.")
    return bad
