"""Payments: each is sent one to five times and booked once, whatever dies.

Several producers (plain, idempotent, transactional) send keyed payments through two gateways, to a topic with the
produce gate: each payment that they send is one record. A few copies are appended by SQL, which passes by the gate, so
that workers have to keep copies apart too. Four worker processes
book them into a table without any constraint, fail at random, hang past the ack timeout and are killed with kill -9;
gateways and PostgreSQL are killed in between. Each good payment is booked exactly once, with one receipt; each bad one
is in the dead-letter topic exactly once, with the attempts and the error it had; nothing is lost.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import psycopg
import pytest

from gateway.domain.deliveries import ACK_TIMEOUT
from gateway.worker.script import LOST_CONNECTION
from tests.faults.conftest import CrashingServer, crashing_server, start_gateway  # noqa: F401 - fixtures
from tests.support.gateway_process import REPOSITORY, GatewayProcess
from tests.support.handmade import HandmadeProducer

IS_FULL: Final = os.environ.get("TABLEWIRE_TEST_FULL") == "1"
PAYMENTS: Final = 20_000 if IS_FULL else 400
WORKER_KILLS: Final = 24 if IS_FULL else 3
DEADLINE_S: Final = 1500 if IS_FULL else 300
MAX_ATTEMPTS, FEW_ATTEMPTS = 8, 3
PARTITIONS: Final = 6
AHEAD: Final = 0.1
"""How much of what they have is sent before as much of all payments is booked."""
BATCHES: Final = (1, 1, 20, 100)
GROUP: Final = "bookkeeping"

TOPIC_SETTINGS: Final = {
    "idempotency_keys_enable": "true",
    "delivery_max_attempts": str(MAX_ATTEMPTS),
    "delivery_backoff_ms": "20",
    "delivery_backoff_max_ms": "500",
    "delivery_ack_timeout_ms": "1500",
    "delivery_ordering": "pass",
}
SETTINGS: Final = {
    "acks": "all",
    "linger.ms": 5,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "message.timeout.ms": 120_000,
    "log_level": 2,
}


class Bookkeeping:
    """What is sent, and to where."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        suffix = uuid.uuid4().hex[:8]
        self.topic = f"payments.{suffix}"
        self.kinds = {
            number: chance.choices(("good", "poisoned", "refused"), weights=(97, 2, 1))[0] for number in range(PAYMENTS)
        }
        bad = [number for number, kind in self.kinds.items() if kind != "good"]
        self.has_few_attempts = {number for number in bad if chance.random() < 0.3}
        self.amounts = {number: chance.randrange(1, 1000) for number in self.kinds}
        copies = [number for number in self.kinds for _ in range(chance.randint(1, 5))]
        chance.shuffle(copies)
        self.sent = len(copies)
        past_the_gate = len(copies) // 10
        self.shares = [copies[:past_the_gate], *(copies[past_the_gate + index :: 3] for index in range(3))]

    def message(self, number: int) -> dict[str, Any]:
        payment = {"number": number, "amount": self.amounts[number], "kind": self.kinds[number]}
        headers = [("idempotency-key", b"payment-%d" % number), ("tenant-id", b"t%d" % (number % 3))]
        if number in self.has_few_attempts:
            headers.append(("delivery-max-attempts", b"%d" % FEW_ATTEMPTS))
        return {"topic": self.topic, "value": json.dumps(payment).encode(), "headers": headers}

    def max_attempts(self, number: int) -> int:
        return FEW_ATTEMPTS if number in self.has_few_attempts else MAX_ATTEMPTS


class Sender(threading.Thread):
    """One producer; what is not acknowledged is sent again. It keeps pace with the bookings, so that what is killed
    is killed while it sends."""

    def __init__(
        self, books: Bookkeeping, bootstrap: str, database_url: str, numbers: Sequence[int], kind: str
    ) -> None:
        super().__init__(daemon=True, name=kind)
        self._books, self._servers, self._numbers, self._kind = books, bootstrap, numbers, kind
        self._database_url = database_url
        self._transactional_id = f"payments-{uuid.uuid4().hex[:8]}"
        self.acknowledged: Counter[int] = Counter()
        self.complaints: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._deadline = time.monotonic() + DEADLINE_S
        self._open: Any = None

    def run(self) -> None:
        try:
            size = 50
            for first in range(0, len(self._numbers), size):
                share = list(self._numbers[first : first + size])
                wait_for_bookings(self._database_url, PAYMENTS * (first / len(self._numbers) - AHEAD), self._deadline)
                (self._send_in_transaction if self._kind == "transactional" else self._send)(share)
        except BaseException as error:
            self.failure = error
            raise

    def _send(self, share: list[int]) -> None:
        producer = self._producer(self._kind == "idempotent")
        failed = share
        while failed:
            trying, failed = failed, []

            def report(error: Any, message: Any, number: int, failed: list[int]) -> None:
                if error is not None:
                    failed.append(number)
                else:
                    self.acknowledged[number] += 1

            for number in trying:
                producer.produce(
                    **self._books.message(number), on_delivery=lambda e, m, n=number, f=failed: report(e, m, n, f)
                )
            assert producer.flush(150) == 0

    def _send_in_transaction(self, share: list[int]) -> None:
        chance = random.Random(share[0])
        while True:
            try:
                if self._open is None:
                    self._open = self._producer(True, transactional_id=self._transactional_id)
                    self._open.init_transactions(60)
                producer = self._open
                if chance.random() < 0.3:  # what is aborted is seen by nobody
                    producer.begin_transaction()
                    for number in share:
                        producer.produce(**self._books.message(number))
                    producer.flush(60)
                    producer.abort_transaction(60)
                producer.begin_transaction()
                for number in share:
                    producer.produce(**self._books.message(number))
                producer.commit_transaction(60)
            except confluent_kafka.KafkaException as error:
                self.complaints[str(error)[:100]] += 1
                self._open = None
                time.sleep(0.2)  # its outcome may be unknown: then it is sent once more, as such a client does
                continue
            self.acknowledged.update(share)
            return

    def _producer(self, is_idempotent: bool, *, transactional_id: str | None = None) -> Any:
        named: dict[str, object] = {}
        if transactional_id is not None:
            named = {"transactional.id": transactional_id, "message.timeout.ms": 50_000}
        return confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "enable.idempotence": is_idempotent, **SETTINGS, **named}
        )


class SqlSender(Sender):
    """Appends by SQL: the produce gate is not asked."""

    def _send(self, share: list[int]) -> None:
        messages = [self._books.message(number) for number in share]
        names, values = zip(*(header for message in messages for header in message["headers"]), strict=True)
        columns = [
            [self._books.topic] * len(share),
            [number % PARTITIONS for number in share],
            [None] * len(share),
            [message["value"] for message in messages],
            [len(message["headers"]) for message in messages],
            list(names),
            list(values),
        ]
        while True:
            try:
                rows(
                    self._database_url,
                    "SELECT count(*) FROM kafka.append_records(%s, %s, %s, %s, %s, %s, %s)",
                    *columns,
                )
            except psycopg.OperationalError as error:  # it may have been committed: then it is appended once more
                self.complaints[str(error)[:100]] += 1
                time.sleep(0.2)
                continue
            self.acknowledged.update(share)
            return


class Crew:
    """Four worker processes, any of which may be killed and is replaced."""

    def __init__(self, books: Bookkeeping, database_url: str, directory: Path, seed: int) -> None:
        self._books, self._database_url, self._directory, self._seed = books, database_url, directory, seed
        self._started = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._processes = [self._start(batch) for batch in BATCHES]

    def kill_one(self, chance: random.Random) -> None:
        index = chance.randrange(len(BATCHES))
        assert self._processes[index].poll() is None, self.complaints()
        self._processes[index].kill()
        self._processes[index].wait()
        self._processes[index] = self._start(BATCHES[index])

    def require_alive(self) -> None:
        assert all(process.poll() is None for process in self._processes), self.complaints()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def complaints(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self._directory.glob("worker-*.err"))

    def handed(self) -> dict[int, list[tuple[int, int]]]:
        """By payment: attempt and offset of every time that a handler saw it."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for path in self._directory.glob("worker-*.log"):
            for line in path.read_text().splitlines():
                words = line.split(" ", 3)
                if len(words) == 4:
                    found[int(words[0])].append((int(words[1]), int(words[2])))
        return found

    def _start(self, batch: int) -> subprocess.Popen[bytes]:
        self._started += 1
        name = self._directory / f"worker-{self._started}"
        words = (self._database_url, self._books.topic, GROUP, self._seed + self._started, batch, f"{name}.log")
        with Path(f"{name}.err").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.payments_worker", *map(str, words)],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=errors,
                stderr=errors,
            )


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    made: list[Crew] = []

    def hire(books: Bookkeeping, database_url: str, seed: int) -> Crew:
        made.append(Crew(books, database_url, tmp_path, seed))
        return made[-1]

    yield hire
    for one in made:
        one.stop()


def rows(url: str, query: str, *parameters: object) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


def is_done(url: str, topic: str) -> bool:
    """Whether everything that was sent is settled."""
    try:
        found = rows(
            url,
            "SELECT count(*) FROM kafka.partitions p JOIN kafka.topics t USING (topic_id)"
            " LEFT JOIN kafka.consumer_offsets o ON o.topic_id = p.topic_id AND o.partition = p.partition"
            " AND o.group_id = %s WHERE t.name = %s AND o.committed_offset IS DISTINCT FROM p.next_offset",
            GROUP,
            topic,
        )
    except psycopg.OperationalError:
        return False
    return bool(found == [(0,)])


@pytest.mark.timeout(DEADLINE_S + 300)
def test_each_payment_is_booked_once_and_each_bad_one_is_a_dead_letter_once(
    crashing_server: CrashingServer,  # noqa: F811
    start_gateway: Callable[..., GatewayProcess],  # noqa: F811
    crew: Callable[..., Crew],
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, books, url = random.Random(seed), Bookkeeping(seed), crashing_server.url
    gateways = [start_gateway(url) for _ in range(2)]
    with HandmadeProducer(gateways[0].bootstrap) as connection:
        connection.create_topic(books.topic, partitions=PARTITIONS, **TOPIC_SETTINGS)
        connection.create_topic("receipts", partitions=2)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE payments (number integer, amount integer)")
    everywhere = ",".join(gateway.bootstrap for gateway in gateways)
    kinds = ("plain", "idempotent", "transactional")
    shares = zip(books.shares[1:], kinds, strict=True)
    senders = [Sender(books, everywhere, url, share, kind) for share, kind in shares]
    senders.append(SqlSender(books, everywhere, url, books.shares[0], "sql"))
    workers = crew(books, url, seed)
    workers.start()
    for sender in senders:
        sender.start()

    began = time.monotonic()
    deadline = began + DEADLINE_S
    wait_for_bookings(url, PAYMENTS // 10, deadline)
    for number in range(WORKER_KILLS):
        workers.kill_one(chance)
        wait_for_bookings(url, PAYMENTS * (number + 2) // (WORKER_KILLS + 4), deadline)
        if number in (WORKER_KILLS // 3, 2 * WORKER_KILLS // 3):
            crashing_server.kill9()
            crashing_server.start_again()
        if number in (WORKER_KILLS // 2, WORKER_KILLS - 1):
            gateway = gateways[number % 2]
            gateway.kill9()
            gateway.restart()
    for sender in senders:
        sender.join(max(1, deadline - time.monotonic()))
        assert sender.failure is None
        assert not sender.is_alive(), sender.complaints
    while not is_done(url, books.topic):
        workers.require_alive()
        assert time.monotonic() < deadline, rows(url, "SELECT * FROM kafka.deliveries_by_age LIMIT 20")
        time.sleep(0.1)
    print(f"{PAYMENTS} payments, {books.sent} records sent, settled after {time.monotonic() - began:.0f} s")
    workers.stop()
    for sender in senders:
        print(sender.name, sum(sender.acknowledged.values()), "acknowledged", dict(sender.complaints))
    audit_sent(url, books, senders)
    audit(url, books, workers.handed())


def wait_for_bookings(url: str, count: float, deadline: float) -> None:
    while count > 0:
        try:
            if rows(url, "SELECT count(*) FROM payments")[0][0] >= count:
                return
        except psycopg.OperationalError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def audit_sent(url: str, books: Bookkeeping, senders: Sequence[Sender]) -> None:
    acknowledged = sum((sender.acknowledged for sender in senders), Counter())
    assert set(acknowledged) == set(books.kinds), "every payment was sent"
    assert sum(acknowledged.values()) > PAYMENTS * 2, "and most of them more than once"
    stored = Counter(
        json.loads(value)["number"]
        for (value,) in rows(url, "SELECT value FROM kafka.committed_messages WHERE topic = %s", books.topic)
    )
    through_gate = Counter(number for share in books.shares[1:] for number in set(share))
    appended = Counter(books.shares[0])
    for number in books.kinds:
        first = 1 if number in through_gate else 0
        if number in appended:
            assert stored[number] >= first + appended[number], f"payment {number}"
        else:
            assert stored[number] == first, f"payment {number} was enqueued once, however often it was sent"
    keys = rows(
        url,
        "SELECT k.status, count(*) FROM kafka.idempotency_keys k JOIN kafka.topics t USING (topic_id)"
        " WHERE t.name = %s AND k.group_id = '' GROUP BY 1",
        books.topic,
    )
    assert keys == [("COMMITTED", len(through_gate))]


def audit(url: str, books: Bookkeeping, handed: dict[int, list[tuple[int, int]]]) -> None:
    good = {number for number, kind in books.kinds.items() if kind == "good"}
    booked = Counter(number for (number,) in rows(url, "SELECT number FROM payments"))
    assert [number for number, count in booked.items() if count > 1] == [], "booked twice"
    assert good - set(booked) == set(), "lost"
    assert set(booked) - good == set(), "booked though bad"
    amounts = dict(rows(url, "SELECT number, amount FROM payments"))
    assert amounts == {number: books.amounts[number] for number in good}
    receipts = Counter(
        int(value) for (value,) in rows(url, "SELECT value FROM kafka.committed_messages WHERE topic = 'receipts'")
    )
    assert receipts == booked, "one receipt for each booking"

    audit_dead_letters(url, books, good, handed)
    keys = rows(
        url,
        "SELECT k.status, count(*) FROM kafka.idempotency_keys k JOIN kafka.topics t USING (topic_id)"
        " WHERE t.name = %s AND k.group_id = %s GROUP BY 1 ORDER BY 1",
        books.topic,
        GROUP,
    )
    assert keys == [("COMMITTED", len(good)), ("FAILED", PAYMENTS - len(good))]
    assert rows(url, "SELECT count(*) FROM kafka.deliveries") == [(0,)], "nothing is left to be remembered"


def audit_dead_letters(url: str, books: Bookkeeping, good: set[int], handed: dict[int, list[tuple[int, int]]]) -> None:
    dead: dict[int, dict[str, str]] = {}
    for value, headers in rows(
        url, "SELECT value, headers FROM kafka.committed_messages WHERE topic = %s", f"dlq.{books.topic}"
    ):
        number = json.loads(value)["number"]
        assert number not in dead, f"payment {number} is a dead letter twice"
        dead[number] = {header["name"]: header["value"] for header in headers}
    assert set(dead) == set(books.kinds) - good
    interrupted = 0
    for number, told in dead.items():
        attempts, error = int(told["tablewire.dlq.attempts"]), told["tablewire.dlq.error"]
        offset = int(told["tablewire.dlq.offset"])
        assert told["tablewire.dlq.key"] == f"payment-{number}"
        assert told["tablewire.dlq.tenant"] == f"t{number % 3}"
        assert told["tablewire.dlq.topic"] == books.topic
        if books.kinds[number] == "poisoned":
            assert attempts == books.max_attempts(number)
            if error in (ACK_TIMEOUT, LOST_CONNECTION):
                interrupted += 1  # its last attempt was in the hands of a worker that died
            else:
                assert error == f"Poisoned: payment {number}"
                assert attempts == max(attempt for attempt, at in handed[number] if at == offset)
        elif error in (ACK_TIMEOUT, LOST_CONNECTION):
            assert attempts == books.max_attempts(number)
            interrupted += 1
        else:
            assert error == f"payment {number} is refused"
            assert attempts == max(attempt for attempt, at in handed[number] if at == offset)
    assert interrupted <= max(3, len(dead) // 5), "hardly any died in the hands of a dying worker"
    table = rows(
        url, "SELECT source_topic, count(*), count(DISTINCT idempotency_key) FROM kafka.dead_letters GROUP BY 1"
    )
    assert table == [(books.topic, len(dead), len(dead))]
