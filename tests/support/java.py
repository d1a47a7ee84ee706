"""Kafka's own Java client and console tools, from Maven, without changes.

The jars are resolved once into the user's cache. A JVM start costs most of a second, so the client tests
talk to one long-lived JVM (`JavaClient.java`, a JSON line in, a JSON line out) and only the console tools
start their own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

KAFKA_VERSION = "4.3.1"
CLASSIC_VERSION = "3.9.1"
"""The last line of clients that does not speak KIP-890."""
STREAMS = f"{KAFKA_VERSION}-streams"
"""Kafka Streams and what it needs, apart from the native library of a state store that the tests do not use."""
SLF4J_VERSION = "1.7.36"

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIGS = "kafka.admin.ConfigCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
BROKER_API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"

SOURCE = Path(__file__).with_name("JavaClient.java")

# Short-lived JVMs: the first compiler tier and the serial collector start fastest.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
JVM_OPTIONS = (
    *QUICK_START,
    "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tablewire</groupId><artifactId>test-clients</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""

DEPENDENCIES = (
    ("org.apache.kafka", "kafka-clients", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),  # holds ConfigCommand
    ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)


class JavaMissing(Exception):
    """Java, Maven or the jars cannot be had here; the message says which, for a skip."""


class JavaError(Exception):
    """The Java client answered with an exception; `kind` is its simple class name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


# What our own programs need beside the classic client.
CLASSIC_DEPENDENCIES = (
    ("org.apache.kafka", "kafka-clients", CLASSIC_VERSION),
    ("com.fasterxml.jackson.core", "jackson-databind", "2.21.2"),
    ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)


STREAMS_DEPENDENCIES = (
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)

JAR_SETS = {KAFKA_VERSION: DEPENDENCIES, CLASSIC_VERSION: CLASSIC_DEPENDENCIES, STREAMS: STREAMS_DEPENDENCIES}

DEPENDENCY = """\
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>org.rocksdb</groupId><artifactId>rocksdbjni</artifactId></exclusion></exclusions>
    </dependency>"""


def jar_directory(kafka_version: str = KAFKA_VERSION) -> Path:
    """Kafka's jars in the user's cache, fetched on first use."""
    for command in ("java", "javac", "mvn"):
        if shutil.which(command) is None:
            raise JavaMissing(f"`{command}` is not installed: the Java client tests need a JDK 17 and Maven")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "tablewire" / "java" / kafka_version
    complete = directory / ".complete"
    if not complete.exists():
        directory.mkdir(parents=True, exist_ok=True)
        dependencies = "\n".join(DEPENDENCY.format(*one) for one in JAR_SETS[kafka_version])
        (directory / "pom.xml").write_text(POM.format(dependencies=dependencies))
        fetched = subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "dependency:copy-dependencies",
                "-DoutputDirectory=jars",
                "-DincludeScope=runtime",
            ],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode != 0:
            raise JavaMissing(f"Maven could not fetch Kafka {kafka_version}: {fetched.stdout.strip()[-500:]}")
        complete.touch()
    return directory / "jars"


def compiled(source: Path, kafka_version: str = KAFKA_VERSION) -> list[str]:
    """The class path of a program of ours, compiled into the cache once per version of its source."""
    jars = jar_directory(kafka_version)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = jars.parent / f"classes-{digest}"
    if not (classes / ".complete").exists():
        classes.mkdir(exist_ok=True)
        subprocess.run(
            ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(source)],
            check=True,
            capture_output=True,
            text=True,
        )
        (classes / ".complete").touch()
    return ["-cp", f"{classes}{os.pathsep}{jars}/*"]


def run_tool(
    tool: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 120.0
) -> subprocess.CompletedProcess[bytes]:
    """Run one of Kafka's console tools; the caller judges its exit code and output."""
    return subprocess.run(
        ["java", *JVM_OPTIONS, "-cp", f"{jar_directory()}/*", tool, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


class JavaClient:
    """The long-lived JVM: `call` sends one command and returns its result or raises `JavaError`."""

    def __init__(self, source: Path = SOURCE, kafka_version: str = KAFKA_VERSION) -> None:
        self._process = subprocess.Popen(
            ["java", *JVM_OPTIONS, *compiled(source, kafka_version), source.stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._stderr: list[str] = []
        # Read all the time: a full pipe would stop the JVM.
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()

    def call(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the Java client ended:\n" + "".join(self._stderr[-40:]))
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer.get("message") or "")
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        self._stderr.extend(self._process.stderr)


def encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decode(data: str | None) -> bytes | None:
    return None if data is None else base64.b64decode(data)
