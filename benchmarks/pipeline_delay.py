"""How long a record takes from produce to the committed result of a continuous pipeline: p50 and p99, per rate.

`python -m benchmarks.pipeline_delay` prints a line of JSON per rate; `make bench-pipeline` runs it too. The delay of a
record begins before it is handed to the producer and ends when the runner has COMMIT's answer for the batch that holds
it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from confluent_kafka import Producer

from benchmarks.stack import Stack
from gateway.config import Settings
from gateway.pipeline.job import Batch, Job
from gateway.pipeline.runner import BatchDone, Mode, Runner
from gateway.pipeline.session import spark_session
from gateway.pipeline.sinks import AppendToTable, output_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATES = (10, 1_000, 10_000)
SECONDS = 20
WARM_RATE, WARM_SECONDS = 100, 15
"""Run before anything is measured: the JVM compiles what it runs often."""
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Delays:
    records: int
    batches: int
    p50_ms: float
    p99_ms: float


def measure(spark: SparkSession, stack: Stack, *, records_per_second: int, seconds: int = SECONDS) -> Delays:
    topic = stack.create_topic(2).name
    table = f"results_{topic.replace('-', '_')}"
    committed: dict[int, float] = {}
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        database.execute(
            f"CREATE TABLE {table} (output_id text PRIMARY KEY, batch_id bigint, sent_at double precision)".encode()
        )

        def transform(records: DataFrame, batch: Batch) -> DataFrame:
            return records.selectExpr(
                "topic",
                "partition",
                "offset",
                f"{batch.id}L AS batch_id",
                "CAST(CAST(value AS STRING) AS DOUBLE) sent_at",
            ).select(output_id().alias("output_id"), "batch_id", "sent_at")

        def note(done: BatchDone) -> None:
            committed[done.batch_id] = time.time()

        job = Job("delay", [topic], transform, AppendToTable(table))
        runner = Runner(spark, job, name=table, on_batch=note, poll_seconds=POLL_SECONDS)
        running = threading.Thread(target=runner.run, args=(Mode.CONTINUOUSLY,))
        running.start()
        try:
            sent = _produce(stack.bootstrap, topic, records_per_second, seconds)
            while _count(database, table) < sent:
                time.sleep(0.05)
        finally:
            runner.stop()
            running.join()
        rows = database.execute(f"SELECT batch_id, sent_at FROM {table} WHERE batch_id > 1".encode())
        delays = sorted(1000 * (committed[batch_id] - sent_at) for batch_id, sent_at in rows.fetchall())
    cuts = statistics.quantiles(delays, n=100)
    return Delays(len(delays), len(committed), round(cuts[49], 1), round(cuts[98], 1))


def _produce(bootstrap: str, topic: str, records_per_second: int, seconds: int) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    began = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - began) < seconds:
        while sent < elapsed * records_per_second:
            try:
                producer.produce(topic, repr(time.time()))
            except BufferError:
                break  # the producer cannot keep up: the delay says so
            sent += 1
        producer.poll(0.001)
    producer.flush()
    return sent


def _count(database: psycopg.Connection[tuple[int]], table: str) -> int:
    ((count,),) = database.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long records come at each rate")
    seconds = parser.parse_args().seconds
    with Stack() as stack:
        config = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
        spark = spark_session(
            "delay", master="local[2]", config=config, settings=Settings(database_url=stack.database_url)
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            measure(spark, stack, records_per_second=WARM_RATE, seconds=min(seconds, WARM_SECONDS))
            for rate in RATES:
                found = measure(spark, stack, records_per_second=rate, seconds=seconds)
                print(json.dumps({"records_per_second": rate, **found.__dict__}), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
