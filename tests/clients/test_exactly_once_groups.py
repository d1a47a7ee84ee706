"""Consume, transform, produce: workers of one group, or the gateway, are killed inside transactions.

Yet each record comes out once and in order. What Kafka's own tests do with TransactionalMessageCopier and hard bounces.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.conftest import OTHER_BROKER
from tests.support import java
from tests.support.gateway_process import REPOSITORY, GatewayProcess
from tests.support.waiting import wait_for

PARTITIONS, RECORDS, KILLS = 4, 2_000, 3
WORKERS = {"confluent-kafka": 3, "java": 2}
JAVA_SOURCE = Path(java.__file__).with_name("ExactlyOnceWorker.java")

# A dead member is given up soon, so that a test with several of them stays short.
SETTINGS = {
    "TABLEWIRE_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
    "TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "TABLEWIRE_GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS": "500",
    "TABLEWIRE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "3000",
    "TABLEWIRE_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": "100",
    "TABLEWIRE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "300",
}


@pytest.fixture(scope="module")
def hasty_gateway(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    if OTHER_BROKER:
        pytest.skip("needs a gateway with short sessions: TABLEWIRE_TEST_BOOTSTRAP names another broker")
    directory = tmp_path_factory.mktemp("hasty-gateway")
    with GatewayProcess(module_database_url, directory=directory, settings=SETTINGS) as process:
        yield process


class Worker:
    """A process that copies from one topic to another and tells news; the context stops it cleanly."""

    def __init__(self, news: threading.Condition, client: str, *arguments: str) -> None:
        if client == "java":
            command = ["java", *java.JVM_OPTIONS, *java.compiled(JAVA_SOURCE), "ExactlyOnceWorker"]
        else:
            command = [sys.executable, "-m", "tests.support.exactly_once_worker"]
        self._command = [*command, *arguments]
        self._news = news
        self.lines: list[str] = []
        self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def restart(self) -> None:
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(0 if exc_type else 20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            if exc_type is None:
                raise
        self._reader.join()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.strip())
                self._news.notify_all()


def opened(workers: list[Worker]) -> list[int]:
    """How many transactions each has written records of."""
    return [worker.lines.count("open") for worker in workers]


def next_to_open(news: threading.Condition, workers: list[Worker], explain: Callable[[], str]) -> Worker:
    """Whoever writes the records of a transaction first from now on, before their offsets.

    Not one chosen beforehand: the others may copy all that is left while it starts.
    """
    before = opened(workers)
    with news:
        found = news.wait_for(lambda: opened(workers) != before, 60)
        after = opened(workers)
    assert found, explain()
    return next(worker for worker, old, new in zip(workers, before, after, strict=True) if old != new)


def fill(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(RECORDS):
        producer.produce(topic, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def read(bootstrap: str, topic: str, isolation: str) -> dict[int, list[int]]:
    """All that a consumer gets, by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{topic}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None, f"no end within 60 s, after {found}"
        if message.error() is None:
            found[message.partition()].append(int(message.value() or b""))
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    consumer.close()
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", ["workers", "the gateway"])
@pytest.mark.parametrize("client", ["confluent-kafka", "java"])
def test_each_record_comes_out_once_and_in_order(client: str, killed: str, hasty_gateway: GatewayProcess) -> None:
    """confluent-kafka speaks the classic protocol, Java KIP-890's."""
    if client == "java":
        try:
            java.jar_directory()
        except java.JavaMissing as missing:
            pytest.skip(str(missing))
    bootstrap = hasty_gateway.bootstrap
    name = uuid.uuid4().hex[:12]
    source, target, group = f"source-{name}", f"target-{name}", f"group-{name}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(one, PARTITIONS) for one in (source, target)]).values():
        created.result(60)
    fill(bootstrap, source)
    with ExitStack() as stack, psycopg.connect(hasty_gateway.database_url, autocommit=True) as database:

        def done() -> int:
            row = database.execute(
                "SELECT count(*) FROM kafka.committed_messages WHERE topic = %s", [target]
            ).fetchone()
            assert row is not None
            return int(row[0])

        def last_words() -> str:
            said = [f"{number}: {worker.process.poll()} {worker.lines[-12:]}" for number, worker in enumerate(workers)]
            return "\n".join([f"{done()} of {RECORDS} records are copied", *said, hasty_gateway.log_text()[-3000:]])

        news = threading.Condition()
        workers = [
            stack.enter_context(Worker(news, client, bootstrap, group, source, target, f"{name}-{number}"))
            for number in range(WORKERS[client])
        ]
        for kill in range(KILLS):
            wait_for(lambda kill=kill: done() > RECORDS * kill // 5, wanted=True, timeout_s=60, explain=last_words)
            victim = next_to_open(news, workers, last_words)
            if killed == "workers":
                victim.kill()
                victim.restart()
            else:
                hasty_gateway.kill9()
                hasty_gateway.restart()
        wait_for(lambda: done() >= RECORDS, wanted=True, timeout_s=90, explain=last_words)
    lost = [line for worker in workers for line in worker.lines if line.startswith("lost")]
    assert not lost, "a rebalance or a new gateway costs a transaction, not the producer"
    in_order = {index: list(range(index, RECORDS, PARTITIONS)) for index in range(PARTITIONS)}
    assert read(bootstrap, target, "read_committed") == in_order
    if killed == "workers":
        uncommitted = read(bootstrap, target, "read_uncommitted")
        assert sum(map(len, uncommitted.values())) > RECORDS, "no worker died inside a transaction"
    with psycopg.connect(hasty_gateway.database_url) as database:
        rows = database.execute(
            'SELECT partition, value FROM kafka.committed_messages WHERE topic = %s ORDER BY partition, "offset"',
            [target],
        ).fetchall()
        offsets = database.execute(
            "SELECT sum(committed_offset)::bigint FROM kafka.consumer_lag WHERE group_id = %s", [group]
        ).fetchone()
    assert [(partition, int(value)) for partition, value in rows] == [
        (partition, value) for partition, values in in_order.items() for value in values
    ]
    assert offsets == (RECORDS,)
