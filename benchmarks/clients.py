"""The clients, each measurement in a process of its own, so that what they use is theirs.

librdkafka through confluent-kafka, and Kafka's Java client through its ProducerPerformance tool. Its
ConsumerPerformance joins a group, so the Java consumer is a small program of ours that assigns instead.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Protocol

from benchmarks.workload import Shape
from tests.support.gateway_process import REPOSITORY
from tests.support.java import KAFKA_VERSION, PRODUCER_PERFORMANCE, jar_directory

__all__ = ["Client", "ClientFailed", "JavaClient", "Librdkafka", "Percentiles", "parse_producer_performance"]

TIMEOUT_S = 180.0
WARMUP_SHARE = 5
"""A fifth of what a JVM sends or reads warms up its compiler and is not timed."""


class ClientFailed(Exception):
    """A client ended with an error, or records are missing; the message ends with what it wrote."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50_ms: float
    p99_ms: float


class Client(Protocol):
    name: str
    version: str

    def produce(self, bootstrap: str, topic: str, shape: Shape, records: int) -> float:
        """Records per second."""

    def consume(self, bootstrap: str, topic: str, shape: Shape, records: int) -> float:
        """Records per second."""

    def latency(self, bootstrap: str, topic: str, shape: Shape, *, rate: int, seconds: int) -> Percentiles:
        """Of acks=all at `rate` records per second; a second more, before, is not counted."""


class Librdkafka:
    """confluent-kafka, by the program `benchmarks.librdkafka_client`."""

    name = "librdkafka"

    def __init__(self) -> None:
        import confluent_kafka

        self.version = f"{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.__version__})"

    def produce(self, bootstrap: str, topic: str, shape: Shape, records: int) -> float:
        done = self._run(bootstrap, topic, records, "produce", "--record-bytes", shape.record_bytes)
        return float(done["records"] / done["seconds"])

    def consume(self, bootstrap: str, topic: str, shape: Shape, records: int) -> float:
        done = self._run(bootstrap, topic, records, "consume", "--partitions", shape.partitions)
        return float(done["records"] / done["seconds"])

    def latency(self, bootstrap: str, topic: str, shape: Shape, *, rate: int, seconds: int) -> Percentiles:
        options = ["--record-bytes", shape.record_bytes, "--rate", rate, "--warmup", rate]
        done = self._run(bootstrap, topic, rate * (seconds + 1), "latency", *options)
        cuts = quantiles(done["latencies_ms"], n=100)
        return Percentiles(p50_ms=cuts[49], p99_ms=cuts[98])

    def _run(self, bootstrap: str, topic: str, records: int, command: str, *options: object) -> Any:
        arguments = ["--bootstrap", bootstrap, "--topic", topic, "--records", records, command, *options]
        return json.loads(_output([sys.executable, "-m", "benchmarks.librdkafka_client", *arguments]))


class JavaClient:
    """kafka-clients with its defaults: acks=all and idempotence among them."""

    name = "Java"

    def __init__(self, directory: Path) -> None:
        """`directory` takes the compiled consumer. Raises tests.support.java.JavaMissing."""
        jars = jar_directory()
        source = Path(__file__).parent / "java" / "AssignedConsumer.java"
        _output(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", directory, source])
        self.version = KAFKA_VERSION
        # The heap of Kafka's own scripts for these tools.
        self._java = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._java += ["-cp", f"{directory}:{jars}/*"]

    def produce(self, bootstrap: str, topic: str, shape: Shape, records: int) -> float:
        return self._perform(bootstrap, topic, shape, records, warmup=records // WARMUP_SHARE, rate=-1)[0]

    def consume(self, bootstrap: str, topic: str, shape: Shape, records: int) -> float:
        arguments = [bootstrap, topic, shape.partitions, records, records // WARMUP_SHARE]
        done = json.loads(_output([*self._java, "AssignedConsumer", *arguments]))
        return float(done["records"] / done["seconds"])

    def latency(self, bootstrap: str, topic: str, shape: Shape, *, rate: int, seconds: int) -> Percentiles:
        return self._perform(bootstrap, topic, shape, rate * (seconds + 1), warmup=rate, rate=rate)[1]

    def _perform(
        self, bootstrap: str, topic: str, shape: Shape, records: int, *, warmup: int, rate: int
    ) -> tuple[float, Percentiles]:
        options = ["--bootstrap-server", bootstrap, "--topic", topic, "--record-size", shape.record_bytes]
        options += ["--num-records", records, "--warmup-records", warmup, "--throughput", rate]
        return parse_producer_performance(_output([*self._java, PRODUCER_PERFORMANCE, *options]))


def parse_producer_performance(output: str) -> tuple[float, Percentiles]:
    """Records per second and latencies of the steady state, which the tool prints last."""
    summaries = re.findall(r"records sent, ([\d.]+) records/sec .*? (\d+) ms 50th, .*? (\d+) ms 99th,", output)
    if not summaries:
        raise ClientFailed(f"ProducerPerformance printed no summary:\n{output}")
    rate, p50, p99 = summaries[-1]
    return float(rate), Percentiles(float(p50), float(p99))


def _output(command: list[Any]) -> str:
    """What the program printed; ClientFailed if it did not end well or in time."""
    words = list(map(str, command))
    try:
        done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"{' '.join(words)} did not end in {TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise ClientFailed(f"{' '.join(words)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
