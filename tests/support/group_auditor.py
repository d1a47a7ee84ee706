"""Groups under load: workers that process numbered records, a producer that makes them, and what must hold in the end.

Each record is processed at least once, and whoever is assigned a partition goes on where the last commit was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

from tests.support import java
from tests.support.gateway_process import REPOSITORY
from tests.support.waiting import wait_for

# For gateways whose members speak the consumer protocol: a silent one is given up as soon as a classic one is.
CONSUMER_SETTINGS = {
    "TABLEWIRE_GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS": "1000",
    "TABLEWIRE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "6000",
    "TABLEWIRE_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": "100",
    "TABLEWIRE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
}

JAVA_SOURCE = Path(__file__).with_name("GroupWorker.java")


@dataclass(frozen=True)
class Event:
    """One line of a worker."""

    time_ns: int
    kind: str
    partition: int
    offset: int = -1
    value: str = ""


class Worker:
    """A process with members of a group; the context stops it cleanly.

    The assignor "consumer" stands for the consumer protocol (KIP-848), whose assignor is the coordinator's.
    """

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, *, assignor: str = "range") -> None:
        self.client = client
        self.events: list[Event] = []
        self.errors: deque[str] = deque(maxlen=200)
        if client == "java":
            names = {"range": "RangeAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}
            strategy = f"org.apache.kafka.clients.consumer.{names[assignor]}" if assignor in names else assignor
            command = ["java", *java.JVM_OPTIONS, *java.compiled(JAVA_SOURCE), "GroupWorker"]
            command += [bootstrap, group, topic, strategy]
        else:
            options = {
                "client": client,
                "bootstrap": bootstrap,
                "group": group,
                "topic": topic,
                "assignor": assignor,
            }
            command = [sys.executable, "-m", "tests.support.group_worker", json.dumps(options)]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def add(self, members: int = 1) -> None:
        self._write("+\n" * members)

    def remove(self, members: int = 1) -> None:
        self._write("-\n" * members)

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def count(self, kind: str) -> int:
        return sum(1 for event in list(self.events) if event.kind == kind)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            if exc_type is None:
                self.close()
            else:
                self.kill9()

    def _write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(line.rstrip() for line in self.process.stderr)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            parts = line.split(maxsplit=4)
            if line.endswith("\n") and len(parts) >= 3:
                time_ns, kind, partition, *rest = parts
                offset = int(rest[0]) if rest else -1
                value = rest[1].strip() if len(rest) > 1 else ""
                self.events.append(Event(int(time_ns), kind, int(partition), offset, value))


class Load:
    """Numbered records into a topic, a few hundred a second, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[str] = set()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 2})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(30) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(5):
                self._producer.produce(self._topic, value=str(number), on_delivery=self._delivered)
                number += 1
            self._producer.poll(0.02)
            time.sleep(0.01)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        value = message.value()
        assert value is not None
        self.acknowledged.add(value.decode())


def processed(*workers: Worker) -> set[str]:
    return {event.value for worker in workers for event in list(worker.events) if event.kind == "record"}


def finish(load: Load, *workers: Worker, timeout_s: float = 90.0) -> None:
    """Stop producing; every record must be processed."""
    load.stop()
    wait_for(lambda: len(load.acknowledged - processed(*workers)), 0, timeout_s=timeout_s)


def require_commits_kept(*workers: Worker) -> None:
    """The first record after an assignment is never one that was committed before it."""
    events = sorted((event for worker in workers for event in worker.events), key=lambda event: event.time_ns)
    commits: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event.kind == "committed":
            commits.setdefault(event.partition, []).append((event.time_ns, event.offset))
    assert commits, "nobody committed anything"
    for worker in workers:
        assigned: dict[int, int] = {}
        for event in worker.events:
            if event.kind == "assigned":
                assigned[event.partition] = event.time_ns
            elif event.kind == "record" and (since := assigned.pop(event.partition, None)) is not None:
                before = [offset for time_ns, offset in commits.get(event.partition, []) if time_ns < since]
                assert event.offset >= max(before, default=0), (
                    f"{worker.client} went back to {event.offset} of partition {event.partition},"
                    f" though {max(before)} was committed"
                )
