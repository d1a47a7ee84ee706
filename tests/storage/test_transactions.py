"""Transactions in PostgreSQL: who waits for whom, what becomes true together, and that the statements make exactly the
transitions that the rules decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.broker.transactions import Transactions
from gateway.domain.connections import NewestConnections
from gateway.domain.producers import LAST_EPOCH, Producer
from gateway.domain.transactions import State
from gateway.errors import KafkaError
from gateway.storage import transactions as storage
from gateway.storage.database import Database
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import advance_script
from gateway.storage.transactions import AbortedRange, Extent, Marked, PendingOffset
from tests.support.waiting import wait_for
from tests.unit.domain.test_transactions import NOBODY, Server

Connection = psycopg.Connection[Any]
PRODUCER = 500
OTHER_PRODUCER = 501


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, connections=4, timeout_ms=10_000, prepared_statements=True)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def connect(database_url: str) -> Callable[[], AbstractContextManager[Connection]]:
    @contextmanager
    def open_one() -> Iterator[Connection]:
        with psycopg.connect(database_url, autocommit=True) as connection:
            yield connection

    return open_one


@pytest.fixture
def session(connect: Callable[[], AbstractContextManager[Connection]]) -> Iterator[Connection]:
    with connect() as connection:
        yield connection


@pytest.fixture
def topic_id(session: Connection) -> int:
    """A topic of three partitions with its storage."""
    ((topic_id,),) = session.execute(
        "WITH made AS (INSERT INTO kafka.topics (name, partition_count) VALUES ('t', 3) RETURNING topic_id)"
        " INSERT INTO kafka.partitions (topic_id, partition) SELECT topic_id, 0 FROM made RETURNING topic_id"
    ).fetchall()
    session.execute("INSERT INTO kafka.partitions (topic_id, partition) SELECT %s, generate_series(1, 2)", [topic_id])
    session.execute("SELECT kafka.create_topic_storage(%s)", [topic_id])
    return int(topic_id)


def begin(session: Connection, producer_id: int, *, name: str | None = None, timeout_ms: int = 60_000) -> None:
    session.execute(
        "INSERT INTO kafka.producer_ids (producer_id, transactional_id, transaction_timeout_ms)"
        " OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s)",
        [producer_id, name or f"id-{producer_id}", timeout_ms],
    )
    session.execute(
        "INSERT INTO kafka.transactions (transactional_id, producer_id, producer_epoch, transaction_timeout_ms, state,"
        " started_at) VALUES (%s, %s, 0, %s, 'Ongoing', now())",
        [name or f"id-{producer_id}", producer_id, timeout_ms],
    )


def write(session: Connection, producer_id: int, topic_id: int, partition: int, count: int = 1) -> None:
    """As a gateway's commit does it, without the records themselves."""
    key = PartitionKey(topic_id, partition)
    session.execute(
        "INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition) VALUES (%s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        [producer_id, topic_id, partition],
    )
    with session.transaction():
        session.execute("SELECT pg_advisory_xact_lock((%s::bigint << 32) | %s)", [topic_id, partition])
        ((next_offset,),) = session.execute(
            "UPDATE kafka.partitions SET next_offset = next_offset + %s WHERE topic_id = %s AND partition = %s"
            " RETURNING next_offset",
            [count, topic_id, partition],
        ).fetchall()
        extent = Extent(ProducerKey(*key, producer_id), 0, next_offset - count, next_offset - 1)
        session.execute(advance_script([], [extent], locked=False).encode())


def end(session: Connection, producer_id: int, *, commit: bool, next_epoch: int = 0) -> list[tuple[Any, ...]]:
    return session.execute(
        "SELECT partition, next_offset, last_stable_offset FROM kafka.end_transaction(%s, %s, %s::smallint)"
        " ORDER BY partition",
        [producer_id, commit, next_epoch],
    ).fetchall()


def waiting(session: Connection) -> int:
    ((count,),) = session.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchall()
    return int(count)


# --- one instant -----------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_is_seen_by_nobody_before_its_commit_and_whole_after_it(
    commit: bool, session: Connection, connect: Callable[[], AbstractContextManager[Connection]], topic_id: int
) -> None:
    begin(session, PRODUCER)
    for partition in range(3):
        write(session, PRODUCER, topic_id, partition, count=2)
    session.execute(
        "INSERT INTO kafka.transaction_offsets (producer_id, group_id, topic_id, partition, committed_offset)"
        " SELECT %s, 'g' || n, %s, 0, 40 + n FROM generate_series(1, 3) n",
        [PRODUCER, topic_id],
    )

    def seen(reader: Connection) -> tuple[Any, ...]:
        ((found),) = reader.execute(
            "SELECT (SELECT array_agg(last_stable_offset ORDER BY partition) FROM kafka.partitions),"
            " (SELECT count(*) FROM kafka.messages WHERE control_type IS NOT NULL),"
            " (SELECT count(*) FROM kafka.aborted_transactions), (SELECT count(*) FROM kafka.consumer_offsets),"
            " (SELECT state FROM kafka.transactions), (SELECT count(*) FROM kafka.transaction_partitions),"
            " (SELECT count(*) FROM kafka.transaction_offsets)"
        ).fetchall()
        return found  # type: ignore[no-any-return]

    before = ([0, 0, 0], 0, 0, 0, "Ongoing", 3, 3)
    with connect() as reader, session.transaction():
        assert end(session, PRODUCER, commit=commit) == [(n, 3, 3) for n in range(3)]
        assert seen(reader) == before
    state = "CompleteCommit" if commit else "CompleteAbort"
    assert seen(session) == ([3, 3, 3], 3, 0 if commit else 3, 3 if commit else 0, state, 0, 0)


def test_an_end_that_fails_has_not_happened(session: Connection, topic_id: int) -> None:
    begin(session, PRODUCER)
    write(session, PRODUCER, topic_id, 0)
    session.execute("ALTER TABLE kafka.transaction_counters ADD CONSTRAINT none CHECK (committed < 1)")
    with pytest.raises(psycopg.errors.CheckViolation):
        end(session, PRODUCER, commit=True)
    session.execute("ALTER TABLE kafka.transaction_counters DROP CONSTRAINT none")
    assert end(session, PRODUCER, commit=True) == [(0, 2, 2)]


def test_a_second_end_writes_nothing(session: Connection, topic_id: int) -> None:
    begin(session, PRODUCER)
    write(session, PRODUCER, topic_id, 1)
    assert end(session, PRODUCER, commit=False) == [(1, 2, 2)]
    assert end(session, PRODUCER, commit=False) == []
    ((stats),) = session.execute("SELECT committed, aborted, timed_out FROM kafka.transaction_stats").fetchall()
    assert stats == (0, 1, 0)


async def test_aborted_ranges_are_bounded_and_found_by_where_they_begin(
    session: Connection, database: Database, topic_id: int
) -> None:
    for producer_id in (PRODUCER, OTHER_PRODUCER):
        begin(session, producer_id)
    write(session, PRODUCER, topic_id, 0, count=2)
    write(session, OTHER_PRODUCER, topic_id, 0)
    write(session, PRODUCER, topic_id, 0)
    assert end(session, PRODUCER, commit=False) == [(0, 5, 2)]
    key = PartitionKey(topic_id, 0)
    found = await storage.load_aborted(database, key, ending_from=0, beginning_from=0, beginning_before=2)
    assert found == [AbortedRange(PRODUCER, 0, 4)]
    assert await storage.load_aborted(database, key, ending_from=5, beginning_from=0, beginning_before=9) == []
    assert await storage.load_aborted(database, key, ending_from=0, beginning_from=1, beginning_before=9) == []
    assert end(session, OTHER_PRODUCER, commit=False) == [(0, 6, 6)]
    found = await storage.load_aborted(database, key, ending_from=0, beginning_from=0, beginning_before=9)
    assert found == [AbortedRange(PRODUCER, 0, 4), AbortedRange(OTHER_PRODUCER, 2, 5)]


# --- who waits for whom ----------------------------------------------------------------------


def test_the_end_waits_for_an_append_and_takes_it_along(
    session: Connection, connect: Callable[[], AbstractContextManager[Connection]], topic_id: int
) -> None:
    begin(session, PRODUCER)
    write(session, PRODUCER, topic_id, 0)
    extent = Extent(ProducerKey(topic_id, 0, PRODUCER), 0, 1, 3)
    with connect() as appending, connect() as ending, ThreadPoolExecutor(1) as pool:
        with appending.transaction():
            appending.execute(advance_script([], [extent], locked=False).encode())
            ended = pool.submit(end, ending, PRODUCER, commit=True)
            wait_for(lambda: waiting(session), 1)
            appending.execute(
                "UPDATE kafka.partitions SET next_offset = 4 WHERE topic_id = %s AND partition = 0", [topic_id]
            )
        assert ended.result(60) == [(0, 5, 5)]


def test_an_append_waits_for_the_end_and_is_undone(
    session: Connection, connect: Callable[[], AbstractContextManager[Connection]], topic_id: int
) -> None:
    begin(session, PRODUCER)
    write(session, PRODUCER, topic_id, 0)
    extent = Extent(ProducerKey(topic_id, 0, PRODUCER), 0, 1, 3)
    with connect() as appending, connect() as ending, ThreadPoolExecutor(1) as pool:
        with ending.transaction():
            end(ending, PRODUCER, commit=True)
            shared = pool.submit(appending.execute, advance_script([], [extent], locked=False).encode())
            wait_for(lambda: waiting(session), 1)
        with pytest.raises(psycopg.Error, match="is not open"):
            shared.result(60)
        with pytest.raises(psycopg.Error, match="is not in the transaction"):
            appending.execute(advance_script([], [extent], locked=True).encode())


def test_appends_of_one_transaction_do_not_wait_for_each_other(
    connect: Callable[[], AbstractContextManager[Connection]], session: Connection, topic_id: int
) -> None:
    begin(session, PRODUCER)
    for partition in (0, 1):
        write(session, PRODUCER, topic_id, partition)
    with connect() as first, connect() as second, first.transaction(), second.transaction():
        for partition, connection in enumerate((first, second)):
            connection.execute("SET LOCAL lock_timeout = '2s'")
            extent = Extent(ProducerKey(topic_id, partition, PRODUCER), 0, 1, 1)
            connection.execute(advance_script([], [extent], locked=False).encode())


def test_ends_over_the_same_partitions_do_not_deadlock(
    connect: Callable[[], AbstractContextManager[Connection]], session: Connection, topic_id: int
) -> None:
    for round_number in range(10):
        producers = [PRODUCER + 10 * round_number + n for n in range(4)]
        for number, producer_id in enumerate(producers):
            begin(session, producer_id)
            for partition in (range(3), reversed(range(3)))[number % 2]:
                write(session, producer_id, topic_id, partition)

        def end_one(producer_id: int) -> list[tuple[Any, ...]]:
            with connect() as connection:
                return end(connection, producer_id, commit=producer_id % 2 == 0)

        with ThreadPoolExecutor(4) as pool:
            assert [len(marked) for marked in pool.map(end_one, producers)] == [3] * 4
    offsets = session.execute("SELECT next_offset, last_stable_offset FROM kafka.partitions").fetchall()
    assert offsets == [(80, 80)] * 3


# --- time ------------------------------------------------------------------------------------


def _transactions(
    database: Database,
    *,
    on_marked: Callable[[Marked, bytes], None] | None = None,
    connections: NewestConnections | None = None,
) -> Transactions:
    return Transactions(
        database,
        max_timeout_ms=900_000,
        max_open_per_client=100,
        on_marked=on_marked or (lambda *_: None),
        connections=connections or NewestConnections(gateway=1),
    )


async def test_a_producer_appends_without_asking_where_it_has_asked_before(database: Database, topic_id: int) -> None:
    connections = NewestConnections(gateway=1)
    older, newer = connections.accept(), connections.accept()
    transactions = _transactions(database, connections=connections)
    producer = await transactions.init("a", Producer(-1, -1), timeout_ms=60_000, client_id=None)
    key, other = PartitionKey(topic_id, 0), PartitionKey(topic_id, 1)

    def may_append(key: PartitionKey, name: str = "a", *, epoch: int = 0, adds: bool, connection: int = newer) -> bool:
        return key in transactions.find_joined(name, producer.id, epoch, adds_by_producing=adds, connection=connection)

    assert not may_append(key, adds=True)
    await transactions.add_implicitly("a", producer, key, list, client_id=None)
    assert may_append(key, adds=True)
    assert not may_append(other, adds=True)
    assert not may_append(key, "b", adds=True)
    assert not may_append(key, epoch=1, adds=True)
    await transactions.end("a", producer, commit=True, bump_epoch=True)
    assert not may_append(key, adds=True)

    assert not may_append(key, adds=False)  # whose producer it is nobody has asked yet
    await transactions.require_name("a", producer.id)
    assert may_append(key, adds=False, connection=older)
    assert may_append(key, adds=False)
    assert not may_append(key, "b", adds=False)
    assert not may_append(key, adds=False, connection=older)  # it has a newer one


async def test_sweepers_of_several_gateways_abort_each_transaction_once(
    session: Connection, database: Database, topic_id: int
) -> None:
    for number in range(20):
        begin(session, PRODUCER + number, timeout_ms=1 if number % 2 else 60_000)
        write(session, PRODUCER + number, topic_id, number % 3)
    await asyncio.sleep(0.01)
    marked: list[Marked] = []
    sweepers = [_transactions(database, on_marked=lambda one, _: marked.append(one)) for _ in range(3)]
    assert sum(await asyncio.gather(*(sweeper.sweep_once() for sweeper in sweepers))) == 10
    assert sorted(one.producer_id for one in marked) == [PRODUCER + number for number in range(1, 20, 2)]
    found = session.execute(
        "SELECT state, count(*), min(producer_epoch), max(producer_epoch) FROM kafka.transactions GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert found == [("CompleteAbort", 10, 1, 1), ("Ongoing", 10, 0, 0)]
    ((timed_out,),) = session.execute("SELECT timed_out FROM kafka.transaction_stats").fetchall()
    assert timed_out == 10


async def test_one_that_is_held_for_long_does_not_keep_the_sweeper_from_the_others(
    session: Connection, database: Database, connect: Callable[[], AbstractContextManager[Connection]]
) -> None:
    for number in range(3):
        begin(session, PRODUCER + number, timeout_ms=1)
    await asyncio.sleep(0.01)
    with connect() as holder, holder.transaction():
        holder.execute("SELECT FROM kafka.transactions WHERE producer_id = %s FOR SHARE", [PRODUCER])
        assert await _transactions(database).sweep_once() == 2
    assert await _transactions(database).sweep_once() == 1


async def test_a_transaction_that_ended_while_the_sweeper_waited_is_left_alone(
    session: Connection,
    database: Database,
    connect: Callable[[], AbstractContextManager[Connection]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.broker.transactions.SWEEP_WAIT_MS", 60_000)  # it waits until it is seen to wait
    begin(session, PRODUCER, timeout_ms=1)
    await asyncio.sleep(0.01)
    with connect() as ending, ending.transaction():
        end(ending, PRODUCER, commit=True)
        sweeping = asyncio.create_task(_transactions(database).sweep_once())
        await asyncio.to_thread(wait_for, lambda: waiting(session), 1)
    assert await sweeping == 0
    assert session.execute("SELECT state, producer_epoch FROM kafka.transactions").fetchall() == [("CompleteCommit", 0)]


# --- offsets ---------------------------------------------------------------------------------


async def test_offsets_of_a_deleted_topic_are_left_out(session: Connection, database: Database, topic_id: int) -> None:
    begin(session, PRODUCER)
    async with database.transaction() as source:
        offsets = [PendingOffset(PartitionKey(each, 0), 7, -1, "") for each in (topic_id, topic_id + 1000)]
        await storage.add_offsets(source, PRODUCER, "g", offsets)
    found = session.execute("SELECT topic_id, committed_offset FROM kafka.transaction_offsets").fetchall()
    assert found == [(topic_id, 7)]


# --- the statements make the transitions that the rules decide -------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "recover", "add", "commit", "abort", "commit v5", "abort v5", "time is over"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epoch=st.sampled_from([0, LAST_EPOCH - 2, LAST_EPOCH - 1]), steps=STEPS)
def test_the_row_is_what_the_rules_say(
    database_url: str, session: Connection, epoch: int, steps: list[tuple[str, int]]
) -> None:
    session.execute("TRUNCATE kafka.transactions, kafka.producer_ids, kafka.producer_sequences CASCADE")
    asyncio.run(_compare(database_url, session, epoch, steps))


async def _compare(database_url: str, session: Connection, epoch: int, steps: list[tuple[str, int]]) -> None:
    database = Database(database_url, connections=2, timeout_ms=10_000, prepared_statements=True)
    await database.open()
    try:
        real, model = _transactions(database), Server(epoch)
        first = await real.init("id", NOBODY, timeout_ms=60_000, client_id=None)
        for table in ("transactions", "producer_ids"):
            session.execute(f"UPDATE kafka.{table} SET producer_epoch = %s".encode(), [epoch])
        ids = {7: first.id}  # the model's to ours
        told = [Producer(7, epoch)]
        for step, back in steps:
            asked = told[max(0, len(told) - 1 - back)]
            ours = Producer(ids[asked.id], asked.epoch)
            expected = await _try(_in_model, model, step, asked)
            found = await _try(_for_real, real, session, step, ours)
            if isinstance(expected, Producer):
                assert isinstance(found, Producer), (step, found)
                assert ids.setdefault(expected.id, found.id) == found.id
                assert expected.epoch == found.epoch
                told.append(expected)
            else:
                assert type(found) is type(expected), (step, found, expected)
            _require_same_row(session, model, ids)
    finally:
        await database.close()


async def _try(function: Callable[..., Any], *arguments: object) -> Any:
    try:
        result = function(*arguments)
        return await result if asyncio.iscoroutine(result) else result
    except KafkaError as error:
        return error


def _in_model(model: Server, step: str, asked: Producer) -> Producer | None:
    kind, _, version = step.partition(" ")
    if step in ("start", "recover"):
        return model.init(asked if step == "recover" else NOBODY)
    if step == "add":
        model.add(asked)
    elif step == "time is over":
        if model.known is not None and model.known.is_open:
            model.abort()
    else:
        return model.end(asked, commit=kind == "commit", bump_epoch=bool(version))
    return None


async def _for_real(real: Transactions, session: Connection, step: str, asked: Producer) -> Producer | None:
    kind, _, version = step.partition(" ")
    if step in ("start", "recover"):
        return await real.init("id", asked if step == "recover" else NOBODY, timeout_ms=60_000, client_id=None)
    if step == "add":
        await real.add_partitions("id", asked, [], client_id=None)
    elif step == "time is over":
        session.execute("UPDATE kafka.transactions SET started_at = started_at - interval '1 hour'")
        await real.sweep_once()
    else:
        return await real.end("id", asked, commit=kind == "commit", bump_epoch=bool(version))
    return None


def _require_same_row(session: Connection, model: Server, ids: dict[int, int]) -> None:
    ((row),) = session.execute(
        "SELECT producer_id, producer_epoch, state, previous_epoch, ended_epoch, previous_producer_id,"
        " started_at IS NOT NULL FROM kafka.transactions"
    ).fetchall()
    known = model.known
    assert known is not None
    previous_id = None if known.previous_producer_id is None else ids[known.previous_producer_id]
    producer_id = ids.setdefault(known.producer.id, row[0])
    assert row == (
        producer_id,
        known.producer.epoch,
        known.state.value,
        known.previous_epoch,
        known.ended_epoch,
        previous_id,
        known.state is State.ONGOING,
    )
    named = session.execute(
        "SELECT producer_id, producer_epoch FROM kafka.producer_ids WHERE transactional_id = 'id'"
    ).fetchall()
    assert named == [(producer_id, known.producer.epoch)]


# --- the view --------------------------------------------------------------------------------


def test_each_committed_row_costs_one_look_at_the_aborted_ones(session: Connection, topic_id: int) -> None:
    session.execute(
        "INSERT INTO kafka.aborted_transactions (topic_id, partition, producer_id, first_offset, last_offset)"
        " SELECT %s, 0, %s, n * 10, n * 10 + 4 FROM generate_series(0, 20000) n",
        [topic_id, PRODUCER],
    )
    session.execute("ANALYZE kafka.aborted_transactions")
    plan = "\n".join(
        row[0]
        for row in session.execute(
            "EXPLAIN SELECT * FROM kafka.committed_messages WHERE topic = 't' AND partition = 0 AND \"offset\" > 100"
        ).fetchall()
    )
    assert "Limit" in plan
    assert "Index Scan Backward using aborted_transactions_producer" in plan
    assert "Seq Scan on aborted_transactions" not in plan
