"""Kafka Streams with exactly-once processing: each word counts once, though its process and the gateway are killed."""

from __future__ import annotations

import random
import subprocess
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.conftest import OTHER_BROKER
from tests.support import java
from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_for

SOURCE = Path(java.__file__).with_name("StreamsWordCount.java")
PARTITIONS = 2
LINES, WORDS_PER_LINE, VOCABULARY = 1_500, 4, 40
SETTINGS = {
    "TABLEWIRE_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
    "TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}


@pytest.fixture
def gateway(database_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    if OTHER_BROKER:
        pytest.skip("needs a gateway that can be killed: TABLEWIRE_TEST_BOOTSTRAP names another broker")
    with GatewayProcess(database_url, directory=tmp_path, settings=SETTINGS) as process:
        yield process


class Streams:
    """One process of the application; the context stops it cleanly."""

    def __init__(self, *arguments: str) -> None:
        command = ["java", *java.JVM_OPTIONS, *java.compiled(SOURCE, java.STREAMS), SOURCE.stem, *arguments]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()

    def last_lines(self) -> str:
        return "\n".join(self.lines[-20:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(0 if exc_type else 40)
        except subprocess.TimeoutExpired:
            self.kill9()
            if exc_type is None:
                raise
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.strip() for line in self.process.stdout)


def some_lines(seed: int) -> list[str]:
    words = [f"word-{number}" for number in range(VOCABULARY)]
    chance = random.Random(seed)
    return [" ".join(chance.choices(words, k=WORDS_PER_LINE)) for _ in range(LINES)]


def write(bootstrap: str, topic: str, lines: list[str], *, pause_s: float = 0.0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, line in enumerate(lines):
        producer.produce(topic, value=line, partition=number % PARTITIONS)
        producer.poll(pause_s)
    assert producer.flush(60) == 0


@contextmanager
def writing_slowly(bootstrap: str, topic: str, lines: list[str]) -> Iterator[None]:
    """So that the application, however fast it is, has something in a transaction when it is looked for."""
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(write, bootstrap, topic, lines, pause_s=0.01)
        yield
        written.result()


@pytest.mark.timeout(300)
def test_words_are_counted_once_though_the_application_and_the_gateway_are_killed(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    try:
        java.jar_directory(java.STREAMS)
    except java.JavaMissing as missing:
        pytest.skip(str(missing))
    name = uuid.uuid4().hex[:8]
    source, target = f"lines-{name}", f"counts-{name}"
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    for created in admin.create_topics([NewTopic(one, PARTITIONS) for one in (source, target)]).values():
        created.result(60)
    lines = some_lines(seed=1)
    expected = Counter(word for line in lines for word in line.split())
    third = LINES // 3
    write(gateway.bootstrap, source, lines[:third])

    with psycopg.connect(gateway.database_url, autocommit=True) as database:

        def counted() -> int:
            row = database.execute(
                "SELECT count(*) FROM kafka.committed_messages WHERE topic = %s", [target]
            ).fetchone()
            assert row is not None
            return int(row[0])

        def has_open_transactions() -> bool:
            return database.execute("SELECT FROM kafka.open_transactions").fetchone() is not None

        def application(number: int) -> Streams:
            return Streams(gateway.bootstrap, f"words-{name}", source, target, str(tmp_path / f"state-{number}"))

        with application(1) as first:
            wait_for(lambda: counted() > 0, wanted=True, explain=first.last_lines)
            with writing_slowly(gateway.bootstrap, source, lines[third : 2 * third]):
                wait_for(has_open_transactions, wanted=True, explain=first.last_lines)
                first.kill9()
        before = counted()
        with application(2) as second:
            wait_for(lambda: counted() > before, wanted=True, explain=second.last_lines)
            with writing_slowly(gateway.bootstrap, source, lines[2 * third :]):
                wait_for(has_open_transactions, wanted=True, explain=second.last_lines)
                gateway.kill9()
                gateway.restart()
            wait_for(lambda: counted() >= LINES * WORDS_PER_LINE, wanted=True, explain=second.last_lines)
        assert second.process.returncode == 0, second.last_lines()

        counts: dict[str, list[int]] = defaultdict(list)
        for key, value in database.execute(
            'SELECT key, value FROM kafka.committed_messages WHERE topic = %s ORDER BY partition, "offset"', [target]
        ):
            counts[key.decode()].append(int(value))
    assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}
