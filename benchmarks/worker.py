"""What effects that happen once cost: a worker writes a row for each record, with mark and offset in its commit."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import psycopg

from benchmarks.bench import Bench
from benchmarks.results import EFFECTS, Case
from benchmarks.stack import Topic
from benchmarks.workload import payloads
from gateway.worker import Work, Worker

__all__ = ["CLIENT", "measure_worker"]

CLIENT = "gateway.worker"
APPEND_STEP = 1000


def measure_worker(bench: Bench) -> None:
    shape = bench.workload.worker_shape
    for batch, records in bench.workload.worker_effects.items():
        with bench.topic(shape.partitions) as topic, psycopg.connect(bench.stack.database_url) as connection:
            connection.execute("CREATE TABLE effects (number bigint, value bytea)")
            _append(connection, topic, records, partitions=shape.partitions, record_bytes=shape.record_bytes)
            connection.commit()
            bench.stack.settle()
            run = bench.run(partial(_work, connection, topic, batch, records), records=records)
            connection.execute("DROP TABLE effects")
        bench.record(Case(EFFECTS[batch], CLIENT, shape), run)


def _append(
    connection: psycopg.Connection[Any], topic: Topic, records: int, *, partitions: int, record_bytes: int
) -> None:
    """Records with a key each, spread over the partitions."""
    values = payloads(record_bytes)
    for first in range(0, records, APPEND_STEP):
        numbers = range(first, min(first + APPEND_STEP, records))
        count = len(numbers)
        connection.execute(
            "SELECT count(*) FROM kafka.append_records(%s, %s, %s, %s, %s, %s, %s)",
            [
                [topic.name] * count,
                [number % partitions for number in numbers],
                [None] * count,
                [values[number % len(values)] for number in numbers],
                [1] * count,
                ["idempotency-key"] * count,
                [b"effect-%d" % number for number in numbers],
            ],
        )


def _work(connection: psycopg.Connection[Any], topic: Topic, batch: int, records: int) -> float:
    def write(work: Work[psycopg.Connection[Any]]) -> None:
        work.connection.execute("INSERT INTO effects VALUES (%s, %s)", [work.delivery.offset, work.delivery.value])

    started = time.perf_counter()
    Worker(connection, topic.name, f"group-of-{topic.name}").run(write, batch=batch, until_idle=True)
    elapsed = time.perf_counter() - started
    row = connection.execute("SELECT count(*) FROM effects").fetchone()
    if row != (records,):
        raise RuntimeError(f"{records} records, {row} effects")
    return records / elapsed
