"""A pipeline that is killed: writes to everything a pipeline can write to, in a process of its own.

`python -m tests.support.pipeline_driver <topic> <name> <path> <bootstrap> <master>` runs it until it has caught up; its
tables are called by its name. With `serve` alone, Spark is kept for many runs: each line `<failpoint> <mode> <topic>
<name> <path> <bootstrap>` of stdin forks a driver that runs the pipeline and may die. Lines of stdout: its process id,
then its exit status. Such a driver dies without its JVM, in which tasks go on for a while, as a zombie's would.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway import failpoints
from gateway.pipeline.job import Batch, Job
from gateway.pipeline.jobs.json_values import parse_values
from gateway.pipeline.jobs.running_balances import PAYMENT, add_to_balances
from gateway.pipeline.runner import Mode, Runner
from gateway.pipeline.session import spark_session
from gateway.pipeline.sinks import (
    AddToTable,
    AppendToTable,
    PutState,
    UpsertTable,
    WriteParquet,
    WriteTopic,
    output_id,
    read_state,
)
from tests.support.spark import TEST_CONFIG, fetching_alone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_ROWS = 40
TABLES = """
CREATE TABLE {name}_log (output_id text PRIMARY KEY, partition integer, "offset" bigint, account text, amount numeric);
CREATE TABLE {name}_latest (account text PRIMARY KEY, partition integer NOT NULL, "offset" bigint NOT NULL,
                            amount numeric);
CREATE TABLE {name}_sums (account text PRIMARY KEY, payments bigint NOT NULL, total numeric NOT NULL);
"""


def make_job(topic: str, name: str, path: str, bootstrap: str) -> Job:
    def transform(records: DataFrame, batch: Batch) -> Mapping[str, DataFrame]:
        payments = parse_values(records, PAYMENT, required=("account", "amount"))
        newest = payments.selectExpr("account", "struct(offset, partition, amount) AS newest").groupBy("account")
        latest = newest.agg({"newest": "max"}).selectExpr("account", "`max(newest)`.*")
        held = read_state(batch, name, payments.selectExpr("account AS key"))
        return {
            "log": payments.select(output_id().alias("output_id"), "partition", "offset", "account", "amount"),
            "latest": latest,
            "sums": payments.groupBy("account")
            .agg({"*": "count", "amount": "sum"})
            .selectExpr("account", "`count(1)` AS payments", "`sum(amount)` AS total"),
            "state": add_to_balances(payments, held),
            "topic": payments.selectExpr("account AS key", "concat(partition, '/', offset) AS value"),
            "files": payments,
        }

    return Job(
        "killed",
        [topic],
        transform,
        {
            "log": AppendToTable(f"{name}_log"),
            "latest": UpsertTable(f"{name}_latest", key=("account",), version=("offset", "partition")),
            "sums": AddToTable(f"{name}_sums", key=("account",)),
            "state": PutState(name),
            "topic": WriteTopic(f"{name}.out", bootstrap=bootstrap),
            "files": WriteParquet(path, files_per_batch=1),
        },
        columns=("topic", "partition", "offset", "value"),
        max_rows=MAX_ROWS,
    )


def start_spark(master: str = "local[1]") -> SparkSession:
    config = {**TEST_CONFIG, "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "512m"}
    if not master.startswith("local["):
        config |= {"spark.sql.shuffle.partitions": "2", "spark.executor.memory": "512m", "spark.task.maxFailures": "8"}
    with fetching_alone():
        spark = spark_session("killed", master=master, config=config)
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def run(spark: SparkSession, mode: Mode, topic: str, name: str, path: str, bootstrap: str) -> None:
    runner = Runner(spark, make_job(topic, name, path, bootstrap), name=name, poll_seconds=0.1)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    else:
        STOPPABLE.append(runner)
    runner.run(mode)


STOPPABLE: list[Runner] = []


def serve() -> None:
    """A driver per line. Drivers are forks that share the JVM, each over a connection of its own."""
    spark = start_spark()
    spark.range(1).count()
    print("ready", flush=True)
    for line in sys.stdin:
        failpoint, mode, *arguments = line.split()
        if (child := os.fork()) == 0:
            _run_in_fork(spark, failpoint, Mode[mode], arguments)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run_in_fork(spark: SparkSession, failpoint: str, mode: Mode, arguments: list[str]) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            failpoints.arm(failpoint)
            run(spark, mode, *arguments)
        except BaseException as error:  # noqa: BLE001 - told by the exit status
            failed.append(error)

    signal.signal(signal.SIGTERM, lambda *_: [runner.stop() for runner in STOPPABLE])
    # Py4J has a connection per thread, so this one does not share its parent's.
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    if failed:
        print(f"{type(failed[0]).__name__}: {failed[0]}", file=sys.stderr, flush=True)
    os._exit(1 if failed else 0)


def main() -> None:
    if sys.argv[1] == "serve":
        serve()
        return
    topic, name, path, bootstrap, master = sys.argv[1:]
    spark = start_spark(master)
    print("ready", flush=True)
    run(spark, Mode.UNTIL_CAUGHT_UP, topic, name, path, bootstrap)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
