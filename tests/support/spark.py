"""What Spark tests stand on: the jars of Spark's own Kafka connector, and what a session in a test needs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.java import QUICK_START

SPARK_VERSION = "4.2.0"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}"
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
"""What the connector needs for delegation tokens. Not every repository has it for every version of Spark; it has not
changed for long, so that an older one serves as well."""
TOKEN_VERSIONS = (SPARK_VERSION, "4.0.0")

JVM_OPTIONS = " ".join(QUICK_START)

# Small data on shared cores: few tasks, nothing that listens, no start-up that is never used.
TEST_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
}


class ConnectorMissing(Exception):
    """The connector cannot be had here; the message says why, for a skip."""


@contextmanager
def fetching_alone() -> Iterator[None]:
    """Spark fetches its packages into the user's cache when its JVM starts. On a machine that has none of them yet, two
    that do so at once find each other's files half written."""
    directory = _cache()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def connector_config() -> dict[str, str]:
    """Spark properties that bring Spark's own Kafka connector along."""
    return {
        "spark.jars.packages": CONNECTOR,
        "spark.jars.excludes": TOKENS,
        "spark.jars": str(_token_jar()),
    }


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tablewire" / "java" / "spark"


def _token_jar() -> Path:
    cache = _cache()
    name = TOKENS.partition(":")[2]
    for version in TOKEN_VERSIONS:
        if (jar := cache / f"{name}-{version}.jar").exists():
            return jar
    if shutil.which("mvn") is None:
        raise ConnectorMissing("`mvn` is not installed: the jars of Spark's Kafka connector come by Maven")
    said = ""
    for version in TOKEN_VERSIONS:
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={TOKENS}:{version}"]
        fetched = subprocess.run(
            [*command, f"-DoutputDirectory={cache}"], capture_output=True, text=True, check=False, cwd="/"
        )
        if fetched.returncode == 0:
            return cache / f"{name}-{version}.jar"
        said = fetched.stdout.strip()[-300:]
    raise ConnectorMissing(f"Maven could not fetch {TOKENS}: {said}")
