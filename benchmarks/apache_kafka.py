"""Apache Kafka to compare with: one KRaft node on loopback, from the jars that the Java clients come from.

Its settings are Kafka's defaults, but for what a single node needs, for the pause before a group's first generation,
which is the gateway's too, and for how long it may be stopped.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.cpu import tree_cpu_seconds
from benchmarks.results import Run
from benchmarks.stack import REBALANCE_DELAY_MS, StackFailed
from tests.support.gateway_process import HOST, answers_api_versions, free_port
from tests.support.java import KAFKA_VERSION, jar_directory

__all__ = ["ApacheKafka"]

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 30.0
FLUSHED = {"flush.messages": "1"}
"""A topic whose log is flushed before each acknowledgement: the durability of a COMMIT."""

# Heap and collector of Kafka's own start script.
JVM_OPTIONS = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class ApacheKafka:
    """A broker while its context lasts; its files are under `directory`."""

    version = KAFKA_VERSION

    def __init__(self, directory: Path) -> None:
        """Raises tests.support.java.JavaMissing."""
        self._java = ["java", *JVM_OPTIONS, "-cp", f"{jar_directory()}/*"]
        self._directory = directory / "apache-kafka"
        self._port = free_port()
        self._topics = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        self._directory.mkdir()
        properties = self._write_properties()
        cluster_id = base64.urlsafe_b64encode(b"tablewire-" + uuid.uuid4().bytes[:6]).decode().rstrip("=")
        format_log = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(properties)]
        formatted = subprocess.run([*self._java, *format_log], capture_output=True, text=True, check=False)
        if formatted.returncode != 0:
            raise StackFailed(f"Apache Kafka's log could not be made: {(formatted.stdout + formatted.stderr)[-500:]}")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(properties)],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    def cpu_seconds(self) -> float:
        assert self._process is not None
        return tree_cpu_seconds(self._process.pid)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """It takes no CPU while somebody else is measured: a JVM goes on compiling, and its timers do not sleep."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)
        self._wait_ready()

    @contextmanager
    def topic(self, partitions: int, *, is_flushed: bool = False) -> Iterator[str]:
        """An empty topic, for as long as it is needed."""
        self._topics += 1
        name = f"bench-{self._topics}"
        config = FLUSHED if is_flushed else {}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        assert self._admin is not None
        _await(self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[name], f"create {name}")
        yield name
        _await(self._admin.delete_topics([name], request_timeout=REQUEST_TIMEOUT_S)[name], f"delete {name}")

    def run(self, action: Callable[[], float], *, records: int) -> Run:
        """What `action`, which returns records per second, achieves and costs the broker."""
        before = self.cpu_seconds()
        rate = action()
        return Run(rate, (self.cpu_seconds() - before) / records * 1e6, 0.0)

    def settle(self) -> None:
        """Let the kernel write what Kafka left to it, so that nobody pays for it later."""
        os.sync()

    @property
    def _log(self) -> Path:
        return self._directory / "kafka.log"

    def _write_properties(self) -> Path:
        controller = f"{HOST}:{free_port()}"
        values = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self._directory / "log",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": REBALANCE_DELAY_MS,
            # Its own controller does not miss it while it rests.
            "broker.session.timeout.ms": 600_000,
            # Files of a dropped topic go at once, not in the middle of what is measured a minute later.
            "log.segment.delete.delay.ms": 0,
        }
        path = self._directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()), encoding="utf-8")
        return path

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers_api_versions(HOST, self._port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StackFailed(f"Apache Kafka does not answer:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def _stop(self) -> None:
        assert self._process is not None
        self._admin = None  # or it would report that its broker has gone
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _await(request: Future[None], what: str) -> None:
    try:
        request.result(REQUEST_TIMEOUT_S)
    except (KafkaException, TimeoutError) as refused:
        raise StackFailed(f"Apache Kafka did not {what}: {refused}") from refused
