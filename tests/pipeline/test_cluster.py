"""The same command on a Spark standalone cluster: a master and two workers from the PySpark package, on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from gateway.pipeline.session import JavaMissing, require_java
from tests.support.gateway_process import HOST, REPOSITORY, free_port
from tests.support.spark import JVM_OPTIONS

COMMAND = [sys.executable, "-c", "from gateway.cli import main; main()", "pipeline"]
JOB = """
import json, os
from pathlib import Path

from gateway.pipeline import read_topic
from gateway.pipeline.job import Job
from gateway.pipeline.sinks import AppendToTable, output_id


def make(topics, *, table, report):
    def copy(records, batch):
        rows = read_topic(batch.spark, topics, rows_per_task=25)
        by_jdbc = rows.selectExpr("count(*)", "sum(offset)").first()
        by_source = batch.spark.read.format("tablewire").option("topics", topics[0]).option("rowsPerTask", 25).load()
        by_source = by_source.selectExpr("count(*)", "sum(offset)").first()
        count = lambda part: [(os.environ["SPARK_EXECUTOR_DIRS"], sum(1 for _ in part))]
        executors = rows.rdd.mapPartitions(count).collect()
        seen = {"jdbc": list(by_jdbc), "source": list(by_source), "executors": executors}
        Path(report).write_text(json.dumps(seen))
        return records.select(output_id().alias("output_id"), records.value.cast("string").alias("value"))

    return Job("copy", topics, copy, AppendToTable(table))
"""
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}


@contextmanager
def daemon(log: Path, *arguments: str) -> Iterator[None]:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
        "SPARK_WORKER_DIR": str(log.parent / log.stem),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
    }
    # Workers have no more than a cluster's machines would: the database's address comes from the driver alone.
    environment = {name: value for name, value in environment.items() if not name.startswith("TABLEWIRE_")}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            env=environment,
            cwd=log.parent,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def wait_for_line(log: Path, pattern: str, *, timeout_s: float = 90.0) -> re.Match[str]:
    deadline = time.monotonic() + timeout_s
    while (found := re.search(pattern, log.read_text(errors="replace") if log.exists() else "")) is None:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)
    return found


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    port = str(free_port())
    address = f"spark://{HOST}:{port}"
    at = ["--host", HOST, "--webui-port", "0", "--port"]
    with ExitStack() as running:
        log = tmp_path / "master.log"
        running.enter_context(daemon(log, "org.apache.spark.deploy.master.Master", *at, port))
        wait_for_line(log, "I have been elected leader")
        for number in (1, 2):
            log = tmp_path / f"worker-{number}.log"
            command = ["org.apache.spark.deploy.worker.Worker", *at, "0", "--cores", "1", "--memory", "1g", address]
            running.enter_context(daemon(log, *command))
        for number in (1, 2):
            wait_for_line(tmp_path / f"worker-{number}.log", "Successfully registered with master")
        yield address


@pytest.mark.timeout(400)  # five JVMs start
def test_a_pipeline_is_run_by_the_executors_of_two_workers(
    master: str,
    new_topic: Any,
    produce: Any,
    connection: psycopg.Connection[Any],
    pipeline_database_url: str,
    tmp_path: Path,
) -> None:
    topic, table, report = new_topic(2), f"cluster_{uuid4().hex[:12]}", tmp_path / "report.json"
    produce(topic, [b"v"] * 100)
    produce(topic, [b"v"] * 100, partition=1)
    connection.execute(f"CREATE TABLE {table} (output_id text PRIMARY KEY, value text)".encode())
    (tmp_path / "cluster_jobs.py").write_text(JOB)
    words = ["run", "cluster_jobs:make", "--topic", topic, "--set", f"table={table}", "--set", f"report={report}"]
    words += ["--name", table, "--until-caught-up", "--master", master]
    words += [word for name, value in CONFIG.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(tmp_path)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "TABLEWIRE_DATABASE_URL": pipeline_database_url,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(report.read_text())
    assert seen["jdbc"] == seen["source"] == [200, 2 * sum(range(100))]
    assert sum(count for _, count in seen["executors"]) == 200
    assert len({place for place, _ in seen["executors"]}) == 2, "both workers have read"
    assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (200,)
    secret = re.search(r":([^:@/]+)@", pipeline_database_url)
    assert secret is not None
    assert secret[1] not in done.stdout + done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and secret[1].encode() in path.read_bytes()]
    assert written == [], "the password is in no log and no file of the cluster"
