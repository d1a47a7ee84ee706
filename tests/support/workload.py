"""Producers that write numbered values without pause, and remember what was acknowledged. Judging is the auditor's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import confluent_kafka

DELIVERY_TIMEOUT_S = 90.0
PAUSE_EVERY, PAUSE_S = 10, 0.01
"""At most a thousand records a second: many commits, and time left for whoever has to start again."""


@dataclass
class History:
    """What one producer sent, and what it was told."""

    name: str
    topic: str
    is_idempotent: bool
    sent: dict[int, list[bytes]] = field(default_factory=dict)  # by partition, in order
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)  # by partition and offset
    acknowledged_count: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Workload:
    """One librdkafka producer per address given, each in a thread, all into the same partitions."""

    def __init__(self, bootstraps: list[str], topic: str, *, partitions: int, is_idempotent: bool = True) -> None:
        self.histories = [History(f"producer-{number}", topic, is_idempotent) for number in range(len(bootstraps))]
        self._partitions = partitions
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(bootstrap, history), daemon=True)
            for bootstrap, history in zip(bootstraps, self.histories, strict=True)
        ]

    @property
    def acknowledged_count(self) -> int:
        return sum(history.acknowledged_count for history in self.histories)

    def start(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def wait_for_more(self, count: int = 300, *, timeout_s: float = 60.0) -> None:
        """Return when each producer has had `count` more records acknowledged: it is past whatever happened."""
        wanted = [history.acknowledged_count + count for history in self.histories]
        deadline = time.monotonic() + timeout_s
        while any(history.acknowledged_count < one for history, one in zip(self.histories, wanted, strict=True)):
            assert time.monotonic() < deadline, (
                f"no {count} more records were acknowledged in {timeout_s} s: "
                f"{[(history.name, history.acknowledged_count, history.failures) for history in self.histories]}, "
                f"wanted {wanted}"
            )
            time.sleep(0.01)

    def stop(self, *, timeout_s: float = DELIVERY_TIMEOUT_S + 10) -> list[History]:
        """Send no more, wait until all that was sent is acknowledged, and return what happened."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(timeout_s)
            assert not thread.is_alive(), "a producer does not come to an end"
        return self.histories

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()

    def _write(self, bootstrap: str, history: History) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": history.name,
                "enable.idempotence": history.is_idempotent,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 100,
                "queue.buffering.max.messages": 3000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "socket.timeout.ms": 20_000,
                "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
                "log_level": 2,
            }
        )
        number = 0
        while not self._is_over.is_set():
            partition = number % self._partitions
            value = b"%s/%d" % (history.name.encode(), number)
            try:
                producer.produce(history.topic, value, partition=partition, on_delivery=_remember(history, value))
            except BufferError:
                producer.poll(0.05)
                continue
            history.sent.setdefault(partition, []).append(value)
            number += 1
            if number % PAUSE_EVERY == 0:
                producer.poll(0)
                time.sleep(PAUSE_S)
        if producer.flush(DELIVERY_TIMEOUT_S) > 0:
            history.failures["not delivered in time"] += 1


def _remember(history: History, value: bytes) -> Callable[[Any, Any], None]:
    def report(error: Any, message: Any) -> None:
        if error is not None:
            history.failures[str(error)] += 1
            return
        history.acknowledged_count += 1
        # An old duplicate (46) counts as delivered, but nobody can say where.
        if message.offset() is not None and message.offset() >= 0:
            history.acknowledged[message.partition(), message.offset()] = value

    return report
