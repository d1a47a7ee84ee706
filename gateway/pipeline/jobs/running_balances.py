"""Running balances: state that grows with every batch, in kafka.state, exactly once.

Values are JSON such as {"account": "a-1", "amount": 12.50}; state is {"balance": …, "payments": …} by account.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.pipeline.job import Batch, Job
from gateway.pipeline.jobs.json_values import parse_values, require_bad
from gateway.pipeline.sinks import PutState, read_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["add_to_balances", "make_job"]

NAMESPACE = "balances"
PAYMENT = "account STRING, amount DECIMAL(30, 2)"
BALANCE = "balance DECIMAL(38, 2), payments BIGINT"


def add_to_balances(payments: DataFrame, held: DataFrame) -> DataFrame:
    """New state (key, value) of the accounts with payments, from what is held of them (key, value)."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    sums = payments.groupBy("account").agg(F.sum("amount").alias("amount"), F.count("*").alias("payments"))
    before = held.select(
        F.col("key").cast("string").alias("account"), F.from_json(F.col("value").cast("string"), BALANCE).alias("was")
    )
    balance = (F.coalesce("was.balance", F.lit(0)) + F.col("amount")).cast("DECIMAL(38, 2)").alias("balance")
    count = (F.coalesce("was.payments", F.lit(0)) + F.col("payments")).alias("payments")
    return sums.join(before, "account", "left").select(
        F.col("account").alias("key"), F.to_json(F.struct(balance, count)).alias("value")
    )


def make_job(topics: Sequence[str], *, namespace: str = NAMESPACE, bad: str = "fail") -> Job:
    """Sums of payments by account, kept in a namespace of kafka.state."""
    require_bad(bad)

    def transform(records: DataFrame, batch: Batch) -> DataFrame:
        payments = parse_values(records, PAYMENT, required=("account", "amount"), bad=bad)
        held = read_state(batch, namespace, payments.selectExpr("account AS key"))
        return add_to_balances(payments, held)

    return Job(
        name="running-balances",
        topics=topics,
        columns=("topic", "partition", "offset", "value"),
        transform=transform,
        sinks=PutState(namespace),
    )
