"""PostgreSQL dies, restarts, loses sessions, has none left or is locked under producers (F5 to F8, F10, F19 to F21).

The gateway keeps running throughout: it answers what is retriable, and goes on when the database does.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

from tests.faults.conftest import PARTITIONS, CrashingServer
from tests.support.auditor import audit, count_sessions, require_nothing_held
from tests.support.gateway_process import GatewayProcess, free_port
from tests.support.handmade import HandmadeProducer, Outcome, make_batch, stored_rows
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for
from tests.support.workload import Workload

StartGateway = Callable[..., GatewayProcess]
NewTopic = Callable[..., str]

RETRIABLE = {6, 7}
"""NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT."""
MOST_SESSIONS = 10
"""Writers, read connections and heartbeats of a gateway with default settings are seven; some may be in exchange."""


@contextmanager
def both_kinds_of_load(
    gateway: GatewayProcess, new_topic: NewTopic, database_url: str
) -> Iterator[tuple[Workload, Workload]]:
    """Idempotent and plain producers; afterwards both topics are audited."""
    with (
        Workload([gateway.bootstrap] * 2, new_topic(gateway), partitions=PARTITIONS) as idempotent,
        Workload([gateway.bootstrap], new_topic(gateway), partitions=PARTITIONS, is_idempotent=False) as plain,
    ):
        idempotent.wait_for_more()
        plain.wait_for_more()
        yield idempotent, plain
        idempotent.wait_for_more()
        plain.wait_for_more()
        histories = idempotent.stop(), plain.stop()
        for history in histories:
            audit(database_url, history)
        require_nothing_held(database_url)
        assert gateway.is_running
        assert count_sessions(database_url) <= MOST_SESSIONS


def test_killed_and_restarted_database_loses_and_doubles_nothing(
    crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(crashing_server.url)
    with both_kinds_of_load(gateway, new_topic, crashing_server.url) as (idempotent, plain):
        crashing_server.kill9()
        crashing_server.start_again()
        idempotent.wait_for_more()
        plain.wait_for_more()
        crashing_server.shut_down()
        crashing_server.start_again()
        idempotent.wait_for_more()
        plain.wait_for_more()
        crashing_server.shut_down(immediate=True)
        crashing_server.start_again()


@pytest.mark.parametrize("is_gateway_killed", [False, True], ids=["the gateway lives", "the gateway dies too"])
def test_retry_finds_what_was_committed_just_before_the_database_was_killed(
    is_gateway_killed: bool, crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """The commit waits for a lock, the gateway is stopped, the commit goes through, the database is killed: nobody was
    answered."""
    gateway = start_gateway(crashing_server.url)
    topic = new_topic(gateway, partitions=1)
    with HandmadeProducer(gateway.bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        batches = [
            make_batch([b"%d" % n, b"%d'" % n], producer_id=producer_id, epoch=0, sequence=n * 2) for n in range(3)
        ]
        assert connection.produce(topic, batches[0]) == Outcome(0, 0)
        with psycopg.connect(crashing_server.url) as holder:
            holder.execute(
                "SELECT FROM kafka.partitions JOIN kafka.topics USING (topic_id) WHERE name = %s FOR UPDATE", [topic]
            )
            connection.send_produce({(topic, 0): batches[1]})
            wait_for(lambda: _count_waiting(crashing_server.url), wanted=1)
            os.kill(gateway.pid, signal.SIGSTOP)
        wait_for(lambda: len(stored_rows(crashing_server.url, topic)), wanted=4)
        crashing_server.kill9()
        if is_gateway_killed:
            gateway.kill9()
        else:
            os.kill(gateway.pid, signal.SIGCONT)
            assert connection.receive_produce()[topic, 0].code in {0, *RETRIABLE}
    crashing_server.start_again()
    if is_gateway_killed:
        gateway.restart()
    with HandmadeProducer(gateway.bootstrap) as connection:
        wait_for(lambda: connection.produce(topic, batches[1]), wanted=Outcome(0, 2), timeout_s=30)
        assert [connection.produce(topic, batches[n]) for n in (0, 1, 2, 1)] == [
            Outcome(0, n * 2) for n in (0, 1, 2, 1)
        ]
    assert len(stored_rows(crashing_server.url, topic)) == 6


def _count_waiting(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
        assert row is not None
        return int(row[0])


def test_one_killed_backend_is_survived(
    crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """PostgreSQL ends all other sessions when one dies by kill -9, and recovers."""
    gateway = start_gateway(crashing_server.url)
    with both_kinds_of_load(gateway, new_topic, crashing_server.url) as (idempotent, plain):
        for _ in range(2):
            crashing_server.kill9_session(_writing_session(crashing_server.url))
            idempotent.wait_for_more()
            plain.wait_for_more()


def test_terminated_sessions_are_replaced(
    crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(crashing_server.url)
    with both_kinds_of_load(gateway, new_topic, crashing_server.url):
        terminated = 0
        with psycopg.connect(crashing_server.superuser_url, autocommit=True) as connection:
            while terminated < 20:
                row = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'tablewire' ORDER BY random() LIMIT 1"
                ).fetchone()
                terminated += row is not None
                time.sleep(0.2)  # the pace is the fault: a session ends every fifth of a second


def test_database_that_was_away_for_long_is_used_at_once_when_it_is_back(
    crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """No pause grows with the time that the database was away."""
    gateway = start_gateway(crashing_server.url, database_timeout_ms=2000)
    topic = new_topic(gateway, partitions=1)
    crashing_server.shut_down(immediate=True)
    answers = []
    with HandmadeProducer(gateway.bootstrap) as connection:
        # The outage is the fault here: long enough for growing pauses to show.
        away_until = time.monotonic() + 8
        while time.monotonic() < away_until:
            answers.append(connection.produce(topic, make_batch([b"away"])).code)
            time.sleep(0.1)
        assert set(answers) <= RETRIABLE
        crashing_server.start_again()
        back_at = time.monotonic()
        wait_for(lambda: connection.produce(topic, make_batch([b"back"])).code, 0, timeout_s=15)
        took = time.monotonic() - back_at
    assert took < 5, f"the first record was written {took:.1f} s after the database was back"


def test_database_that_is_silent_is_given_up_in_time_and_used_again(
    crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """F10: connections stay open and nothing comes back. Whoever asks is answered, and a retry finds the truth."""
    gateway = start_gateway(crashing_server.url)
    topic = new_topic(gateway, partitions=2)
    gateway.stop_cleanly()
    gateway.settings["TABLEWIRE_DATABASE_TIMEOUT_MS"] = "1500"
    gateway.restart()
    with HandmadeProducer(gateway.bootstrap) as connection, ExitStack() as stack:
        _, producer_id, _ = connection.init_producer_id()
        batches = [make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) for n in range(3)]
        wait_for(lambda: connection.produce(topic, batches[0]).code, 0)
        asking = [stack.enter_context(HandmadeProducer(gateway.bootstrap)) for _ in range(2)]
        with crashing_server.frozen(), ThreadPoolExecutor(3) as threads:
            refused = threads.submit(connection.produce, topic, batches[1])
            fetched = threads.submit(list_end, asking[0], topic)
            begun = threads.submit(asking[1].init_producer_id)
            assert refused.result(60).code in RETRIABLE
            assert fetched.result(60) != 0
            assert begun.result(60)[0] != 0
            assert urlopen_code(f"{gateway.http_url}/readyz") == 503
        for n, batch in enumerate(batches):
            wait_for(lambda batch=batch: connection.produce(topic, batch), Outcome(0, n))
    assert [row.value for row in stored_rows(crashing_server.url, topic)] == [b"0", b"1", b"2"]


def test_no_session_left_in_the_database_is_waited_out(
    crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """F19: others have them all (53300), and the gateway has lost its own."""
    gateway = start_gateway(crashing_server.url)
    topic = new_topic(gateway, partitions=1)
    with HandmadeProducer(gateway.bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        batches = [make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) for n in range(2)]
        assert connection.produce(topic, batches[0]) == Outcome(0, 0)
        with psycopg.connect(crashing_server.superuser_url, autocommit=True) as superuser, ExitStack() as others:

            def has_lost_all() -> bool:
                superuser.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tablewire'"
                )
                with suppress(psycopg.OperationalError):
                    while True:
                        others.enter_context(psycopg.connect(crashing_server.url))
                sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tablewire'"
                return superuser.execute(sessions).fetchone() == (0,)

            wait_for(has_lost_all, wanted=True)
            assert {connection.produce(topic, batches[1]).code for _ in range(3)} <= RETRIABLE
            assert urlopen_code(f"{gateway.http_url}/readyz") == 503
        wait_for(lambda: connection.produce(topic, batches[1]), Outcome(0, 1), timeout_s=15)
    assert [row.value for row in stored_rows(crashing_server.url, topic)] == [b"0", b"1"]


def list_end(connection: HandmadeProducer, topic: str) -> int:
    """The error code of ListOffsets by time, which the database is asked for."""
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": 1}]}]
    answer = connection.call("ListOffsets", 5, replica_id=-1, isolation_level=0, topics=asked)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def urlopen_code(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_lock_on_the_partitions_is_waited_out_with_retriable_answers(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(database_url)
    topic = new_topic(gateway)
    gateway.stop_cleanly()
    gateway.settings["TABLEWIRE_DATABASE_TIMEOUT_MS"] = "700"
    gateway.restart()
    with HandmadeProducer(gateway.bootstrap) as connection, psycopg.connect(database_url) as holder:
        _, producer_id, _ = connection.init_producer_id()
        batches = [make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) for n in range(10)]
        wait_for(lambda: connection.produce(topic, batches[0]), Outcome(0, 0))
        with Workload([gateway.bootstrap], topic, partitions=PARTITIONS) as workload:
            workload.wait_for_more()
            holder.execute("LOCK TABLE kafka.partitions IN ACCESS EXCLUSIVE MODE")
            refused = [connection.produce(topic, batches[1]).code for _ in range(4)]
            assert set(refused) <= RETRIABLE
            assert count_sessions(database_url) <= MOST_SESSIONS
            holder.rollback()
            workload.wait_for_more()
            workload.stop()
        wait_for(lambda: connection.produce(topic, batches[1]).code, 0)
        offset = connection.produce(topic, batches[1]).base_offset
        rows = stored_rows(database_url, topic)
        assert [row.offset for row in rows if row.value == b"1"] == [offset]
        audit_own = [row for row in rows if row.producer_id != producer_id]
        assert len({row.value for row in audit_own}) == len(audit_own) == workload.acknowledged_count
        require_nothing_held(database_url)


def test_rows_locked_by_somebody_else_are_waited_for(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """An operator's UPDATE or a backup: whoever waits gets an answer, and nothing is written twice."""
    gateway = start_gateway(database_url)
    topic = new_topic(gateway, partitions=2)
    with HandmadeProducer(gateway.bootstrap) as connection, psycopg.connect(database_url) as holder:
        _, producer_id, _ = connection.init_producer_id()
        batch = make_batch([b"x"], producer_id=producer_id, epoch=0, sequence=0)
        holder.execute("SELECT FROM kafka.partitions WHERE partition = 0 FOR UPDATE")
        connection.send_produce({(topic, 0): batch})
        connection.send_produce({(topic, 0): batch})
        wait_for(lambda: _waiting_sessions(database_url) > 0, wanted=True)
        with HandmadeProducer(gateway.bootstrap) as other:  # the other partition has a writer of its own
            assert other.produce(topic, batch, partition=1) == Outcome(0, 0)
        holder.rollback()
        assert [connection.receive_produce()[topic, 0] for _ in range(2)] == [Outcome(0, 0)] * 2
    assert len(stored_rows(database_url, topic)) == 2


def test_client_that_leaves_while_its_batch_waits_for_a_lock_may_retry_elsewhere(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateways = [start_gateway(database_url), start_gateway(database_url)]
    topic = new_topic(gateways[0], partitions=1)
    with HandmadeProducer(gateways[0].bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
    batches = [make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) for n in range(3)]
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM kafka.partitions FOR UPDATE")
        for gateway in gateways:
            with HandmadeProducer(gateway.bootstrap) as leaving:
                for batch in batches:
                    leaving.send_produce({(topic, 0): batch})
                wait_for(lambda: _waiting_sessions(database_url) > 0, wanted=True)
        holder.rollback()
    with HandmadeProducer(gateways[1].bootstrap) as connection:
        assert [connection.produce(topic, batch) for batch in batches] == [Outcome(0, n) for n in range(3)]
    assert [row.value for row in stored_rows(database_url, topic)] == [b"0", b"1", b"2"]


def test_produces_in_opposite_order_through_two_gateways_do_not_block_each_other(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateways = [start_gateway(database_url), start_gateway(database_url)]
    topic, rounds = new_topic(gateways[0], partitions=6), 100
    barrier = threading.Barrier(2)
    answers: list[list[dict[tuple[str, int], Outcome]]] = [[], []]

    def write(number: int) -> None:
        with HandmadeProducer(gateways[number].bootstrap) as connection:
            _, producer_id, _ = connection.init_producer_id()
            for n in range(rounds):
                order = range(6) if number == 0 else reversed(range(6))
                batch = make_batch([b"%d/%d" % (number, n)], producer_id=producer_id, epoch=0, sequence=n)
                barrier.wait(30)
                answers[number].append(connection.produce_many({(topic, p): batch for p in order}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(one) for one in answers] == [rounds, rounds]
    assert {outcome.code for both in answers for one in both for outcome in one.values()} == {0}
    rows = stored_rows(database_url, topic)
    assert len(rows) == len({(row.partition, row.value) for row in rows}) == 6 * 2 * rounds
    assert "deadlock" not in "".join(gateway.log_text() for gateway in gateways)


@pytest.fixture
def balanced(start_gateway: StartGateway, database_url: str) -> Iterator[tuple[list[GatewayProcess], Proxy]]:
    """Two gateways behind one address: connections go to either, whoever is told to lead a partition."""
    ports = [free_port(), free_port()]
    with Proxy(*ports) as proxy:
        yield [start_gateway(database_url, port=port, advertised=proxy.address) for port in ports], proxy


def test_two_gateways_write_the_same_partitions_at_the_same_time(
    database_url: str, balanced: tuple[list[GatewayProcess], Proxy], new_topic: NewTopic
) -> None:
    gateways, proxy = balanced
    topics = [new_topic(gateways[0]), new_topic(gateways[0])]
    with (
        Workload([proxy.address] * 4, topics[0], partitions=PARTITIONS) as idempotent,
        Workload([proxy.address] * 2, topics[1], partitions=PARTITIONS, is_idempotent=False) as plain,
    ):
        idempotent.wait_for_more(1000)
        proxy.cut_every = 20  # from now on retries come, and many of them to the other gateway
        wait_for(lambda: proxy.cuts >= 30, wanted=True, timeout_s=60)
        proxy.cut_every = 0
        rows = audit(database_url, idempotent.stop())
        audit(database_url, plain.stop())
    # They met: in every partition the writes of several producers follow each other in turn, many times.
    for partition in range(PARTITIONS):
        writers = [row.producer_id for row in rows if row.partition == partition]
        assert sum(one != other for one, other in itertools.pairwise(writers)) > 20
    require_nothing_held(database_url)


def test_one_of_two_gateways_dies_while_both_write_the_same_partitions(
    database_url: str, balanced: tuple[list[GatewayProcess], Proxy], new_topic: NewTopic
) -> None:
    gateways, proxy = balanced
    topic = new_topic(gateways[0])
    with Workload([proxy.address] * 3, topic, partitions=PARTITIONS) as workload:
        workload.wait_for_more()
        gateways[1].kill9()
        workload.wait_for_more()  # through the other one
        gateways[1].restart()
        workload.wait_for_more()
        audit(database_url, workload.stop())


def test_default_isolation_of_the_database_does_not_matter(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f"ALTER DATABASE {psycopg.conninfo.conninfo_to_dict(database_url)['dbname']}"
            " SET default_transaction_isolation = 'serializable'".encode()
        )
    gateways = [start_gateway(database_url), start_gateway(database_url)]
    topic, rounds = new_topic(gateways[0], partitions=1), 50

    def write(gateway: GatewayProcess) -> set[int]:
        with HandmadeProducer(gateway.bootstrap) as connection:
            _, producer_id, _ = connection.init_producer_id()
            return {
                connection.produce(topic, make_batch([b"x"], producer_id=producer_id, epoch=0, sequence=n)).code
                for n in range(rounds)
            }

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(write, gateways * 2)) == [{0}] * 4
    assert [row.offset for row in stored_rows(database_url, topic)] == list(range(4 * rounds))


def _writing_session(database_url: str) -> int:
    """One that is in the middle of a commit."""
    deadline = time.monotonic() + 30
    with psycopg.connect(database_url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            row = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'tablewire' AND state = 'active'"
                " AND query LIKE ANY (ARRAY['CALL kafka.advance%', '%COPY kafka.messages%']) ORDER BY random() LIMIT 1"
            ).fetchone()
            if row is not None:
                return int(row[0])
    raise AssertionError("no gateway writes")


def _waiting_sessions(database_url: str) -> int:
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tablewire'"
            " AND wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchone()
    return int(row[0]) if row else 0
