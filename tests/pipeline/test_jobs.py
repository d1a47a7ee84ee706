"""The jobs that come with Tablewire, each run over real records through the runner, in several batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import uuid4

import psycopg
import pytest

from gateway.errors import PipelineError
from gateway.pipeline.job import Job
from gateway.pipeline.jobs import copy_to_parquet, copy_to_topic, enrich, hourly_counts, latest_values, running_balances
from gateway.pipeline.runner import Mode, Runner
from gateway.pipeline.sinks import read_files
from tests.pipeline.conftest import Record, as_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Produce = Callable[..., None]
HOUR_MS = 3_600_000
NOON_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS


@pytest.fixture
def name() -> str:
    return f"jobs-{uuid4().hex[:12]}"


@pytest.fixture
def run_job(spark: SparkSession, name: str) -> Callable[..., int]:
    """Run a job until it has caught up, a few records at a time; how many batches that took."""

    def run(job: Job, *, max_rows: int = 7) -> int:
        return len(Runner(spark, replace(job, max_rows=max_rows), name=name).run(Mode.UNTIL_CAUGHT_UP))

    return run


def rows_of(connection: psycopg.Connection[Any], query: LiteralString, *parameters: object) -> list[Any]:
    return connection.execute(query, parameters).fetchall()


def new_table(connection: psycopg.Connection[Any], definition: str) -> str:
    table = f"target_{uuid4().hex[:12]}"
    connection.execute(definition.format(table=table, on="customer_id").encode())
    return table


def test_records_are_counted_per_topic_and_hour(
    connection: psycopg.Connection[Any], new_topic: Any, produce: Produce, run_job: Any
) -> None:
    first, second = new_topic(2), new_topic()
    produce(first, [("k", b"123")] * 5, timestamp_ms=NOON_MS)
    produce(first, [b"1"] * 4, partition=1, timestamp_ms=NOON_MS + HOUR_MS - 1)
    produce(first, [b"1"] * 3, partition=1, timestamp_ms=NOON_MS + HOUR_MS)
    produce(second, [b"1"] * 2, timestamp_ms=NOON_MS)
    table = new_table(connection, hourly_counts.DEFINITION)

    batches = run_job(hourly_counts.make_job([first, second], table=table))
    assert batches > 1
    produce(first, [("k", b"1")], timestamp_ms=NOON_MS)
    assert run_job(hourly_counts.make_job([first, second], table=table)) == 1

    found = rows_of(
        connection,
        f"SELECT topic, extract(epoch FROM hour)::bigint * 1000, records, bytes FROM {table} ORDER BY 1, 2",  # type: ignore[arg-type]
    )
    wanted = [(first, NOON_MS, 10, 26), (first, NOON_MS + HOUR_MS, 3, 3), (second, NOON_MS, 2, 2)]
    assert found == sorted(wanted)


def test_the_latest_value_of_a_key_is_kept(
    connection: psycopg.Connection[Any], new_topic: Any, produce: Produce, run_job: Any
) -> None:
    topic = new_topic()
    produce(topic, [(f"key-{number % 3}", str(number).encode()) for number in range(20)])
    produce(topic, [b"without a key", ("key-1", None)])
    table = new_table(connection, latest_values.DEFINITION)

    assert run_job(latest_values.make_job([topic], table=table)) > 1

    found = rows_of(connection, f'SELECT key, value, "offset" FROM {table} ORDER BY 1')  # type: ignore[arg-type]
    assert found == [(b"key-0", b"18", 18), (b"key-1", None, 21), (b"key-2", b"17", 17)]


def test_balances_grow_from_batch_to_batch(
    connection: psycopg.Connection[Any], new_topic: Any, produce: Produce, run_job: Any, name: str
) -> None:
    topic = new_topic(2)
    payments = [(f"account-{number % 4}", number * 25 - 100) for number in range(30)]
    for number, (account, cents) in enumerate(payments):
        value = json.dumps({"account": account, "amount": cents / 100}).encode()
        produce(topic, [(account, value)], partition=number % 2)
    produce(topic, [("tombstone", None)])

    assert run_job(running_balances.make_job([topic], namespace=name)) > 1

    found = rows_of(
        connection,
        "SELECT convert_from(key, 'UTF8'), kafka.state_json(value) FROM kafka.state WHERE namespace = %s ORDER BY 1",
        name,
    )
    accounts = sorted({account for account, _ in payments})
    assert [(account, held["payments"], round(held["balance"] * 100)) for account, held in found] == [
        (
            one,
            sum(account == one for account, _ in payments),
            sum(cents for account, cents in payments if account == one),
        )
        for one in accounts
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"not json", "offset 3 of partition 0 of topic .* is not JSON"),
        (b'{"account": "a", "amount": "much"}', "offset 3 of partition 0 .* is not JSON of the form"),
        (b'{"account": "a"}', "offset 3 of partition 0 of topic .* has no amount"),
        (b"[1]", "offset 3 of partition 0"),
        (b"\xff\xfe", "offset 3 of partition 0"),
    ],
)
def test_a_value_that_is_not_the_json_expected_is_named_and_nothing_is_written(
    connection: psycopg.Connection[Any],
    new_topic: Any,
    produce: Produce,
    run_job: Any,
    name: str,
    value: bytes,
    reason: str,
) -> None:
    topic = new_topic()
    produce(topic, [b'{"account": "a", "amount": 1}'] * 3 + [value])
    with pytest.raises(PipelineError, match=reason):
        run_job(running_balances.make_job([topic], namespace=name), max_rows=100)
    assert rows_of(connection, "SELECT count(*) FROM kafka.state WHERE namespace = %s", name) == [(0,)]
    ((batch_id, error),) = rows_of(connection, "SELECT batch_id, last_error FROM kafka.pipelines WHERE name = %s", name)
    assert batch_id == 0
    assert "offset 3 of partition 0" in error

    assert run_job(running_balances.make_job([topic], namespace=name, bad="skip"), max_rows=100) == 1
    ((held,),) = rows_of(connection, "SELECT kafka.state_json(value) FROM kafka.state WHERE namespace = %s", name)
    assert held == {"balance": 3.0, "payments": 3}
    with pytest.raises(PipelineError, match="bad is fail or skip, not 'ignore'"):
        running_balances.make_job([topic], bad="ignore")


def test_records_are_enriched_by_a_table(
    connection: psycopg.Connection[Any], new_topic: Any, produce: Produce, run_job: Any
) -> None:
    topic = new_topic(2)
    customers = new_table(connection, "CREATE TABLE {table} (customer_id bigint PRIMARY KEY, name text)")
    connection.execute(f"INSERT INTO {customers} VALUES (1, 'Ada'), (2, 'Grace')".encode())
    for number in range(12):
        produce(topic, [json.dumps({"customer_id": number % 3, "n": number}).encode()], partition=number % 2)
    produce(topic, [b"not json", b'{"n": 12}'])
    table = new_table(connection, enrich.DEFINITION)

    assert run_job(enrich.make_job([topic], table=table, joined=customers, bad="skip")) > 1

    found = rows_of(
        connection,
        f"SELECT (value ->> 'n')::int, customer_id, joined ->> 'name' FROM {table} ORDER BY 1",  # type: ignore[arg-type]
    )
    names = {0: None, 1: "Ada", 2: "Grace"}
    assert found == [(number, str(number % 3), names[number % 3]) for number in range(12)]


def test_a_topic_is_copied_to_parquet(
    spark: SparkSession,
    connection: psycopg.Connection[Any],
    new_topic: Any,
    produce: Produce,
    consume: Callable[[str, int], list[Record]],
    run_job: Any,
    name: str,
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    for partition in range(2):
        produce(topic, [(f"k{number}", f"v{number}".encode()) for number in range(10)], partition=partition)
    batches = run_job(copy_to_parquet.make_job([topic], path=str(tmp_path / "out"), files_per_batch=1))
    assert batches > 1
    assert as_records(read_files(spark, name)) == [*consume(topic, 0), *consume(topic, 1)]
    counted = rows_of(
        connection, "SELECT batch_id, count(*) FROM kafka.output_files WHERE pipeline = %s GROUP BY 1", name
    )
    assert sorted(counted) == [(number, 1) for number in range(1, batches + 1)]


def test_a_topic_is_copied_to_another(
    new_topic: Any,
    produce: Produce,
    consume: Callable[[str, int], list[Record]],
    run_job: Any,
    bootstrap: str,
    spark: SparkSession,
    connection: psycopg.Connection[Any],
) -> None:
    source, target = new_topic(2), new_topic(3)
    headers = [("one", b"\x00\\\xff"), ("two", b"text"), ("one", None)]
    for partition in range(2):
        values = [(f"k{number % 5}", f"{partition}/{number}".encode()) for number in range(10)]
        produce(source, values, partition=partition, timestamp_ms=NOON_MS, headers=headers)
    assert run_job(copy_to_topic.make_job([source], target=target, bootstrap=bootstrap)) > 1

    copied = [record for partition in range(3) for record in consume(target, partition)]
    original = [record for partition in range(2) for record in consume(source, partition)]

    def told(records: list[Record]) -> list[Any]:
        return sorted((record.timestamp_ms, record.key, record.value) for record in records)

    assert told(copied) == told(original)
    for key in {record.key for record in copied}:
        of_key = [record for record in copied if record.key == key]
        assert len({record.partition for record in of_key}) == 1
        for start in (b"0/", b"1/"):
            values = [record.value for record in of_key if record.value and record.value.startswith(start)]
            assert values == sorted(values, key=lambda value: int(value[2:]))
    found = rows_of(
        connection, "SELECT DISTINCT headers FROM kafka.committed_messages WHERE topic = ANY (%s)", [source, target]
    )
    assert len(found) == 1
