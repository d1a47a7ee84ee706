"""A Spark session that knows the gateway's database: drivers, time zone, redaction, and where the rows are.

The database's password is given to JDBC directly. It never becomes a Spark property, so it is neither in the UI's
environment page nor in event logs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Settings
from gateway.errors import PipelineError
from gateway.pipeline.database import PipelineDatabase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["POSTGRESQL_DRIVER", "JavaMissing", "database_of", "java_version", "spark_session"]

POSTGRESQL_DRIVER = "org.postgresql:postgresql:42.7.14"
LOWEST_JAVA = 17
LOOPBACK = "127.0.0.1"
LOCAL_IP = "SPARK_LOCAL_IP"
WORKERS_PYTHON = "PYSPARK_PYTHON"
PACKAGES = "spark.jars.packages"
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # On top of what Spark hides by itself (secret, password, token): addresses, which may carry credentials.
    "spark.redaction.regex": "(?i)secret|password|passwd|token|credential|access[.]?key|database.?url",
    "spark.sql.redaction.options.regex": "(?i)url|password|secret|token",
    "spark.sql.redaction.string.regex": r"(?i)password=[^&\s,\])]+|(?<=://)[^/@\s]+(?=@)",
}
LOCAL_DEFAULTS = {
    # Nobody but this machine has a reason to talk to a session that runs in one process.
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}

_databases: dict[str, PipelineDatabase] = {}
"""By application id: sessions made from another one, as foreachBatch does, share it."""


class JavaMissing(PipelineError):
    """Spark runs on Java 17 or newer."""


def spark_session(
    name: str = "tablewire",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> SparkSession:
    """A session on `master` (this machine by default) that reads the database of the gateway's own settings.

    `config` adds Spark properties or overrides ours; packages in it are added to the PostgreSQL driver.
    """
    database = PipelineDatabase.from_settings(settings)
    database.connect().close()
    require_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError(
            "PySpark is not installed: `pip install 'tablewire[pipeline]'` (`make install` does)."
        ) from None

    given = dict(config or {})
    master = master or given.pop("spark.master", None) or (None if _is_submitted() else "local[*]")
    defaults = {**DEFAULTS, **LOCAL_DEFAULTS} if (master or "").startswith("local") else DEFAULTS
    packages = ",".join(filter(None, [POSTGRESQL_DRIVER, given.pop(PACKAGES, None)]))
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**defaults, PACKAGES: packages, **given}.items():
        builder = builder.config(key, value)
    with _on_this_machine() if defaults is not DEFAULTS else nullcontext():
        spark = builder.getOrCreate()
    _databases[spark.sparkContext.applicationId] = database
    from gateway.pipeline.source import source_of

    spark.dataSource.register(source_of(database))
    return spark


@contextmanager
def _on_this_machine() -> Iterator[None]:
    """What the session takes from its environment when it starts: the address, which Spark otherwise asks for with a
    warning where a host name means loopback, and the Python of its workers, which must have our packages.
    """
    defaults = {LOCAL_IP: LOOPBACK, WORKERS_PYTHON: sys.executable}
    added = {name: value for name, value in defaults.items() if not os.environ.get(name)}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _is_submitted() -> bool:
    """Whether spark-submit started this program: then the master is the one on its command line."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def database_of(spark: SparkSession) -> PipelineDatabase:
    """The database of a session: the one spark_session() gave it, else that of the settings."""
    database = _databases.get(spark.sparkContext.applicationId)
    return database if database is not None else PipelineDatabase.from_settings()


def require_java() -> None:
    """JavaMissing says in one sentence what to install."""
    version = java_version()
    advice = (
        "install one, on Debian and Ubuntu with `apt-get install default-jre-headless` as root, "
        "on macOS with `brew install openjdk@17`, and set JAVA_HOME if it is not on the PATH."
    )
    if version is None:
        raise JavaMissing(f"Spark needs Java {LOWEST_JAVA} or newer and none was found: {advice}")
    if version < LOWEST_JAVA:
        raise JavaMissing(f"Spark needs Java {LOWEST_JAVA} or newer and found Java {version}: {advice}")


def java_version() -> int | None:
    """The major version of the Java that Spark would start; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
