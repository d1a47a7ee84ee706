"""The session: where its database comes from, what it says when something is missing, and what it never shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.config import Settings
from gateway.pipeline import DatabaseUnavailable, JavaMissing, PipelineDatabase, database_of, read_topic, spark_session
from gateway.pipeline.session import java_version, require_java
from tests.support.gateway_process import REPOSITORY, free_port


def test_importing_the_pipeline_or_the_server_does_not_import_spark() -> None:
    program = "import gateway.pipeline, gateway.server.server, gateway.cli, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False).returncode == 0


def test_the_database_is_the_one_of_the_settings(pipeline_database_url: str) -> None:
    assert PipelineDatabase.from_settings(Settings(database_url=pipeline_database_url)).url == pipeline_database_url


def test_without_a_database_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="start it with `tablewire serve`"):
        spark_session(settings=Settings(data_dir=tmp_path))


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    url = f"postgresql://somebody:the-secret@127.0.0.1:{free_port()}/kafka"
    with pytest.raises(DatabaseUnavailable, match="cannot be reached") as refused:
        spark_session(settings=Settings(database_url=url))
    assert "the-secret" not in str(refused.value)
    assert "the-secret" not in repr(PipelineDatabase(url))


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("nothing of the kind", None),
    ],
)
def test_the_version_of_java_is_read_from_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: int | None
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() == version
    if version is not None and version < 17:
        with pytest.raises(JavaMissing, match=f"found Java {version}: install one, on Debian"):
            require_java()


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="Java 17 or newer and none was found: install one, on Debian"):
        require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing):
        require_java()


def test_a_session_knows_its_database_and_so_do_those_made_from_it(spark, pipeline_database_url: str) -> None:
    assert database_of(spark).url == pipeline_database_url
    assert database_of(spark.newSession()).url == pipeline_database_url


SECRETS_PROGRAM = """
import contextlib, io, json, sys, urllib.request
from gateway.pipeline import PipelineError, read_topic, spark_session
from gateway.pipeline.job import Job
from gateway.pipeline.runner import Runner
from gateway.pipeline.sinks import AppendToTable, PutState, output_id
from tests.support.spark import TEST_CONFIG

events, topic, name = sys.argv[1:]
config = {**TEST_CONFIG, "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
          "spark.eventLog.dir": f"file://{events}", "spark.eventLog.compress": "false"}
spark = spark_session("secrets", master="local[1]", config=config)
spark.sparkContext.setLogLevel("INFO")
rows = read_topic(spark, topic).where("value IS NOT NULL")
plans = io.StringIO()
with contextlib.redirect_stdout(plans):
    rows.explain("extended")
    rows.explain("formatted")
rows.collect()
rows.write.mode("overwrite").parquet(f"{events}/written")
stream = spark.readStream.format("tablewire").option("topics", topic).load()
query = (stream.writeStream.format("memory").queryName("seen").option("checkpointLocation", f"{events}/checkpoint")
         .trigger(availableNow=True).start())
query.awaitTermination()
plans.write(str(query.lastProgress))
with contextlib.redirect_stdout(plans):
    query.explain(True)

def copy(records, batch):
    states = records.selectExpr("value AS key", "value")
    return {"rows": records.select(output_id().alias("output_id")), "state": states}

def fail(records, batch):
    return records.select((records.offset / 0).cast("string").alias("output_id"))

sinks = {"rows": AppendToTable(name), "state": PutState(name)}
Runner(spark, Job("copy", [topic], copy, sinks, max_rows=1), name=name).run()
try:
    Runner(spark, Job("fail", [topic], fail, AppendToTable(name)), name=f"{name}-fails").run()
except PipelineError as failed:
    plans.write(str(failed))
base = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
ui = spark.sparkContext.uiWebUrl
shown = [f"{base}/environment", f"{base}/sql?details=true", f"{base}/jobs", f"{base}/stages", f"{ui}/environment/"]
pages = [urllib.request.urlopen(page).read().decode() for page in shown]
executions = [one["id"] for one in json.loads(pages[1])]
pages += [urllib.request.urlopen(f"{ui}/SQL/execution/?id={one}").read().decode() for one in executions]
found = [dict(spark.sparkContext.getConf().getAll()), spark.sql("SET").collect()]
count = spark.table("seen").count()
spark.stop()
print(json.dumps({"plans": plans.getvalue(), "pages": pages, "conf": str(found), "count": count}))
"""


@pytest.mark.timeout(300)  # a second JVM starts
def test_the_password_is_in_no_plan_log_event_checkpoint_or_page(
    spark, new_topic, produce, connection, pipeline_database_url: str, tmp_path: Path
) -> None:
    """A program of its own: what a session logs and shows begins with its start."""
    password = PipelineDatabase(pipeline_database_url).jdbc_properties["password"]
    topic, name = new_topic(), f"secrets_{uuid4().hex[:12]}"
    produce(topic, [b"one", b"two"])
    connection.execute(f"CREATE TABLE {name} (output_id text PRIMARY KEY)".encode())
    done = subprocess.run(
        [sys.executable, "-c", SECRETS_PROGRAM, str(tmp_path), topic, name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TABLEWIRE_DATABASE_URL": pipeline_database_url},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["count"] == 2
    assert "JDBCRelation" in seen["plans"]
    assert "job fail failed" in seen["plans"]
    assert "sparkProperties" in seen["pages"][0]
    assert "JdbcRelationProvider" in seen["pages"][1], "what a batch writes was looked at"
    assert connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchall() == [(2,)]
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"SparkListenerEnvironmentUpdate" in data for data in written.values()), "the event log was looked at"
    assert any("offsets" in str(path) for path in written), "the checkpoint was looked at"
    places = {**{str(path): data.decode(errors="replace") for path, data in written.items()}, "log": done.stderr}
    places |= {"plans": seen["plans"], "conf": seen["conf"], "pages": "".join(seen["pages"])}
    assert [place for place, text in places.items() if password in text] == []


def test_a_session_of_another_make_reads_the_database_of_the_settings(
    spark, new_topic, produce, pipeline_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.pipeline import session

    topic = new_topic()
    produce(topic, [b"one"])
    monkeypatch.setattr(session, "_databases", {})
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", pipeline_database_url)
    assert read_topic(spark, topic).count() == 1
