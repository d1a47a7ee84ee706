"""kafka.begin_once and its companions, as a worker in any language calls them: over plain connections, at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import errors

from gateway.domain.config_keys import TOPIC_CONFIGS
from gateway.storage.statements import statement
from tests.support.waiting import wait_for

Connection = psycopg.Connection[Any]
Connect = Callable[[], AbstractContextManager[Connection]]

WORKERS = 12
KEYS = 25


@pytest.fixture
def connect(module_database_url: str) -> Connect:
    @contextmanager
    def open_one() -> Iterator[Connection]:
        with psycopg.connect(module_database_url, autocommit=True) as connection:
            yield connection

    return open_one


@pytest.fixture
def session(connect: Connect) -> Iterator[Connection]:
    with connect() as connection:
        connection.execute("TRUNCATE kafka.idempotency_keys, kafka.topics CASCADE")
        connection.execute("INSERT INTO kafka.topics (name, partition_count) VALUES ('payments', 1), ('refunds', 1)")
        yield connection


@pytest.fixture
def other(session: Connection, connect: Connect) -> Iterator[Connection]:
    with connect() as connection:
        yield connection


def begin(
    connection: Connection,
    key: str | None = "k",
    *,
    tenant: str | None = "",
    topic: str = "payments",
    group: str | None = "bookers",
    lease: str = "1 minute",
    owner: str | None = None,
) -> str:
    (said,) = ask(
        connection, "SELECT kafka.begin_once(%s, %s, %s, %s, %s, %s)", tenant, topic, group, key, lease, owner
    )
    return str(said)


def succeed(connection: Connection, key: str = "k", *, result: str | None = None, owner: str | None = None) -> None:
    ask(connection, "SELECT kafka.mark_success('', 'payments', 'bookers', %s, %s, %s)", key, result, owner)


def fail(connection: Connection, key: str = "k", *, reason: str = "no money", owner: str | None = None) -> None:
    ask(connection, "SELECT kafka.mark_failure('', 'payments', 'bookers', %s, %s, %s)", key, reason, owner)


def ask(connection: Connection, query: LiteralString, *values: object) -> tuple[Any, ...]:
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return tuple(row)


def stored(connection: Connection, columns: str = "status, attempts, last_error") -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT {columns} FROM kafka.idempotency_keys ORDER BY key".encode()).fetchall()


def end_lease(connection: Connection, *, key: str = "%") -> None:
    connection.execute(
        "UPDATE kafka.idempotency_keys SET lease_until = now() - interval '1 second'"
        " WHERE status = 'PENDING' AND key LIKE %s",
        [key],
    )


def is_waiting(connection: Connection) -> Callable[[], bool]:
    def look() -> bool:
        (count,) = ask(
            connection,
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
        return bool(count)

    return look


# --- one after the other ---------------------------------------------------------------------


def test_the_four_argument_form_needs_no_more_than_one_session(session: Connection) -> None:
    call: LiteralString = "SELECT kafka.begin_once('acme', 'payments', 'bookers', 'k')"
    assert ask(session, call) == ("started",)
    assert ask(session, call) == ("in_flight",)
    session.execute("SELECT kafka.mark_success('acme', 'payments', 'bookers', 'k')")
    assert ask(session, call) == ("already_done",)
    assert stored(session, "tenant, status, attempts, lease_until") == [("acme", "COMMITTED", 1, None)]


def test_arguments_go_by_name_and_a_lease_may_be_the_last_one(session: Connection) -> None:
    by_name: LiteralString = "tenant => 'acme', topic => 'payments', group_id => 'bookers', key => %s"
    for key in ("a", "b"):
        assert ask(session, f"SELECT kafka.begin_once({by_name}, lease => '5 minutes')", key) == ("started",)
    assert ask(session, "SELECT kafka.begin_once('acme', 'payments', 'bookers', 'c', '5 minutes')") == ("started",)
    lasts = "lease_until BETWEEN now() + interval '4 minutes' AND now() + interval '5 minutes'"
    assert stored(session, f"key, {lasts}") == [("a", True), ("b", True), ("c", True)]
    ask(session, f"SELECT kafka.mark_success({by_name})", "a")
    ask(session, f"SELECT kafka.mark_failure({by_name}, reason => 'no money')", "b")
    ask(session, "SELECT kafka.mark_failure('acme', 'payments', 'bookers', 'c', 'no money')")
    assert stored(session) == [("COMMITTED", 1, None), ("FAILED", 1, "no money"), ("FAILED", 1, "no money")]


def test_a_failed_key_is_begun_again_and_keeps_what_went_wrong(session: Connection, other: Connection) -> None:
    assert begin(session) == "started"
    fail(session, reason="card refused")
    assert stored(session) == [("FAILED", 1, "card refused")]
    assert begin(other) == "started"
    assert stored(session) == [("PENDING", 2, "card refused")]
    succeed(other, result="booking 7")
    assert stored(session, "status, attempts, result_reference") == [("COMMITTED", 2, "booking 7")]


@pytest.mark.parametrize("scope", [{"tenant": "b"}, {"group": "auditors"}, {"topic": "refunds"}, {"key": "l"}])
def test_tenants_topics_groups_and_keys_do_not_suppress_each_other(session: Connection, scope: dict[str, str]) -> None:
    assert begin(session) == "started"
    assert begin(session, **scope) == "started"  # type: ignore[arg-type]
    assert begin(session, **scope) == "in_flight"  # type: ignore[arg-type]


def test_no_tenant_and_an_empty_tenant_are_the_same(session: Connection) -> None:
    assert begin(session, tenant=None, group=None) == "started"
    assert begin(session, tenant="", group="") == "in_flight"


@pytest.mark.parametrize("key", ["", None])
def test_without_a_key_everything_is_begun_and_nothing_remembered(session: Connection, key: str | None) -> None:
    assert begin(session, key) == begin(session, key) == "started"
    session.execute("SELECT kafka.mark_success('', 'payments', 'bookers', %s)", [key])
    session.execute("SELECT kafka.mark_failure('', 'payments', 'bookers', %s, 'why')", [key])
    assert stored(session) == []


def test_an_unknown_topic_is_an_error(session: Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="no topic 'nowhere'") as raised:
        begin(session, topic="nowhere")
    assert raised.value.sqlstate == "TW003"


@pytest.mark.parametrize("lease", ["0 seconds", "-1 minute"])
def test_a_lease_must_have_a_length(session: Connection, lease: str) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        begin(session, lease=lease)


@pytest.mark.parametrize(("key", "tenant", "group"), [("k" * 1025, "", ""), ("k", "t" * 257, ""), ("k", "", "g" * 513)])
def test_what_an_index_could_not_hold_is_refused(session: Connection, key: str, tenant: str, group: str) -> None:
    with pytest.raises(errors.CheckViolation, match="idempotency_keys_size"):
        begin(session, key, tenant=tenant, group=group)


def test_the_longest_identity_fits_the_index(session: Connection) -> None:
    """Random text, which does not shrink."""
    (key, tenant, group) = ask(
        session,
        "SELECT left(t, 1024), left(t, 256), left(t, 512)"
        " FROM (SELECT string_agg(md5(n::text), '') AS t FROM generate_series(1, 40) AS n) AS random",
    )
    assert begin(session, key, tenant=tenant, group=group) == "started"


# --- who may mark ----------------------------------------------------------------------------


def test_a_lease_that_ran_out_is_taken_over_and_the_first_owner_can_no_longer_mark(
    session: Connection, other: Connection
) -> None:
    assert begin(session) == "started"
    assert begin(other) == "in_flight"
    end_lease(session)
    assert begin(other) == "started"
    (owner,) = ask(session, "SELECT kafka.session_owner()")
    assert stored(session) == [("PENDING", 2, f"the lease of {owner} ran out")]
    for mark in (succeed, fail):
        with pytest.raises(psycopg.DatabaseError, match="is not held by") as raised:
            mark(session)
        assert raised.value.sqlstate == "TW001"
    succeed(other)
    with pytest.raises(psycopg.DatabaseError, match="is not held by"):
        fail(session)
    assert stored(session, "status, attempts") == [("COMMITTED", 2)]


def test_an_owner_who_is_late_but_was_not_replaced_may_still_mark(session: Connection) -> None:
    assert begin(session) == "started"
    end_lease(session)
    succeed(session)
    assert stored(session, "status") == [("COMMITTED",)]


def test_a_named_owner_may_mark_from_another_session(session: Connection, other: Connection) -> None:
    assert begin(session, owner="worker 1") == "started"
    with pytest.raises(psycopg.DatabaseError, match="is not held by worker 2"):
        succeed(other, owner="worker 2")
    with pytest.raises(psycopg.DatabaseError, match="is not held by"):
        succeed(session)
    succeed(other, owner="worker 1")
    assert stored(session, "status, owner") == [("COMMITTED", "worker 1")]


def test_a_mark_said_twice_is_heard_once(session: Connection) -> None:
    begin(session, "a")
    begin(session, "b")
    for _ in range(2):
        succeed(session, "a")
        fail(session, "b")
    assert stored(session, "status, attempts") == [("COMMITTED", 1), ("FAILED", 1)]
    with pytest.raises(psycopg.DatabaseError, match="is not held by"):
        fail(session, "a")
    with pytest.raises(psycopg.DatabaseError, match="is not held by"):
        succeed(session, "b")


def test_what_was_never_begun_cannot_be_marked(session: Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="was never begun") as raised:
        succeed(session)
    assert raised.value.sqlstate == "TW002"


def test_a_lease_can_be_extended_by_its_owner_only(session: Connection, other: Connection) -> None:
    extend: LiteralString = "SELECT kafka.extend_lease('', 'payments', 'bookers', 'k', '1 hour')"
    assert ask(session, extend) == (False,)
    begin(session)
    end_lease(session)
    assert ask(other, extend) == (False,)
    assert ask(session, extend) == (True,)
    assert begin(other) == "in_flight"
    succeed(session)
    assert ask(session, extend) == (False,)


def test_a_key_that_a_transaction_holds_is_not_taken_over(session: Connection) -> None:
    begin(session, group="")
    session.execute("UPDATE kafka.idempotency_keys SET producer_id = 4711, lease_until = NULL, owner = NULL")
    assert begin(session, group="") == "in_flight"
    with pytest.raises(psycopg.DatabaseError, match="is not held by"):
        session.execute("SELECT kafka.mark_success('', 'payments', '', 'k')")


# --- at once ---------------------------------------------------------------------------------


def test_of_many_who_begin_at_once_exactly_one_does(session: Connection, connect: Connect) -> None:
    """New keys, failed ones and ones whose lease ran out, each begun by twelve sessions at the same moment."""
    for n in range(KEYS):
        if n % 3:
            begin(session, f"k{n}")
        if n % 3 == 1:
            fail(session, f"k{n}")
    end_lease(session)
    starting_line = threading.Barrier(WORKERS)

    def work(number: int) -> list[tuple[str, str]]:
        with connect() as connection:
            said = []
            for n in range(KEYS):
                starting_line.wait()
                said.append((f"k{n}", begin(connection, f"k{n}", owner=f"worker {number}")))
            return said

    with ThreadPoolExecutor(WORKERS) as threads:
        said = Counter(each for answers in threads.map(work, range(WORKERS)) for each in answers)
    expected = {"started": 1, "in_flight": WORKERS - 1}
    assert said == {(f"k{n}", outcome): count for n in range(KEYS) for outcome, count in expected.items()}


def test_effects_happen_once_when_workers_race_in_one_transaction_each(session: Connection, connect: Connect) -> None:
    """Begin, effect and mark in one transaction; every third attempt fails and is rolled back."""
    session.execute("CREATE TABLE IF NOT EXISTS public.bookings (key text NOT NULL)")

    def work(number: int) -> None:
        with connect() as connection:
            for n in range(KEYS):
                try:
                    with connection.transaction():
                        if begin(connection, f"k{n}") == "started":
                            connection.execute("INSERT INTO public.bookings VALUES (%s)", [f"k{n}"])
                            if (n + number) % 3 == 0:
                                raise InterruptedError
                            succeed(connection, f"k{n}")
                except InterruptedError:
                    pass

    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(work, range(WORKERS)))
    assert ask(session, "SELECT count(*), count(DISTINCT key) FROM public.bookings") == (KEYS, KEYS)
    assert set(stored(session, "status")) == {("COMMITTED",)}


@pytest.mark.parametrize(("outcome", "said"), [("commit", "already_done"), ("rollback", "started")])
def test_who_begins_what_an_open_transaction_began_waits_for_its_outcome(
    session: Connection, connect: Connect, other: Connection, outcome: str, said: str
) -> None:
    session.autocommit = False
    assert begin(session) == "started"
    succeed(session)
    with ThreadPoolExecutor(1) as thread, connect() as observer:
        waiting = thread.submit(begin, other)
        wait_for(is_waiting(observer), True)
        assert not waiting.done()
        getattr(session, outcome)()
        assert waiting.result(timeout=15) == said


def test_with_a_lock_timeout_the_wait_ends_as_in_flight(session: Connection, other: Connection) -> None:
    session.autocommit = False
    assert begin(session) == "started"
    with other.transaction():
        other.execute("SET LOCAL lock_timeout = '50ms'")
        assert begin(other) == "in_flight"
        assert begin(other, "another") == "started", "the transaction goes on"
    session.rollback()
    assert begin(other) == "started"


# --- what people see -------------------------------------------------------------------------


def test_views_show_keys_in_flight_and_failing_ones(session: Connection) -> None:
    for key in ("done", "held", "late", "broken"):
        begin(session, key, owner="w")
    succeed(session, "done", owner="w")
    fail(session, "broken", reason="no such account", owner="w")
    end_lease(session, key="late")
    in_flight = "SELECT topic, group_id, key, owner, is_lease_over FROM kafka.keys_in_flight ORDER BY key"
    assert session.execute(in_flight).fetchall() == [
        ("payments", "bookers", "held", "w", False),
        ("payments", "bookers", "late", "w", True),
    ]
    assert session.execute("SELECT topic, key, attempts, last_error FROM kafka.failing_keys").fetchall() == [
        ("payments", "broken", 1, "no such account")
    ]


def test_retention_is_the_topics(session: Connection) -> None:
    session.execute(
        "INSERT INTO kafka.topic_configs (topic_id, name, value)"
        " SELECT topic_id, 'idempotency.keys.retention.ms', CASE name WHEN 'payments' THEN '60000' ELSE '-1' END"
        " FROM kafka.topics"
    )
    begin(session, "a")
    begin(session, "b", topic="refunds")
    assert stored(session, "expires_at::text") == [
        ask(session, "SELECT (created_at + interval '1 minute')::text FROM kafka.idempotency_keys WHERE key = 'a'"),
        ("infinity",),
    ]


def test_keys_are_forgotten_in_small_steps_whatever_came_of_them(session: Connection) -> None:
    for key in ("done 1", "done 2", "failed 1", "failed 2", "held", "let go"):
        begin(session, key)
    for number in (1, 2):
        succeed(session, f"done {number}")
        fail(session, f"failed {number}")
    end_lease(session, key="let go")
    session.execute("UPDATE kafka.idempotency_keys SET expires_at = now() - interval '1 second'")
    forget = statement("housekeeping/drop_expired_keys")
    assert [session.execute(forget, {"step": 2}).fetchone() for _ in range(4)] == [(2,), (2,), (1,), (0,)]
    assert stored(session, "key, status") == [("held", "PENDING")]


def test_without_a_setting_retention_is_the_configs_default(session: Connection) -> None:
    begin(session)
    retention_ms = int(TOPIC_CONFIGS["idempotency.keys.retention.ms"].default or "")
    assert ask(session, "SELECT extract(epoch FROM expires_at - created_at) * 1000 FROM kafka.idempotency_keys") == (
        retention_ms,
    )
