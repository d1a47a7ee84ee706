"""Versioned state in Python and SQL: what callers are told, in whose transaction, and when several write at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from gateway.domain.state import (
    InvalidState,
    LateVersion,
    NamespaceDiffers,
    NothingToSeal,
    Ordering,
    Outcome,
    StateConflict,
    UnknownCheckpoint,
    UnknownNamespace,
    UnknownPipeline,
    Version,
)
from gateway.pipeline.checkpoints import (
    begin_batch,
    checkpoints,
    commit_batch,
    drop_pipeline,
    go_back,
    keep_checkpoints,
    reset_pipeline,
)
from gateway.pipeline.state import ARRAY_PUTS, Change, Namespace, State, Stored, apply_staged
from gateway.storage.statements import statement
from tests.support.waiting import wait_for

WRITERS = 4
APPLIED, UNCHANGED, STALE = Outcome.APPLIED, Outcome.UNCHANGED, Outcome.STALE
BUFFERED, LATE, CONFLICT = Outcome.BUFFERED, Outcome.LATE, Outcome.CONFLICT
Connect = Callable[..., psycopg.Connection[Any]]
names = (f"name {number}" for number in itertools.count())


@pytest.fixture
def connect(module_database_url: str) -> Iterator[Connect]:
    opened: list[psycopg.Connection[Any]] = []

    def another(*, autocommit: bool = True) -> psycopg.Connection[Any]:
        # Should a test fail while one connection waits for another, it does not wait for ever.
        options = "-c lock_timeout=30s"
        opened.append(psycopg.connect(module_database_url, autocommit=autocommit, options=options))
        return opened[-1]

    yield another
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    return connect()


@pytest.fixture
def state(connection: psycopg.Connection[Any]) -> State:
    return State.create(connection, next(names))


@pytest.fixture
def sealed(connection: psycopg.Connection[Any]) -> State:
    return State.create(connection, next(names), ordering="sealed")


@pytest.fixture
def pipeline(connection: psycopg.Connection[Any]) -> str:
    name = next(names)
    begin_batch(connection, name)
    return name


def scalar(connection: psycopg.Connection[Any], query: LiteralString, *parameters: object) -> Any:
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


# --- Python ----------------------------------------------------------------------------------


def test_a_value_is_put_once_and_read_back(state: State) -> None:
    assert state.get(b"k") is None
    assert state.entry(b"k") is None
    assert state.put(b"k", b"v", 5) is APPLIED
    assert state.put(b"k", b"v", 5) is UNCHANGED
    assert state.put(b"k", b"older", 4) is STALE
    assert state.get(b"k") == b"v"
    assert state.entry(b"k") == Stored(Version(0, 5), b"v", is_deleted=False)
    assert state.put(b"k", b"newer epoch", (1, 0)) is APPLIED
    assert state.get(b"k") == b"newer epoch"


def test_a_deletion_keeps_its_version(state: State) -> None:
    state.put(b"k", b"v", 5)
    assert state.delete(b"k", 7) is APPLIED
    assert state.delete(b"k", 7) is UNCHANGED
    assert state.get(b"k", b"default") == b"default"
    assert state.entry(b"k") == Stored(Version(0, 7), None, is_deleted=True)
    assert state.put(b"k", b"late", 6) is STALE
    assert state.put(b"k", b"new", 8) is APPLIED


def test_a_conflict_says_where(state: State) -> None:
    state.put(b"k", b"v", (2, 5))
    with pytest.raises(StateConflict, match=r"version \(2, 5\) of key b'k' came with another value"):
        state.put(b"k", b"w", (2, 5))
    with pytest.raises(StateConflict):
        state.delete(b"k", (2, 5))
    assert state.put(b"k", b"w", (2, 5), strict=False) is CONFLICT
    assert state.get(b"k") == b"v"


def test_the_largest_version_and_key_are_accepted(state: State) -> None:
    largest = Version(2**63 - 1, 2**63 - 1)
    key = bytes(range(256)) * 8
    assert state.put(key, b"\0", largest) is APPLIED
    assert state.entry(key) == Stored(largest, b"\0", is_deleted=False)
    assert state.put_many([(key, b"\0", largest)]) == {UNCHANGED: 1}


def test_keys_and_values_may_be_text_or_json(connection: psycopg.Connection[Any]) -> None:
    state = State.create(connection, next(names), keys="json", values="json")
    assert state.put({"b": 1, "a": [2]}, {"total": 1.5, "name": "é\0"}, 1) is APPLIED
    assert state.put({"a": [2], "b": 1}, {"name": "é\0", "total": 1.5}, 1) is UNCHANGED
    assert state.get({"b": 1, "a": [2]}) == {"total": 1.5, "name": "é\0"}
    assert state.put("null", None, 1) is APPLIED
    assert state.entry("null") == Stored(Version(0, 1), None, is_deleted=False)
    text = State(connection, state.namespace, keys="text", values="text")
    assert text.get('{"a":[2],"b":1}') == '{"name":"é\\u0000","total":1.5}'


def test_namespaces_do_not_see_each_other(connection: psycopg.Connection[Any], state: State) -> None:
    other = State.create(connection, next(names))
    state.put(b"k", b"mine", 9)
    assert other.get(b"k") is None
    assert other.put(b"k", b"yours", 1) is APPLIED
    other.drop()
    assert state.get(b"k") == b"mine"
    with pytest.raises(UnknownNamespace):
        other.get(b"k")


def test_many_puts_are_judged_together(state: State) -> None:
    state.put(b"k", b"e", 5)
    puts = [(b"k", b"g", 7), (b"k", b"f", 6), (b"k", b"e", 5), (b"k", b"d", 4), (b"l", None, 1), (b"l", None, 1)]
    assert state.put_many(puts) == {APPLIED: 3, UNCHANGED: 2, STALE: 1}
    assert state.get(b"k") == b"g"
    assert state.entry(b"l") == Stored(Version(0, 1), None, is_deleted=True)
    assert state.put_many([]) == {}


def test_more_puts_than_fit_into_memory_are_copied(state: State) -> None:
    """The same puts by arrays and by COPY have the same outcomes."""
    puts = [(b"%d" % (number % 700), b"%d" % number, number) for number in range(2 * ARRAY_PUTS)]
    assert state.put_many(puts) == {APPLIED: len(puts)}
    assert state.put_many(puts[-700:]) == {UNCHANGED: 700}
    assert state.put_many(iter(puts)) == {UNCHANGED: 700, STALE: len(puts) - 700}
    assert state.get(b"0") == b"1400"


def test_a_conflict_among_many_undoes_all_of_them(state: State) -> None:
    puts = [(b"a", b"1", 1), (b"b", b"1", 1), (b"b", b"2", 1), (b"c", b"1", 1)]
    with pytest.raises(StateConflict, match=r"version \(0, 1\) of key b'b' .*, and 1 more puts like it"):
        state.put_many(puts)
    assert state.get(b"a") is None
    assert state.put_many(puts, strict=False) == {APPLIED: 2, CONFLICT: 2}
    assert [state.get(key) for key in (b"a", b"b", b"c")] == [b"1", None, b"1"]


def test_versions_wait_until_they_are_sealed(sealed: State) -> None:
    assert [sealed.put(b"k", b"%d" % number, number) for number in (3, 1, 2)] == [BUFFERED] * 3
    assert sealed.put(b"k", b"3", 3) is UNCHANGED
    with pytest.raises(StateConflict):
        sealed.put(b"k", b"other", 2)
    assert sealed.get(b"k") is None
    assert sealed.seal_in_order(2) == [
        Change(b"k", Version(0, 1), b"1", is_deleted=False),
        Change(b"k", Version(0, 2), b"2", is_deleted=False),
    ]
    assert sealed.get(b"k") == b"2"
    assert sealed.describe() == Namespace(Ordering.SEALED, None, Version(0, 2))
    assert sealed.seal(2) == sealed.seal(1) == 0
    assert sealed.put(b"k", b"2", 2) is UNCHANGED
    with pytest.raises(LateVersion, match="came after it was sealed"):
        sealed.put(b"k", b"1", 1)
    with pytest.raises(LateVersion):
        sealed.put_many([(b"new", b"1", 2), (b"new", b"1", 4)])
    assert sealed.seal(10) == 1
    assert sealed.get(b"k") == b"3"


# --- bad input -------------------------------------------------------------------------------


def test_an_unknown_namespace_is_named(connection: psycopg.Connection[Any]) -> None:
    missing = State(connection, "nowhere")
    for call in (
        lambda: missing.get(b"k"),
        lambda: missing.put(b"k", b"v", 1),
        lambda: missing.put_many([(b"k", b"v", 1)]),
        lambda: missing.seal(1),
        missing.describe,
        missing.drop,
    ):
        with pytest.raises(UnknownNamespace, match="o namespace nowhere"):
            call()


def test_a_namespace_does_not_change_its_settings(connection: psycopg.Connection[Any], state: State) -> None:
    State.create(connection, state.namespace)
    with pytest.raises(NamespaceDiffers, match="exists with ordering latest"):
        State.create(connection, state.namespace, ordering="sealed")
    with pytest.raises(NamespaceDiffers):
        State.create(connection, state.namespace, pipeline="p")
    with pytest.raises(NothingToSeal, match="nothing to seal"):
        state.seal(1)


def test_what_cannot_be_stored_is_refused(connection: psycopg.Connection[Any], state: State) -> None:
    json = State(connection, state.namespace, values="json")
    for call in (
        lambda: state.put(b"k", None, 1),
        lambda: state.put("k", b"v", 1),
        lambda: state.put(b"k", b"v", -1),
        lambda: state.put(b"k", b"v", (-1, 0)),
        lambda: state.put(b"k", b"v", 2**63),
        lambda: state.put(b"k" * 2049, b"v", 1),
        lambda: state.put_many([(b"k", b"v", 1), (b"k", "text", 2)]),
        lambda: json.put(b"k", float("nan"), 1),
        lambda: json.put(b"k", {1: 2}, 1),
        lambda: state.snapshot("file", b"k"),
        lambda: State(connection, "a\0b"),
        lambda: State.create(connection, "x" * 201),
        lambda: State.create(connection, "x", pipeline=""),
        lambda: begin_batch(connection, "a\0b"),
    ):
        with pytest.raises(InvalidState):
            call()
    assert connection.info.transaction_status == TransactionStatus.IDLE
    assert state.entry(b"k") is None
    state.put(b"k", b"{", 1)
    with pytest.raises(InvalidState, match="The stored bytes are not json"):
        json.get(b"k")


BAD_SQL: tuple[tuple[LiteralString, str], ...] = (
    ("SELECT kafka.state_put('bad', NULL, 'v', 1)", "a key has at most 2048 bytes and is not null"),
    ("SELECT kafka.state_put('bad', sha256('k') || repeat('k', 2048)::bytea, 'v', 1)", "this one has 2080"),
    ("SELECT kafka.state_put('bad', 'k', repeat('v', 67108865)::bytea, 1)", "a value has at most 67108864 bytes"),
    ("SELECT kafka.state_put('bad', 'k', 'v', -1)", r"a version is an epoch and a round of 0 or more, not \(0, -1\)"),
    ("SELECT kafka.state_put('bad', 'k', 'v', NULL)", r"not \(0, null\)"),
    ("SELECT kafka.state_put(NULL, 'k', 'v', 1)", "no namespace null"),
    ("SELECT kafka.state_get('nowhere', 'k')", "no namespace nowhere"),
    ("SELECT kafka.state_create('')", "a name of 1 to 200 bytes"),
    ("SELECT kafka.state_create('x', 'sometimes')", "ordering is latest or sealed, not sometimes"),
    ("SELECT * FROM kafka.state_put_all('bad', '{a,b}', '{x}', '{0,0}', '{1,1}')", "differ in length"),
    ("SELECT * FROM kafka.state_put_all('bad', '{a,NULL}', '{x,y}', '{0,0}', '{1,1}')", "a key has at most 2048"),
    ("SELECT * FROM kafka.state_put_all('bad', '{a,b}', '{x,y}', '{0,0}', '{1,-7}')", r"not \(0, -7\)"),
    ("SELECT * FROM kafka.state_seal('bad', 3)", "keeps the latest version"),
    ("SELECT kafka.pipeline_commit('bad', 2, '{}', '{}', '{}')", "commits batch 1 next, not 2"),
    ("SELECT kafka.pipeline_commit('bad', 1, '{1}', '{}', '{}')", "differ in length"),
    ("SELECT kafka.pipeline_go_back('bad', 7)", "has no checkpoint 7: kept are 0 to 0"),
    ("SELECT kafka.pipeline_go_back('nobody', 0)", "no pipeline nobody"),
)


@pytest.mark.parametrize(("query", "said"), BAD_SQL, ids=[said for _, said in BAD_SQL])
def test_psql_is_told_what_is_wrong(connection: psycopg.Connection[Any], query: LiteralString, said: str) -> None:
    connection.execute("SELECT kafka.state_create('bad'), kafka.pipeline_create('bad')")
    with pytest.raises(psycopg.DatabaseError, match=said):
        connection.execute(query)
    assert scalar(connection, "SELECT count(*) FROM kafka.state WHERE namespace = 'bad'") == 0


def test_a_staging_table_of_another_shape_is_refused(connection: psycopg.Connection[Any], state: State) -> None:
    connection.execute("CREATE TEMPORARY TABLE shapes (key text, value bytea, epoch bigint, round bigint)")
    for table in ("shapes", "kafka.topics", "nowhere", "no.where", "a b", ""):
        with pytest.raises(InvalidState, match="has the columns key and value"):
            apply_staged(connection, state.namespace, table)


def test_rows_that_got_lost_on_the_way_are_noticed(connection: psycopg.Connection[Any], state: State) -> None:
    connection.execute("CREATE TEMPORARY TABLE lost (key bytea, value bytea, epoch bigint, round bigint)")
    connection.execute("INSERT INTO lost VALUES ('k', 'v', 0, 1)")
    with pytest.raises(InvalidState, match="lost holds 1 of 2 rows"):
        apply_staged(connection, state.namespace, "lost", expected=2)
    assert state.entry(b"k") is None
    assert apply_staged(connection, state.namespace, "lost", expected=1) == {APPLIED: 1}


# --- in whose transaction --------------------------------------------------------------------


def test_calls_outside_a_transaction_commit_by_themselves(connect: Connect, state: State) -> None:
    idle = connect(autocommit=False)
    mine = State(idle, state.namespace)
    mine.put(b"k", b"v", 1)
    assert idle.info.transaction_status == TransactionStatus.IDLE
    assert state.get(b"k") == b"v"
    assert mine.get(b"k") == b"v"
    assert idle.info.transaction_status == TransactionStatus.IDLE


def test_calls_inside_a_transaction_leave_its_end_to_the_caller(connect: Connect, state: State, pipeline: str) -> None:
    caller = connect(autocommit=False)
    mine = State(caller, state.namespace)
    caller.execute("SELECT 1")
    begin_batch(caller, pipeline)
    mine.put(b"k", b"v", 1)
    mine.put_many([(b"l", b"v", 1)])
    commit_batch(caller, pipeline, 1, {})
    assert caller.info.transaction_status == TransactionStatus.INTRANS
    assert state.get(b"k") is None
    caller.rollback()
    assert state.get(b"k") is None
    assert [one.batch_id for one in checkpoints(caller, pipeline)] == [0]


def test_a_refusal_undoes_its_own_call_only(connect: Connect, state: State) -> None:
    caller = connect(autocommit=False)
    mine = State(caller, state.namespace)
    with caller.transaction():
        mine.put(b"a", b"1", 1)
        with pytest.raises(StateConflict):
            mine.put_many([(b"b", b"1", 1), (b"a", b"2", 1)])
        with pytest.raises(UnknownNamespace):
            State(caller, "nowhere").put(b"k", b"v", 1)
        mine.put(b"c", b"1", 1)
    assert [state.get(key) for key in (b"a", b"b", b"c")] == [b"1", None, b"1"]


# --- several at once -------------------------------------------------------------------------


def is_waiting(connection: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> bool:
    return bool(scalar(connection, "SELECT cardinality(pg_blocking_pids(%s)) > 0", other.info.backend_pid))


def put_at_once(connect: Connect, namespace: str, puts: list[tuple[bytes, int]]) -> list[Outcome]:
    start = Barrier(len(puts))

    def put(writer: State, value: bytes, version: int) -> Outcome:
        start.wait()
        return writer.put(b"k", value, version, strict=False)

    writers = [State(connect(), namespace) for _ in puts]
    with ThreadPoolExecutor(len(puts)) as threads:
        running = [threads.submit(put, writer, *one) for writer, one in zip(writers, puts, strict=True)]
        return [one.result() for one in running]


@pytest.mark.parametrize("ordering", ["latest", "sealed"])
def test_of_writers_of_one_version_exactly_one_wins(connect: Connect, ordering: str) -> None:
    first = APPLIED if ordering == "latest" else BUFFERED
    for _ in range(5):
        state = State.create(connect(), next(names), ordering=ordering)
        values = [b"%d" % number for number in range(WRITERS)]
        outcomes = put_at_once(connect, state.namespace, [(value, 1) for value in values])
        assert Counter(outcomes) == {first: 1, CONFLICT: WRITERS - 1}
        if ordering == "sealed":
            state.seal(1)
        assert state.get(b"k") == values[outcomes.index(first)]


def test_equal_puts_at_once_are_one(connect: Connect) -> None:
    state = State.create(connect(), next(names))
    outcomes = put_at_once(connect, state.namespace, [(b"same", 1)] * WRITERS)
    assert Counter(outcomes) == {APPLIED: 1, UNCHANGED: WRITERS - 1}


def test_of_versions_at_once_the_newest_stays(connect: Connect) -> None:
    state = State.create(connect(), next(names))
    state.put(b"k", b"0", 0)
    for round_ in range(1, 6):
        versions = [round_ * 10 + number for number in (2, 3, 1, 0)]
        outcomes = put_at_once(connect, state.namespace, [(b"%d" % version, version) for version in versions])
        assert outcomes[1] is APPLIED
        assert set(outcomes) <= {APPLIED, STALE}
        assert state.get(b"k") == b"%d" % (round_ * 10 + 3)


@pytest.mark.parametrize("is_new", [True, False], ids=["a new key", "a known key"])
@pytest.mark.parametrize(("end", "outcome"), [("COMMIT", CONFLICT), ("ROLLBACK", APPLIED)])
def test_a_put_waits_for_one_that_is_not_committed(
    connect: Connect, is_new: bool, end: LiteralString, outcome: Outcome
) -> None:
    observer, first, second = connect(), connect(), connect()
    state = State.create(observer, next(names))
    if not is_new:
        state.put(b"k", b"before", 0)
    first.execute("BEGIN")
    assert State(first, state.namespace).put(b"k", b"first", 1) is APPLIED
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(State(second, state.namespace).put, b"k", b"second", 1, strict=False)
        wait_for(lambda: is_waiting(observer, second), True)
        assert State(observer, state.namespace).put(b"other", b"key", 1) is APPLIED, "others go on"
        first.execute(end)
        assert waiting.result(30) is outcome
    assert state.get(b"k") == (b"first" if end == "COMMIT" else b"second")


def test_many_puts_wait_for_a_single_one_and_the_other_way_round(connect: Connect, state: State) -> None:
    observer, first, second = connect(), connect(), connect()
    one, many = State(first, state.namespace), State(second, state.namespace)
    with ThreadPoolExecutor(1) as threads:
        first.execute("BEGIN")
        one.put(b"k", b"one", 1)
        waiting: Future[Any] = threads.submit(many.put_many, [(b"k", b"many", 1), (b"l", b"x", 1)], strict=False)
        wait_for(lambda: is_waiting(observer, second), True)
        first.execute("COMMIT")
        assert waiting.result(30) == {CONFLICT: 1, APPLIED: 1}
        second.execute("BEGIN")
        many.put_many([(b"k", b"many", 2)])
        waiting = threads.submit(one.put, b"k", b"one", 2, strict=False)
        wait_for(lambda: is_waiting(observer, first), True)
        second.execute("COMMIT")
        assert waiting.result(30) is CONFLICT


def test_a_seal_waits_for_puts_and_those_after_it_are_late(connect: Connect, sealed: State) -> None:
    observer, putting, sealing = connect(), connect(), connect()
    put, seal = State(putting, sealed.namespace), State(sealing, sealed.namespace)
    with ThreadPoolExecutor(1) as threads:
        putting.execute("BEGIN")
        put.put(b"k", b"in time", 1)
        waiting: Future[Any] = threads.submit(seal.seal, 2)
        wait_for(lambda: is_waiting(observer, sealing), True)
        putting.execute("COMMIT")
        assert waiting.result(30) == 1
        sealing.execute("BEGIN")
        seal.seal(5)
        waiting = threads.submit(put.put, b"k", b"too late", 4, strict=False)
        wait_for(lambda: is_waiting(observer, putting), True)
        sealing.execute("COMMIT")
        assert waiting.result(30) is LATE
    assert sealed.get(b"k") == b"in time"


def test_a_put_during_a_commit_belongs_to_the_next_batch(connect: Connect, pipeline: str) -> None:
    observer, runner, bystander = connect(), connect(), connect()
    state = State.create(observer, next(names), pipeline=pipeline)
    runner.execute("BEGIN")
    begin_batch(runner, pipeline)
    State(runner, state.namespace).put(b"k", b"batch 1", 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(State(bystander, state.namespace).put, b"k", b"by hand", 2)
        wait_for(lambda: is_waiting(observer, bystander), True)
        commit_batch(runner, pipeline, 1, {})
        runner.execute("COMMIT")
        assert waiting.result(30) is APPLIED
    assert state.get(b"k") == b"by hand"
    assert go_back(observer, pipeline, 1) == 1
    assert state.get(b"k") == b"batch 1"


def test_one_of_two_runners_commits_a_batch(connect: Connect, pipeline: str) -> None:
    runners = [connect(), connect()]
    start = Barrier(2)

    def run(runner: psycopg.Connection[Any]) -> bool:
        start.wait()
        return commit_batch(runner, pipeline, 1, {}, rows=3)

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(run, runners)) == [False, True]
    assert [(one.batch_id, one.rows) for one in checkpoints(runners[0], pipeline)] == [(1, 3), (0, 0)]


# --- pipelines -------------------------------------------------------------------------------


def add_topic(connection: psycopg.Connection[Any], *, end: int) -> tuple[str, int]:
    name = next(names)
    topic_id = scalar(
        connection, "INSERT INTO kafka.topics (name, partition_count) VALUES (%s, 1) RETURNING topic_id", name
    )
    connection.execute(
        "INSERT INTO kafka.partitions (topic_id, partition, next_offset, last_stable_offset) VALUES (%s, 0, %s, %s)",
        [topic_id, end, end - 1],
    )
    return name, topic_id


def test_a_pipelines_lag_is_in_the_view_beside_groups(connection: psycopg.Connection[Any], pipeline: str) -> None:
    topic, topic_id = add_topic(connection, end=10)
    commit_batch(connection, pipeline, 1, {(topic_id, 0): 4}, rows=4)
    connection.execute("INSERT INTO kafka.groups (group_id) VALUES (%s)", [f"pipeline:{pipeline}"])
    connection.execute(
        "INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition, committed_offset) VALUES (%s, %s, 0, 9)",
        [f"pipeline:{pipeline}", topic_id],
    )
    found = connection.execute(
        "SELECT kind, group_id, topic, partition, committed_offset, end_offset, lag, stable_lag, state, metadata"
        " FROM kafka.consumer_lag WHERE group_id = %s ORDER BY kind",
        [f"pipeline:{pipeline}"],
    ).fetchall()
    assert found == [
        ("group", f"pipeline:{pipeline}", topic, 0, 9, 10, 1, 0, "Empty", ""),
        ("pipeline", f"pipeline:{pipeline}", topic, 0, 4, 10, 6, 5, "Pipeline", "batch 1"),
    ]
    monitored = connection.execute(statement("overview/load_lag"), {"limit": 1000}).fetchall()
    assert [row for row in monitored if row[1] == topic] == [(f"pipeline:{pipeline}", topic, 0, 4, 6)]
    of_the_group = connection.execute(statement("groups/load_lag"), {"group_id": f"pipeline:{pipeline}"}).fetchall()
    assert of_the_group == [(topic, 0, 9, 10, 1, 0)]
    connection.execute("UPDATE kafka.pipelines SET last_error = 'no', last_error_at = clock_timestamp()")
    assert scalar(connection, "SELECT state FROM kafka.consumer_lag WHERE kind = 'pipeline'") == "Failed"


def test_a_deleted_topic_has_no_position_to_go_back_to(connection: psycopg.Connection[Any], pipeline: str) -> None:
    (kept, kept_id), (_, deleted_id) = add_topic(connection, end=10), add_topic(connection, end=10)
    commit_batch(connection, pipeline, 1, {(kept_id, 0): 4, (deleted_id, 0): 5})
    commit_batch(connection, pipeline, 2, {(kept_id, 0): 6, (deleted_id, 0): 7})
    connection.execute("DELETE FROM kafka.topics WHERE topic_id = %s", [deleted_id])
    assert [one.topic_id for one in checkpoints(connection, pipeline)[1].positions] == [kept_id, deleted_id]
    go_back(connection, pipeline, 1)
    found = connection.execute(
        "SELECT topic, committed_offset FROM kafka.consumer_lag WHERE group_id = %s", [f"pipeline:{pipeline}"]
    )
    assert found.fetchall() == [(kept, 4)]


def test_checkpoints_are_bounded(connection: psycopg.Connection[Any], pipeline: str) -> None:
    state = State.create(connection, next(names), pipeline=pipeline)
    keep_checkpoints(connection, pipeline, 2)
    for batch_id in range(1, 6):
        state.put(b"k", b"%d" % batch_id, batch_id)
        commit_batch(connection, pipeline, batch_id, {})
    assert [one.batch_id for one in checkpoints(connection, pipeline)] == [5, 4]
    history = "SELECT count(*) FROM kafka.state_history WHERE namespace = %s"
    assert scalar(connection, history, state.namespace) == 1
    with pytest.raises(UnknownCheckpoint, match="has no checkpoint 3: kept are 4 to 5"):
        go_back(connection, pipeline, 3)
    go_back(connection, pipeline, 4)
    assert state.get(b"k") == b"4"
    for bad in (0, -1):
        with pytest.raises(InvalidState):
            keep_checkpoints(connection, pipeline, bad)


def test_a_reset_pipeline_starts_anew_and_a_dropped_one_is_gone(
    connection: psycopg.Connection[Any], pipeline: str
) -> None:
    _, topic_id = add_topic(connection, end=10)
    state = State.create(connection, next(names), ordering="sealed", pipeline=pipeline)
    state.put(b"k", b"v", 1)
    state.seal(1)
    state.put(b"k", b"w", 2)
    commit_batch(connection, pipeline, 1, {(topic_id, 0): 4})
    reset_pipeline(connection, pipeline)
    assert state.describe().seal is None
    assert state.entry(b"k") is None
    assert begin_batch(connection, pipeline) == 0
    assert [one.positions for one in checkpoints(connection, pipeline)] == [()]
    assert state.put(b"k", b"v", 1) is BUFFERED
    drop_pipeline(connection, pipeline)
    with pytest.raises(UnknownNamespace):
        state.get(b"k")
    for gone in (lambda: checkpoints(connection, pipeline), lambda: keep_checkpoints(connection, pipeline, 5)):
        with pytest.raises(UnknownPipeline):
            gone()
    for table in ("state", "state_history", "state_buffer"):
        left = psycopg.sql.SQL("SELECT FROM kafka.{} WHERE namespace = %s").format(psycopg.sql.Identifier(table))
        assert connection.execute(left, [state.namespace]).fetchall() == []
