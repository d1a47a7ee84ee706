"""A bank: transactional clients of both generations move amounts between accounts while gateways and PostgreSQL die.

Each transfer is one transaction: a record in the partition of each of its two accounts. At every moment psql sees
whole transfers only; in the end consumers through every gateway, kafka.committed_messages and what the clients were
told agree. Nothing is lost, doubled or torn.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg
import pytest

from gateway import failpoints
from tests.faults.conftest import CrashingServer
from tests.support import java
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import stored_rows
from tests.support.handmade_transactions import (
    CLASSIC,
    KIP_890,
    NONE,
    Generation,
    Producer,
    TransactionConnection,
    transactional_batch,
)
from tests.support.transactional_clients import SOURCE, AioKafka, Confluent, Failed, Fenced, Java
from tests.support.waiting import wait_for

StartGateway = Callable[..., GatewayProcess]
FAILPOINT = "TABLEWIRE_TEST_FAILPOINT"
PARTITIONS = (4, 3, 3)
ACCOUNTS = 30
PROGRESS_S = 120.0
POINTS = (failpoints.END_BEFORE, failpoints.END_WRITTEN, failpoints.END_COMMITTED, failpoints.PRODUCE_COMMITTED)


@dataclass
class Bank:
    """Where the accounts are."""

    topics: list[str]

    def place_of(self, account: int) -> tuple[str, int]:
        number = account % sum(PARTITIONS)
        for topic, partitions in zip(self.topics, PARTITIONS, strict=True):
            if number < partitions:
                return topic, number
            number -= partitions
        raise AssertionError

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(topic, n) for topic, count in zip(self.topics, PARTITIONS, strict=True) for n in range(count)]


@dataclass
class Teller:
    """One client with what it was told. `unknown`: it was told nothing that it could rely on."""

    name: str
    bank: Bank
    client: Confluent | AioKafka | Java
    committed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    complaints: Counter[str] = field(default_factory=Counter)

    def run(self, is_over: threading.Event, seed: int) -> None:
        chance = random.Random(seed)
        producer: Any = None
        number = 0
        while not is_over.is_set():
            try:
                if producer is None:
                    producer = self.client.open(self.name, timeout_ms=20_000)
                number += 1
                self.transfer(producer, number, chance)
            except (Fenced, Failed) as failure:
                # What the client library cannot get over, a new instance does: it aborts or finds what there was.
                self.complaints[str(failure)[:150]] += 1
                if number not in self.committed and number not in self.aborted and number not in self.unknown:
                    self.aborted.append(number)  # the commit was never asked for
                producer = _discard(producer)
        _discard(producer)

    def transfer(self, producer: Any, number: int, chance: random.Random) -> None:
        accounts = chance.sample(range(ACCOUNTS), 2)
        amount = chance.randrange(1, 100)
        producer.begin()
        for account, change in zip(accounts, (-amount, amount), strict=True):
            topic, partition = self.bank.place_of(account)
            transfer = {"teller": self.name, "number": number, "account": account, "change": change}
            producer.send(topic, json.dumps(transfer), partition=partition)
        if chance.random() < 0.2:
            producer.abort()
            self.aborted.append(number)
            return
        try:
            producer.commit()
        except (Fenced, Failed):
            self.unknown.append(number)
            raise
        self.committed.append(number)


def _discard(producer: Any) -> None:
    if producer is not None:
        with suppress(Fenced, Failed, RuntimeError):
            producer.close()


class Watch:
    """Looks at the bank through psql all the time: whole transfers only, and the sum of all changes is 0."""

    def __init__(self, database_url: str, bank: Bank) -> None:
        self.looks = 0
        self.torn: list[Any] = []
        self._database_url = database_url
        self._bank = bank
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)

    def _look(self) -> None:
        while not self._is_over.is_set():
            try:
                with psycopg.connect(self._database_url, autocommit=True, connect_timeout=2) as connection:
                    while not self._is_over.wait(0.2):
                        self.torn += torn_transfers(connection, self._bank)
                        self.looks += 1
            except psycopg.OperationalError:
                time.sleep(0.1)  # PostgreSQL is being killed


def torn_transfers(connection: psycopg.Connection[Any], bank: Bank) -> list[Any]:
    """Transfers of which psql sees a part, though nothing older that is open holds the other part back."""
    return connection.execute(
        """
        WITH seen AS (
            SELECT v->>'teller' AS teller, v->>'number' AS number, (v->>'change')::int AS change
              FROM (SELECT convert_from(value, 'UTF8')::jsonb AS v FROM kafka.committed_messages
                     WHERE topic = ANY (%(topics)s)) AS committed
        ), held AS (
            SELECT v->>'teller' AS teller, v->>'number' AS number
              FROM (SELECT convert_from(m.value, 'UTF8')::jsonb AS v
                      FROM kafka.topics t JOIN kafka.partitions p USING (topic_id)
                      JOIN kafka.messages m ON m.topic_id = p.topic_id AND m.partition = p.partition
                     WHERE t.name = ANY (%(topics)s) AND m."offset" >= p.last_stable_offset
                       AND m.control_type IS NULL) AS unstable
        )
        SELECT teller, number, count(*), sum(change) FROM seen GROUP BY teller, number
        HAVING count(*) > 2 OR (count(*) = 2 AND sum(change) <> 0)
            OR (count(*) = 1 AND (teller, number) NOT IN (SELECT teller, number FROM held))
        """,
        {"topics": bank.topics},
    ).fetchall()


@pytest.fixture
def bank(crashing_server: CrashingServer) -> Bank:
    return Bank([f"bank.{uuid.uuid4().hex[:8]}.{n}" for n in range(len(PARTITIONS))])


@pytest.fixture
def java_process() -> Iterator[java.JavaClient | None]:
    try:
        process = java.JavaClient(SOURCE)
    except java.JavaMissing:
        yield None  # the other clients carry on
        return
    yield process
    process.close()


@pytest.mark.timeout(600)
def test_the_bank_survives_everything(
    crashing_server: CrashingServer, start_gateway: StartGateway, bank: Bank, java_process: java.JavaClient | None
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    gateways = [start_gateway(crashing_server.url) for _ in range(2)]
    with TransactionConnection(gateways[0].bootstrap) as connection:
        for topic, partitions in zip(bank.topics, PARTITIONS, strict=True):
            connection.create_topic(topic, partitions=partitions)
    everywhere = ",".join(gateway.bootstrap for gateway in gateways)
    clients: list[Confluent | AioKafka | Java] = [Confluent(everywhere), Confluent(everywhere), AioKafka(everywhere)]
    if java_process is not None:
        clients.append(Java(everywhere, java_process))
    tellers = [Teller(f"teller-{number}-{uuid.uuid4().hex[:6]}", bank, client) for number, client in enumerate(clients)]
    is_over = threading.Event()
    threads = [
        threading.Thread(target=teller.run, args=(is_over, seed + number), daemon=True)
        for number, teller in enumerate(tellers)
    ]
    with Watch(crashing_server.url, bank) as watch:
        for thread in threads:
            thread.start()
        try:
            wait_for_progress(tellers)
            for number, name in enumerate(POINTS):
                die_at(gateways[number % 2], name, other=gateways[1 - number % 2])
                wait_for_progress(tellers)
                compare_readers(crashing_server.url, bank, gateways)
            crashing_server.kill9()
            crashing_server.start_again()
            wait_for_progress(tellers)
            compare_readers(crashing_server.url, bank, gateways)
            gateways[1].kill9()
            gateways[1].restart()
            crashing_server.shut_down()
            crashing_server.start_again()
            gateways[0].kill9()
            gateways[0].restart()
            wait_for_progress(tellers)
        finally:
            is_over.set()
            for thread in threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert watch.looks > 20
        assert watch.torn == [], f"seed {seed}"
    settle(crashing_server.url, tellers)
    audit(crashing_server.url, bank, tellers, gateways)


def wait_for_progress(tellers: Sequence[Teller], count: int = 4) -> None:
    wanted = [len(teller.committed) + count for teller in tellers]
    deadline = time.monotonic() + PROGRESS_S
    while any(len(teller.committed) < one for teller, one in zip(tellers, wanted, strict=True)):
        stories = [(teller.name, len(teller.committed), teller.complaints) for teller in tellers]
        assert time.monotonic() < deadline, stories
        time.sleep(0.05)


def compare_readers(database_url: str, bank: Bank, gateways: Sequence[GatewayProcess]) -> None:
    """While tellers go on: what a consumer of committed records is given is what psql sees, up to that offset."""
    query = (
        'SELECT "offset", value FROM kafka.committed_messages'
        ' WHERE topic = %s AND partition = %s AND "offset" <= %s ORDER BY "offset"'
    )
    with psycopg.connect(database_url, autocommit=True) as database:
        for gateway in gateways:
            with TransactionConnection(gateway.bootstrap) as connection:
                for topic, partition in bank.places:
                    read = connection.read_all(topic, partition=partition)
                    last = read[-1].offset if read else -1
                    assert database.execute(query, [topic, partition, last]).fetchall() == [tuple(one) for one in read]


def die_at(gateway: GatewayProcess, failpoint: str, *, other: GatewayProcess) -> None:
    """Kill one gateway after the other: who moves to the first one meets the point, of which it dies as well."""
    gateway.kill9()
    gateway.settings[FAILPOINT] = f"{failpoint}:3"
    gateway.start()
    other.kill9()
    wait_for(lambda: gateway.is_running, wanted=False, timeout_s=PROGRESS_S)
    del gateway.settings[FAILPOINT]
    other.restart()
    gateway.restart()


def settle(database_url: str, tellers: Sequence[Teller]) -> None:
    """What the tellers left open is aborted by the next instance, or by the sweeper."""
    for teller in tellers:
        producer = teller.client.open(teller.name)
        producer.close()
    names = [teller.name for teller in tellers]
    query = "SELECT transactional_id FROM kafka.open_transactions WHERE transactional_id = ANY (%s)"
    with psycopg.connect(database_url, autocommit=True) as connection:
        wait_for(lambda: connection.execute(query, [names]).fetchall(), [], timeout_s=60)


def audit(database_url: str, bank: Bank, tellers: Sequence[Teller], gateways: Sequence[GatewayProcess]) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert torn_transfers(connection, bank) == []
        rows = connection.execute(
            'SELECT topic, partition, "offset", value FROM kafka.committed_messages WHERE topic = ANY (%s)'
            ' ORDER BY topic, partition, "offset"',
            [bank.topics],
        ).fetchall()
        held = connection.execute(
            "SELECT name, partition FROM kafka.partitions JOIN kafka.topics USING (topic_id)"
            " WHERE name = ANY (%s) AND last_stable_offset <> next_offset",
            [bank.topics],
        ).fetchall()
    assert held == [], "nothing is held back any more"
    by_place: dict[tuple[str, int], list[tuple[int, bytes]]] = defaultdict(list)
    seen: Counter[tuple[str, int]] = Counter()
    balances: Counter[int] = Counter()
    for topic, partition, offset, value in rows:
        by_place[topic, partition].append((offset, value))
        transfer = json.loads(value)
        seen[transfer["teller"], transfer["number"]] += 1
        balances[transfer["account"]] += transfer["change"]
        assert bank.place_of(transfer["account"]) == (topic, partition)
    assert sum(balances.values()) == 0
    for teller in tellers:
        assert teller.committed, f"{teller.name} has done nothing: {teller.complaints}"
        wrong = [number for number in teller.committed if seen[teller.name, number] != 2]
        assert not wrong, f"{teller.name} was told of commits that are not there: {wrong[:5]}"
        wrong = [number for number in teller.aborted if seen[teller.name, number] != 0]
        assert not wrong, f"{teller.name}: aborted transfers are there: {wrong[:5]}"
        assert all(seen[teller.name, number] in (0, 2) for number in teller.unknown)
    known = {(teller.name, number) for teller in tellers for number in (*teller.committed, *teller.unknown)}
    assert set(seen) <= known
    for topic in bank.topics:
        _require_gapless(stored_rows(database_url, topic))
    for gateway in gateways:
        with TransactionConnection(gateway.bootstrap) as connection_to_gateway:
            for place in bank.places:
                topic, partition = place
                read = connection_to_gateway.read_all(topic, partition=partition)
                assert [(record.offset, record.value) for record in read] == by_place[place]
    reader = Confluent(gateways[0].bootstrap)
    for place in bank.places[::4]:
        assert [value.encode() for value in reader.read(place[0], partition=place[1])] == [
            value for _, value in by_place[place]
        ]


def _require_gapless(rows: Sequence[Any]) -> None:
    counts: Counter[int] = Counter()
    for row in rows:
        assert row.offset == counts[row.partition]
        counts[row.partition] += 1


# --- one large transaction at every point (T11) ----------------------------------------------

WIDE = 50
GROUPS = 3


@pytest.mark.parametrize(
    ("failpoint", "is_ended"),
    [(failpoints.END_BEFORE, False), (failpoints.END_WRITTEN, False), (failpoints.END_COMMITTED, True)],
)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_over_fifty_partitions_and_three_groups_is_all_or_nothing(
    failpoint: str,
    is_ended: bool,
    commit: bool,
    database_url: str,
    start_gateway: StartGateway,
    execute: Callable[..., list[tuple[object, ...]]],
) -> None:
    gateway = start_gateway(database_url, test_failpoint=failpoint)
    with TransactionConnection(gateway.bootstrap, KIP_890) as connection:
        topic = connection.create_topic("wide", partitions=WIDE)
        producer = connection.start("id")
        batches = {
            (topic, partition): transactional_batch([b"%d" % partition], producer, sequence=0)
            for partition in range(WIDE)
        }
        assert {outcome.code for outcome in connection.produce("id", batches).values()} == {NONE}
        for number in range(GROUPS):
            offsets = {(topic, partition): 7 for partition in range(WIDE)}
            codes = connection.commit_offsets("id", producer, f"group-{number}", offsets)
            assert set(codes.values()) == {NONE}
        with pytest.raises(ConnectionError):
            connection.end("id", producer, commit=commit)
    wait_for(lambda: gateway.is_running, wanted=False)

    def counts() -> tuple[object, ...]:
        ((found),) = execute(
            database_url,
            "SELECT (SELECT count(*) FROM kafka.committed_messages), (SELECT count(*) FROM kafka.consumer_offsets),"
            " (SELECT count(*) FROM kafka.messages WHERE control_type IS NOT NULL),"
            " (SELECT count(*) FROM kafka.aborted_transactions),"
            " (SELECT count(*) FROM kafka.partitions WHERE last_stable_offset = 2),"
            " (SELECT count(*) FROM kafka.transaction_partitions), (SELECT count(*) FROM kafka.transaction_offsets)",
        )
        return found

    nothing = (0, 0, 0, 0, 0, WIDE, WIDE * GROUPS)
    everything = (WIDE, WIDE * GROUPS, WIDE, 0, WIDE, 0, 0) if commit else (0, 0, WIDE, WIDE, WIDE, 0, 0)
    wait_for(counts, everything if is_ended else nothing)
    del gateway.settings[FAILPOINT]
    gateway.restart()
    with TransactionConnection(gateway.bootstrap, KIP_890) as connection:
        for _ in range(2):
            assert connection.end("id", producer, commit=commit) == (NONE, Producer(producer.id, producer.epoch + 1))
        assert counts() == everything
        for partition in (0, WIDE - 1):
            read = connection.read_all(topic, partition=partition)
            assert [record.value for record in read] == ([b"%d" % partition] if commit else [])


@pytest.mark.parametrize("generation", [CLASSIC, KIP_890], ids=lambda generation: generation.name)
def test_a_batch_over_fifty_partitions_is_in_its_transaction_once_though_its_answer_was_lost(
    generation: Generation, database_url: str, start_gateway: StartGateway
) -> None:
    """The other failpoint that a transaction passes: its batches are committed, and nobody was told."""
    gateway = start_gateway(database_url, test_failpoint=failpoints.PRODUCE_COMMITTED)
    with TransactionConnection(gateway.bootstrap, generation) as connection:
        topic = connection.create_topic("wide", partitions=WIDE)
        producer = connection.start("id")
        if not generation.bumps:
            assert set(connection.add("id", producer, {topic: list(range(WIDE))}).values()) == {NONE}
        batches = {
            (topic, partition): transactional_batch([b"%d" % partition], producer, sequence=0)
            for partition in range(WIDE)
        }
        with pytest.raises(ConnectionError):
            connection.produce("id", batches)
    wait_for(lambda: gateway.is_running, wanted=False)
    del gateway.settings[FAILPOINT]
    gateway.restart()
    connections = (TransactionConnection(gateway.bootstrap, generation) for _ in range(2))
    for connection in connections:  # a classic client's second connection is the one listened to
        with connection, suppress(ConnectionError):
            assert {outcome.code for outcome in connection.produce("id", batches).values()} == {NONE}
            for number in range(GROUPS):
                offsets = {(topic, partition): 7 for partition in range(WIDE)}
                if not generation.bumps:
                    assert connection.add_offsets("id", producer, f"group-{number}") == NONE
                assert set(connection.commit_offsets("id", producer, f"group-{number}", offsets).values()) == {NONE}
            assert connection.end("id", producer, commit=True)[0] == NONE
            break
    with psycopg.connect(database_url) as database:
        rows = database.execute("SELECT partition, value FROM kafka.committed_messages ORDER BY 1").fetchall()
        (offsets_there,) = database.execute("SELECT count(*) FROM kafka.consumer_offsets").fetchall()
    assert rows == [(partition, b"%d" % partition) for partition in range(WIDE)]
    assert offsets_there == (WIDE * GROUPS,)


# --- the database is away --------------------------------------------------------------------

COORDINATOR_NOT_AVAILABLE = 15
RETRIABLE_FOR_PRODUCE = {6, 7}


@pytest.mark.parametrize("generation", [CLASSIC, KIP_890], ids=lambda generation: generation.name)
def test_while_the_database_is_away_every_request_is_to_be_tried_again(
    generation: Generation, crashing_server: CrashingServer, start_gateway: StartGateway
) -> None:
    """No client library knows NOT_LEADER_OR_FOLLOWER as an answer to a request about a transaction."""
    gateway = start_gateway(crashing_server.url)
    name = f"id-{uuid.uuid4().hex[:8]}"
    with TransactionConnection(gateway.bootstrap, generation) as connection:
        topic = connection.create_topic(f"away.{uuid.uuid4().hex[:8]}", partitions=2)
        producer = connection.start(name)
    # Patience for what must work, none for what cannot: each answer below is waited for.
    gateway.stop_cleanly()
    gateway.settings["TABLEWIRE_DATABASE_TIMEOUT_MS"] = "1500"
    gateway.restart()
    with TransactionConnection(gateway.bootstrap, generation) as connection:
        wait_for(lambda: connection.add_one(name, producer, topic, version=3), NONE)
        wait_for(lambda: connection.write(name, producer, topic, [b"before"], sequence=0).code, NONE)
        crashing_server.kill9()
        try:
            for places in ({topic: [1]}, {topic: [1], f"{topic}-unknown": [0]}, {f"{topic}-unknown": [0]}):
                codes = connection.add(name, producer, places, version=3)
                assert set(codes.values()) == {COORDINATOR_NOT_AVAILABLE}
            assert connection.add_offsets(name, producer, "group") == COORDINATOR_NOT_AVAILABLE
            for place in ((topic, 0), (f"{topic}-unknown", 0)):
                codes = connection.commit_offsets(name, producer, "group", {place: 3})
                assert set(codes.values()) <= {14, COORDINATOR_NOT_AVAILABLE, 16}
            assert connection.end(name, producer, commit=True)[0] == COORDINATOR_NOT_AVAILABLE
            assert connection.init(name)[0] == COORDINATOR_NOT_AVAILABLE
            late = connection.write(name, producer, topic, [b"meanwhile"], sequence=1)
            assert late.code in RETRIABLE_FOR_PRODUCE
        finally:
            crashing_server.start_again()
        deadline = time.monotonic() + 30
        while (outcome := connection.write(name, producer, topic, [b"meanwhile"], sequence=1)).code != NONE:
            assert outcome.code in RETRIABLE_FOR_PRODUCE
            assert time.monotonic() < deadline
        wait_for(lambda: connection.end(name, producer, commit=True)[0], NONE)
        assert [record.value for record in connection.read_all(topic)] == [b"before", b"meanwhile"]
