"""The clients, each measurement in a process of its own, so that what they use is theirs.

librdkafka through confluent-kafka, and Kafka's Java client through ProducerPerformance and ConsumerPerformance.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from statistics import median, quantiles
from threading import Timer
from typing import Any, NamedTuple, Protocol

from benchmarks.cpu import CpuHistory
from benchmarks.turns import Turns
from benchmarks.workload import Shape
from tests.support.gateway_process import REPOSITORY
from tests.support.java import CONSUMER_PERFORMANCE, KAFKA_VERSION, PRODUCER_PERFORMANCE, jar_directory

__all__ = [
    "Client",
    "ClientFailed",
    "Guarantee",
    "Isolation",
    "JavaClient",
    "Librdkafka",
    "Moved",
    "Percentiles",
    "Performed",
    "Prepared",
    "fetch_range",
    "parse_consumer_performance",
    "parse_producer_performance",
]

TURNS_SOURCE = Path(__file__).with_name("TurnsClient.java")
TIMEOUT_S = 180.0
TRANSACTION_MS = 100
WARMUP_SHARE = 5
"""A fifth of what a JVM sends or reads warms up its compiler and is not timed."""


class ClientFailed(Exception):
    """A client ended with an error, or records are missing; the message ends with what it wrote."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Percentiles:
        """p99 of a few times is the longest of them."""
        return cls(median(times_ms), quantiles(times_ms, n=100, method="inclusive")[98])


class Moved(NamedTuple):
    """What a client moved that sends or counts whole batches only."""

    records_per_s: float
    records: int


class Performed(NamedTuple):
    """What ProducerPerformance measured after its warm-up."""

    records_per_s: float
    latency: Percentiles
    cpu_s_per_million: float
    """Of the client itself, its compiler included."""


class Guarantee(Enum):
    """What the producer asks for, all of them with acks=all."""

    NONE = "none"
    """Only of `Prepared`; what the others do without it, they do in turns."""
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"
    """In transactions of 100 ms, each committed before the next begins."""


class Isolation(Enum):
    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


class Client(Protocol):
    name: str
    version: str

    def produce(
        self, bootstrap: str, topic: str, shape: Shape, records: int, guarantee: Guarantee = Guarantee.IDEMPOTENT
    ) -> float:
        """Records per second."""

    def turns(self, bootstrap: str, topics: Mapping[str, str], shape: Shape, records: int) -> Turns:
        """Producers with idempotence `off` and `on`, each for its topic, and so many records to a turn."""

    def consume(
        self, bootstrap: str, topic: str, shape: Shape, records: int, isolation: Isolation | None = None
    ) -> float:
        """Records per second; the client's own default where no isolation is asked for."""

    def latency(self, bootstrap: str, topic: str, shape: Shape, *, rate: int, seconds: int) -> Percentiles:
        """Of acks=all at `rate` records per second; a second more, before, is not counted."""


class Librdkafka:
    """confluent-kafka, by the program `benchmarks.librdkafka_client`."""

    name = "librdkafka"

    def __init__(self) -> None:
        import confluent_kafka

        self.version = f"{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.__version__})"

    def produce(
        self, bootstrap: str, topic: str, shape: Shape, records: int, guarantee: Guarantee = Guarantee.IDEMPOTENT
    ) -> float:
        assert guarantee is not Guarantee.NONE
        options: list[object] = ["--record-bytes", shape.record_bytes]
        if guarantee is Guarantee.TRANSACTIONAL:
            options += ["--transaction-ms", TRANSACTION_MS]
        return self._produce(bootstrap, topic, records, *options)

    def turns(self, bootstrap: str, topics: Mapping[str, str], shape: Shape, records: int) -> Turns:
        return _turns(self.name, bootstrap, topics, shape, records)

    def produce_with_keys(self, bootstrap: str, topic: str, shape: Shape, records: int) -> float:
        """Records per second, each record with a business key of its own."""
        return self._produce(bootstrap, topic, records, "--record-bytes", shape.record_bytes, "--with-keys")

    def _produce(self, bootstrap: str, topic: str, records: int, *options: object) -> float:
        done = self._run(bootstrap, topic, records, "produce", *options)
        return float(done["records"] / done["seconds"])

    def consume(
        self, bootstrap: str, topic: str, shape: Shape, records: int, isolation: Isolation | None = None
    ) -> float:
        options: list[object] = ["--partitions", shape.partitions]
        if isolation is not None:
            options += ["--isolation", isolation.value]
        done = self._run(bootstrap, topic, records, "consume", *options)
        return float(done["records"] / done["seconds"])

    def latency(self, bootstrap: str, topic: str, shape: Shape, *, rate: int, seconds: int) -> Percentiles:
        options = ["--record-bytes", shape.record_bytes, "--rate", rate, "--warmup", rate]
        done = self._run(bootstrap, topic, rate * (seconds + 1), "latency", *options)
        return Percentiles.of(done["latencies_ms"])

    def commit_latency(
        self, bootstrap: str, topic: str, shape: Shape, records: int, *, transactions: int, is_flushed_first: bool
    ) -> Percentiles:
        """Of commit_transaction() of transactions of so many records, which are sent well before or within it."""
        options = ["--record-bytes", shape.record_bytes, "--partitions", shape.partitions]
        options += ["--transactions", transactions, *(["--flush-first"] if is_flushed_first else [])]
        return Percentiles.of(self._run(bootstrap, topic, records, "commit", *options)["latencies_ms"])

    def _run(self, bootstrap: str, topic: str, records: int, command: str, *options: object) -> Any:
        arguments = ["--bootstrap", bootstrap, "--topic", topic, "--records", records, command, *options]
        return json.loads(_output([sys.executable, "-m", "benchmarks.librdkafka_client", *arguments]))


class Prepared:
    """Batches made before the clock starts, by the program `benchmarks.prepared_client`; produces only."""

    name = "prepared"

    def turns(self, bootstrap: str, topics: Mapping[str, str], shape: Shape, records: int) -> Turns:
        """As clients take them; a turn is of whole requests, so of a few records more."""
        return _turns(self.name, bootstrap, topics, shape, records)

    def produce(
        self, bootstrap: str, topic: str, shape: Shape, records: int, guarantee: Guarantee, *, producers: int = 1
    ) -> Moved:
        options: list[object] = ["--bootstrap", bootstrap, "--topic", topic, "--records", records]
        options += ["--record-bytes", shape.record_bytes, "--partitions", shape.partitions, "--producers", producers]
        if guarantee is Guarantee.NONE:
            options.append("--not-idempotent")
        done = json.loads(_output([sys.executable, "-m", "benchmarks.prepared_client", *options]))
        return Moved(done["timed"] / done["seconds"], done["records"])


def fetch_range(bootstrap: str, topic: str, shape: Shape, offsets: range) -> Moved:
    """Records of these offsets in each partition, by the program `benchmarks.fetch_client`."""
    options: list[object] = ["--bootstrap", bootstrap, "--topic", topic, "--partitions", shape.partitions]
    options += ["--start", offsets.start, "--end", offsets.stop]
    done = json.loads(_output([sys.executable, "-m", "benchmarks.fetch_client", *options]))
    return Moved(done["records"] / done["seconds"], done["records"])


class JavaClient:
    """kafka-clients with its defaults: acks=all and idempotence among them."""

    name = "Java"

    def __init__(self) -> None:
        """Raises tests.support.java.JavaMissing."""
        self.version = KAFKA_VERSION
        # The heap of Kafka's own scripts for these tools.
        self._java = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._java += ["-cp", f"{jar_directory()}/*"]

    def produce(
        self, bootstrap: str, topic: str, shape: Shape, records: int, guarantee: Guarantee = Guarantee.IDEMPOTENT
    ) -> float:
        return self.perform(bootstrap, topic, shape, records, guarantee).records_per_s

    def perform(
        self, bootstrap: str, topic: str, shape: Shape, records: int, guarantee: Guarantee = Guarantee.IDEMPOTENT
    ) -> Performed:
        """The same, with what it took the client."""
        assert guarantee is not Guarantee.NONE
        options: list[object] = []
        if guarantee is Guarantee.TRANSACTIONAL:
            options = ["--transactional-id", topic, "--transaction-duration-ms", TRANSACTION_MS]
        return self._perform(bootstrap, topic, shape, records, records // WARMUP_SHARE, *options)

    def turns(self, bootstrap: str, topics: Mapping[str, str], shape: Shape, records: int) -> Turns:
        return Turns([*self._java, TURNS_SOURCE, bootstrap, topics["off"], topics["on"], records, shape.record_bytes])

    def consume(
        self, bootstrap: str, topic: str, shape: Shape, records: int, isolation: Isolation | None = None
    ) -> float:
        options: list[object] = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", records]
        options += ["--group", f"bench-{uuid.uuid4()}", "--hide-header"]
        options += ["--show-detailed-stats", "--reporting-interval", 5]
        if isolation is not None:
            options += ["--command-property", f"isolation.level={isolation.value}"]
        output = _output([*self._java, CONSUMER_PERFORMANCE, *options])
        return parse_consumer_performance(output, warmup=records // WARMUP_SHARE)

    def latency(self, bootstrap: str, topic: str, shape: Shape, *, rate: int, seconds: int) -> Percentiles:
        return self._perform(bootstrap, topic, shape, rate * (seconds + 1), rate, rate=rate).latency

    def _perform(
        self, bootstrap: str, topic: str, shape: Shape, records: int, warmup: int, *more: object, rate: int = -1
    ) -> Performed:
        options = ["--bootstrap-server", bootstrap, "--topic", topic, "--record-size", shape.record_bytes]
        options += ["--num-records", records, "--warmup-records", warmup, "--throughput", rate, *more]
        output, history, ended = _watched_output([*self._java, PRODUCER_PERFORMANCE, *options])
        records_per_s, latency = parse_producer_performance(output)
        timed = records - warmup
        cpu_seconds = history.seconds(since=ended - timed / records_per_s, until=ended)
        return Performed(records_per_s, latency, cpu_seconds / timed * 1e6)


def parse_producer_performance(output: str) -> tuple[float, Percentiles]:
    """Records per second and latencies of the steady state, which the tool prints last."""
    summaries = re.findall(r"records sent, ([\d.]+) records/sec .*? (\d+) ms 50th, .*? (\d+) ms 99th,", output)
    if not summaries:
        raise ClientFailed(f"ProducerPerformance printed no summary:\n{output}")
    rate, p50, p99 = summaries[-1]
    return float(rate), Percentiles(float(p50), float(p99))


def parse_consumer_performance(output: str, *, warmup: int) -> float:
    """Records per second from the first report after `warmup` records to the last report.

    The tool has no warm-up of its own. Its detailed reports (time, thread, MB, MB/s, records so far, …) come
    every few milliseconds, each at the first record of a poll, so that what lies between two of them is exact.
    """
    if "Exiting before consuming" in output:
        raise ClientFailed(f"ConsumerPerformance did not get all records:\n{output[-2000:]}")
    reports = [
        (datetime.strptime(moment, "%Y-%m-%d %H:%M:%S:%f"), int(records))  # noqa: DTZ007 - only differences are used
        for moment, records in re.findall(r"^([\d-]+ [\d:]+), 0, [\d.]+, [\d.]+, (\d+), ", output, re.MULTILINE)
        if int(records) >= warmup
    ]
    if len(reports) < 2:
        raise ClientFailed(f"ConsumerPerformance reported too little:\n{output[-2000:]}")
    (first, before), (last, after) = reports[0], reports[-1]
    return (after - before) / (last - first).total_seconds()


def _turns(client: str, bootstrap: str, topics: Mapping[str, str], shape: Shape, records: int) -> Turns:
    options: list[object] = ["--bootstrap", bootstrap, "--off", topics["off"], "--on", topics["on"]]
    options += ["--records", records, "--record-bytes", shape.record_bytes, "--partitions", shape.partitions]
    return Turns([sys.executable, "-m", "benchmarks.turns_client", client, *options])


def _output(command: list[Any]) -> str:
    """What the program printed; ClientFailed if it did not end well or in time."""
    words = list(map(str, command))
    try:
        done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise _too_slow(words) from None
    if done.returncode != 0:
        raise _failed(words, done.returncode, done.stdout + done.stderr)
    return done.stdout


def _watched_output(command: list[Any]) -> tuple[str, CpuHistory, float]:
    """The same, its CPU time as time went by, and when its last line came."""
    words = list(map(str, command))
    printed: list[str] = []
    ended = 0.0
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
        assert client.stdout is not None
        timer = Timer(TIMEOUT_S, client.kill)
        timer.start()
        with CpuHistory(client.pid) as history:
            for line in client.stdout:
                printed.append(line)
                ended = time.monotonic()
        status = client.wait()
        is_late = not timer.is_alive()
        timer.cancel()
    if is_late:
        raise _too_slow(words)
    if status != 0:
        raise _failed(words, status, "".join(printed))
    return "".join(printed), history, ended


def _too_slow(words: list[str]) -> ClientFailed:
    return ClientFailed(f"{' '.join(words)} did not end in {TIMEOUT_S:.0f} s")


def _failed(words: list[str], status: int, printed: str) -> ClientFailed:
    return ClientFailed(f"{' '.join(words)} ended with {status}:\n{printed[-2000:]}")
