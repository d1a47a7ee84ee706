"""`tablewire pipeline` as its users call it: a process of its own."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from rich.console import Console

from gateway.pipeline.jobs import JOBS, hourly_counts
from gateway.pipeline.runner import BatchDone
from gateway.pipeline.session import JavaMissing, require_java
from tests.support.spark import JVM_OPTIONS
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from gateway.cli import main; main()", "pipeline"]
OWN_JOB = """
from gateway.pipeline.job import Job
from gateway.pipeline.jobs import hourly_counts

def make(topics, *, table):
    return hourly_counts.make_job(topics, table=table)

nothing = 7
"""


@pytest.fixture
def environment(pipeline_database_url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "own_jobs.py").write_text(OWN_JOB)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TABLEWIRE_")}
    path = os.pathsep.join([str(REPOSITORY), str(tmp_path)])
    return {**inherited, "PYTHONPATH": path, "TABLEWIRE_DATABASE_URL": pipeline_database_url}


@pytest.fixture
def tablewire(environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_jobs_are_listed(tablewire: Any) -> None:
    jobs = json.loads(tablewire("list", "--json").stdout)
    assert [job["job"] for job in jobs] == list(JOBS)
    assert all(job["does"] for job in jobs)
    assert {"job": "copy-to-topic", "target": None}.items() <= {**jobs[-1], **jobs[-1]["options"]}.items()
    assert "table=hourly_counts" in tablewire("list").stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "no-such-job"], "There is no job no-such-job: take one of hourly-counts,"),
        (["run", "no_module:job"], "cannot be loaded: No module named 'no_module'"),
        (["run", "own_jobs:none"], "cannot be loaded"),
        (["run", "own_jobs:nothing"], "is int: it must be a Job"),
        (["run", "own_jobs:make", "--topic", "t"], "needs the option table: --set table=…"),
        (["run", "hourly-counts"], "needs a topic: --topic NAME"),
        (["run", "hourly-counts", "--topic", "t", "--set", "no=1"], "has no option no: it has table"),
        (["run", "hourly-counts", "--topic", "t", "--set", "no"], "'no' is not NAME=VALUE"),
        (
            ["run", "copy-to-parquet", "--topic", "t", "--set", "path=p", "--set", "files_per_batch=few"],
            "Job copy-to-parquet cannot use its options: invalid literal for int() with base 10: 'few'",
        ),
        (["run", "hourly-counts", "--topic", "t", "--once", "--until-caught-up"], "exclude each other"),
        (["run", "hourly-counts", "--topic", "t", "--start", "noon"], "neither earliest, latest nor a time"),
        (["status", "nobody"], "There is no pipeline nobody"),
        (["reset", "nobody"], "There is no pipeline nobody"),
        (["reset", "nobody", "--to", "latest", "--to-batch", "1"], "exclude each other"),
    ],
)
def test_a_refusal_is_one_sentence(tablewire: Any, arguments: list[str], reason: str) -> None:
    done = tablewire(*arguments)
    assert done.returncode == 1
    assert reason in done.stderr
    assert done.stderr.startswith("tablewire: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    said = io.StringIO()
    console = Console(file=said, force_terminal=is_terminal, width=100)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    with importlib.import_module("gateway.cli.pipeline")._progress("orders") as show:
        show(BatchDone("orders", batch_id=3, offsets=40, rows=7, seconds=0.5, behind=60))
    assert ("orders #3" in said.getvalue()) is is_terminal
    assert ("40/100" in said.getvalue()) is is_terminal


def test_a_continuous_run_is_seen_stopped_and_moved(
    tablewire: Any,
    environment: dict[str, str],
    connection: psycopg.Connection[Any],
    new_topic: Any,
    produce: Any,
    tmp_path: Path,
) -> None:
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    topic, name, table = new_topic(), f"cli-{uuid4().hex[:8]}", f"counts_{uuid4().hex[:8]}"
    connection.execute(hourly_counts.DEFINITION.format(table=table).encode())
    produce(topic, [b"value"] * 5)

    def counted() -> int:
        ((found,),) = connection.execute(f"SELECT coalesce(sum(records), 0) FROM {table}".encode()).fetchall()
        return int(found)

    words = ["run", "own_jobs:make", "--topic", topic, "--set", f"table={table}", "--name", name, "--max-rows", "2"]
    spark = ["--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    tuned = ["--conf", f"spark.driver.extraJavaOptions={JVM_OPTIONS}"]
    log = (tmp_path / "log").open("w+")
    running = subprocess.Popen([*COMMAND, *words, *spark, *tuned], cwd=tmp_path, env=environment, stderr=log)
    try:
        wait_for(counted, wanted=5, timeout_s=100)
        produce(topic, [b"value"] * 2)
        wait_for(counted, wanted=7, timeout_s=60)
        refused = tablewire("reset", name)
        assert (refused.returncode, "has a runner at work" in refused.stderr) == (1, True)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
    log.seek(0)
    said = log.read()
    assert "stopping after the batch at work" in said
    assert said.count("batch committed") == 4
    assert f"pipeline={name}" in said

    status = json.loads(tablewire("status", name, "--json").stdout)
    assert (status["batch"], status["behind"], status["topics"], status["error"]) == (4, 0, [topic], None)
    assert [part["next_offset"] for part in status["partitions"]] == [7]
    assert name in tablewire("status").stdout

    assert f"goes on at offset 0 of partition 0 of topic {topic}" in tablewire("reset", name, "--to", "earliest").stdout
    assert json.loads(tablewire("status", name, "--json").stdout)["behind"] == 7
    assert "is as it was after batch 1" in tablewire("reset", name, "--to-batch", "1").stdout
    assert "has lost nothing" in tablewire("reset", name, "--past-deleted").stdout
    assert "starts over" in tablewire("reset", name).stdout
    assert json.loads(tablewire("status", name, "--json").stdout)["batch"] == 0
