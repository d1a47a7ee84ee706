"""The write path against a real database, with the races made on purpose: other writers, locks, lost answers."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from gateway.broker import appends as appends_module
from gateway.broker import plans as plans_module
from gateway.broker.appends import Append, Appended, Appends
from gateway.broker.key_gate import Keys
from gateway.broker.plans import Written
from gateway.domain.idempotency import Identity
from gateway.domain.sequences import ProducerState
from gateway.domain.sequences import Written as WrittenBatch
from gateway.errors import (
    InvalidRecord,
    KafkaError,
    NotLeaderOrFollower,
    OutOfOrderSequence,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from gateway.protocol.batches import BatchLimits, decode_produced
from gateway.storage import connections
from gateway.storage.database import Database
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.locks import partition_key
from gateway.storage.log import LogConnection, PartitionState, advance_script
from gateway.storage.script_socket import ScriptSocket
from gateway.storage.transactions import Extent
from tests.support.auditor import require_nothing_held
from tests.support.handmade import StoredRow, make_batch, stored_rows
from tests.support.transcoders import compiled_only

LIMITS = BatchLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
TIMEOUT_S = 60
TOPIC = "t"

REMEMBERED_PRODUCER = """
    CREATE TYPE kafka.remembered_producer AS (producer_id bigint, topic_id integer, partition_id integer,
        producer_epoch smallint, last_sequence integer, run_length bigint, batches text)
"""


class Gateway:
    """The part of a gateway that writes: one writer, and what it told the rest."""

    def __init__(self, database: Database, *, timeout_ms: int) -> None:
        self.written: list[Written] = []
        self.appends = Appends(
            database, writers=1, max_bytes=1 << 20, timeout_ms=timeout_ms, on_written=self.written.append
        )

    def submit(
        self, key: PartitionKey, values: Sequence[bytes], *, business_keys: Sequence[str] = (), **identity: Any
    ) -> asyncio.Future[Appended]:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if isinstance(append.outcome, Appended):
                done.set_result(append.outcome)
            elif not done.cancelled():
                assert append.outcome is not None
                done.set_exception(append.outcome)
                done.exception()  # a test may look at its other batches only

        batch = decode_produced(make_batch(values, **identity), LIMITS)
        keys = Keys([Identity("", each) for each in business_keys], retention_ms=-1) if business_keys else None
        append = Append(key, batch, on_done=tell, uses_log_append_time=False, keys=keys)
        self.appends.submit(append)
        return done

    async def append(self, key: PartitionKey, values: Sequence[bytes], **identity: Any) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return (await self.submit(key, values, **identity)).base_offset


async def as_where_nothing_can_be_sent_at_once(_: Any) -> None:
    return None


@pytest.fixture(params=[pytest.param("compiled", marks=compiled_only), "direct", "pooled", "encrypted"])
async def start(
    database_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    """Gateways whose commits are made by compiled code, of prepared statements, or by Python, of strings that are sent
    at once, and such as a pooler or an encrypted connection needs."""
    if request.param in ("pooled", "encrypted"):
        monkeypatch.setattr(ScriptSocket, "of", as_where_nothing_can_be_sent_at_once)
    async with AsyncExitStack() as stack:

        async def start(*, url: str = database_url, timeout_ms: int = 10_000) -> Gateway:
            is_prepared = request.param in ("compiled", "encrypted")
            database = Database(url, connections=2, timeout_ms=timeout_ms, prepared_statements=is_prepared)
            gateway = Gateway(database, timeout_ms=timeout_ms)
            stack.push_async_callback(gateway.appends.stop)
            return gateway

        yield start


@pytest.fixture
def key(database_url: str) -> PartitionKey:
    """Partition 0 of a topic with four."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "INSERT INTO kafka.topics (name, partition_count) VALUES (%s, 4) RETURNING topic_id", [TOPIC]
        ).fetchone()
        assert row is not None
        connection.execute(
            "INSERT INTO kafka.partitions (topic_id, partition) SELECT %s, generate_series(0, 3)", [row[0]]
        )
        connection.execute("SELECT kafka.create_topic_storage(%s)", [row[0]])
    return PartitionKey(row[0], 0)


@pytest.fixture
def producer_id(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("INSERT INTO kafka.producer_ids DEFAULT VALUES RETURNING producer_id").fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
async def holder(database_url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody else's session, for locks that are held on purpose."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        yield connection


async def until_waiting(database_url: str, sessions: int = 1) -> None:
    """Return when that many sessions of gateways wait for a lock."""
    async with (
        asyncio.timeout(TIMEOUT_S),
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
    ):
        while True:
            cursor = await connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tablewire'"
                " AND datname = current_database() AND wait_event_type = 'Lock'"
            )
            if (await cursor.fetchone() or (0,))[0] >= sessions:
                return
            await asyncio.sleep(0.01)


async def values_of(database_url: str) -> list[bytes]:
    rows = await rows_of(database_url)
    assert [row.offset for row in rows] == list(range(len(rows)))
    return [row.value for row in rows]


async def rows_of(database_url: str) -> list[StoredRow]:
    return await asyncio.to_thread(stored_rows, database_url, TOPIC)


# --- other writers ---------------------------------------------------------------------------


async def test_partition_that_another_gateway_moved_is_read_again(
    start: Callable[..., Any], key: PartitionKey, producer_id: int, database_url: str
) -> None:
    one, other = await start(), await start()
    assert await one.append(key, [b"0"], producer_id=producer_id, epoch=0, sequence=0) == 0
    assert await one.append(key, [b"1"], producer_id=producer_id, epoch=0, sequence=1) == 1  # from memory
    assert await other.append(key, [b"2", b"3"], producer_id=producer_id, epoch=0, sequence=2) == 2
    # Memory says that sequence 2 is next, at offset 2: both are old.
    assert await one.append(key, [b"2", b"3"], producer_id=producer_id, epoch=0, sequence=2) == 2
    assert await one.append(key, [b"4"], producer_id=producer_id, epoch=0, sequence=4) == 4
    assert await values_of(database_url) == [b"0", b"1", b"2", b"3", b"4"]
    # Consumers are told of what was written, never of duplicates.
    assert [batch[:2] for written in one.written for batch in written.batches] == [(0, 1), (1, 2), (4, 5)]


async def test_what_was_sent_for_a_partition_that_had_moved_is_thrown_away(
    start: Callable[..., Any], key: PartitionKey, database_url: str
) -> None:
    # More than the sockets hold: the server has refused before it came to the data.
    one, other = await start(), await start()
    values = [bytes([number]) * 900_000 for number in range(8)]
    assert await one.append(key, [b"first"]) == 0
    assert await other.append(key, [b"second"]) == 1
    async with asyncio.timeout(TIMEOUT_S):
        done = [one.submit(key, [value]) for value in values]
        assert [(await each).base_offset for each in done] == list(range(2, 10))
    assert [row.value for row in stored_rows(database_url, TOPIC)] == [b"first", b"second", *values]


async def test_duplicate_in_memory_is_not_believed_after_a_newer_epoch_came_through_another_gateway(
    start: Callable[..., Any], key: PartitionKey, producer_id: int
) -> None:
    one, other = await start(), await start()
    assert await one.append(key, [b"old"], producer_id=producer_id, epoch=0, sequence=0) == 0
    assert await other.append(key, [b"new"], producer_id=producer_id, epoch=1, sequence=0) == 1
    with pytest.raises(KafkaError, match="the producer's epoch is 1, received 0"):
        await one.append(key, [b"old"], producer_id=producer_id, epoch=0, sequence=0)


async def test_refusal_in_memory_is_not_believed_when_the_missing_batch_came_through_another_gateway(
    start: Callable[..., Any], key: PartitionKey, producer_id: int
) -> None:
    one, other = await start(), await start()
    assert await one.append(key, [b"0"], producer_id=producer_id, epoch=0, sequence=0) == 0
    assert await other.append(key, [b"1"], producer_id=producer_id, epoch=0, sequence=1) == 1
    # To the first gateway this looks like a gap.
    assert await one.append(key, [b"2"], producer_id=producer_id, epoch=0, sequence=2) == 2


async def test_producer_that_another_gateway_moved_by_repeated_keys_does_not_go_back(
    start: Callable[..., Any], key: PartitionKey, producer_id: int, database_url: str
) -> None:
    """Such batches leave the partition's end where it is, so the end does not prove where their producer is."""
    one, other = await start(), await start()

    async def append(gateway: Gateway, sequence: int, key_of_record: str) -> int:
        identity = {"producer_id": producer_id, "epoch": 0, "sequence": sequence}
        async with asyncio.timeout(TIMEOUT_S):
            return (await gateway.submit(key, [b"p"], business_keys=[key_of_record], **identity)).base_offset

    for offset, known in enumerate(("a", "b")):
        assert await other.append(key, [b"%d" % offset], business_keys=[known]) == offset
    assert await append(other, 0, "p") == 2
    assert await append(other, 0, "p") == 2  # for a second from here on it looks keys up, and it remembers the producer
    assert await append(one, 1, "a") == 0
    assert await append(one, 2, "b") == 1

    late = other.submit(key, [b"p"], business_keys=["a"], producer_id=producer_id, epoch=0, sequence=1)
    new = other.submit(key, [b"new"])
    async with asyncio.timeout(TIMEOUT_S):
        assert ((await late).base_offset, (await new).base_offset) == (0, 3)
    assert await append(one, 3, "q") == 4
    assert await values_of(database_url) == [b"0", b"1", b"p", b"new", b"p"]


async def test_many_writers_of_the_same_partitions_leave_no_gap(
    start: Callable[..., Any], key: PartitionKey, database_url: str
) -> None:
    gateways = [await start() for _ in range(3)]
    keys = [PartitionKey(key.topic_id, partition) for partition in range(4)]
    done = [
        gateway.submit(one, [b"%d" % n], producer_id=10**10 + number, epoch=0, sequence=n)
        for n in range(50)
        for one in keys
        for number, gateway in enumerate(gateways)
    ]
    plain = [gateways[n % 3].submit(keys[n % 4], [b"plain"] * 3) for n in range(300)]
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*done, *plain)
    rows = await rows_of(database_url)
    assert len(rows) == 50 * 4 * 3 + 300 * 3
    for _, of_partition in itertools.groupby(rows, key=lambda row: row.partition):
        found = list(of_partition)
        assert [row.offset for row in found] == list(range(len(found)))
        for number in range(3):
            sequences = [row.sequence for row in found if row.producer_id == 10**10 + number]
            assert sequences == list(range(50))


async def test_batch_and_its_retry_in_one_group_are_written_once(
    start: Callable[..., Any], key: PartitionKey, producer_id: int, database_url: str
) -> None:
    gateway = await start()
    done = [
        gateway.submit(key, [b"%d" % sequence], producer_id=producer_id, epoch=0, sequence=sequence)
        for sequence in (0, 0, 1, 0, 2, 1)
    ]
    async with asyncio.timeout(TIMEOUT_S):
        assert [(await one).base_offset for one in done] == [0, 0, 1, 0, 2, 1]
    assert await values_of(database_url) == [b"0", b"1", b"2"]


# --- a commit behind another -----------------------------------------------------------------


class Behind:
    """A producer's batches for two partitions; a second commit of them is sent while the database has the first."""

    def __init__(self, gateway: Gateway, key: PartitionKey, producer_id: int) -> None:
        self._gateway, self._key = gateway, key
        self._other = PartitionKey(key.topic_id, 1)
        self._producer_id = producer_id
        self._sequence = 0
        self.values: list[bytes] = []
        self.done: list[asyncio.Future[Appended]] = []

    async def write(self) -> None:
        self.submit()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*self.done)

    def submit(self) -> None:
        """A batch for either partition."""
        value = b"%d" % self._sequence
        identity = {"producer_id": self._producer_id, "epoch": 0, "sequence": self._sequence}
        self._sequence += 1
        self.values.append(value)
        self.done += [self._gateway.submit(key, [value], **identity) for key in (self._key, self._other)]

    async def submit_in_a_row(self, database_url: str) -> None:
        """Two commits, which a lock keeps from being done before both were sent."""
        (writer,) = self._gateway.appends._writers
        self.submit()
        await until_waiting(database_url)
        for _ in range(10):  # more than was answered last
            self.submit()
        async with asyncio.timeout(TIMEOUT_S):
            while len(writer._under_way) < 2:  # noqa: ASYNC110 - nobody is told that it was sent
                await asyncio.sleep(0.01)

    async def expect_all(self, database_url: str, *others: bytes) -> None:
        """Every batch is there once, in order, and answered with where it is; `others`: of somebody else."""
        async with asyncio.timeout(TIMEOUT_S):
            answers = [(await one).base_offset for one in self.done]
        rows = await rows_of(database_url)
        for partition, of_partition in ((0, answers[::2]), (1, answers[1::2])):
            found = {row.offset: row.value for row in rows if row.partition == partition}
            assert [found[offset] for offset in of_partition] == self.values
            assert of_partition == sorted(of_partition)
            assert sorted(found) == list(range(len(found)))
            assert [value for value in found.values() if value not in self.values] == (
                list(others) if partition == 0 else []
            )
        # And the next batch is judged by what is true.
        self.submit()
        async with asyncio.timeout(TIMEOUT_S):
            assert (await self.done[-1]).base_offset == len(self.values) - 1


@pytest.fixture
async def behind(database_url: str, key: PartitionKey, producer_id: int) -> AsyncIterator[Behind]:
    database = Database(database_url, connections=2, timeout_ms=10_000, prepared_statements=True)
    gateway = Gateway(database, timeout_ms=10_000)
    behind = Behind(gateway, key, producer_id)
    try:
        await behind.write()  # it is known from here on
        yield behind
    finally:
        await gateway.appends.stop()


async def write_as_another_gateway(holder: psycopg.AsyncConnection[Any], key: PartitionKey) -> None:
    """A record at offset 1."""
    await holder.execute(
        "UPDATE kafka.partitions SET next_offset = 2, last_stable_offset = 2 WHERE topic_id = %s AND partition = %s",
        list(key),
    )
    await holder.execute(
        'INSERT INTO kafka.messages (topic_id, partition, "offset", "timestamp", timestamp_type, value,'
        " is_transactional) VALUES (%s, %s, 1, now(), 0, 'theirs', false)",
        list(key),
    )


@compiled_only
async def test_a_commit_is_sent_behind_another(
    behind: Behind, key: PartitionKey, database_url: str, holder: psycopg.AsyncConnection[Any]
) -> None:
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(%s)", [partition_key(*key)])
        await behind.submit_in_a_row(database_url)
    await behind.expect_all(database_url)


@compiled_only
async def test_both_are_judged_anew_where_another_gateway_was_quicker_than_the_first(
    behind: Behind, key: PartitionKey, database_url: str, holder: psycopg.AsyncConnection[Any]
) -> None:
    """It wrote as many records as the first commit would have: the partition ends where the second one expects it."""
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(%s)", [partition_key(*key)])
        await behind.submit_in_a_row(database_url)
        await write_as_another_gateway(holder, key)
    await behind.expect_all(database_url, b"theirs")


@compiled_only
async def test_both_are_written_anew_where_the_first_fails_at_its_very_end(
    behind: Behind, key: PartitionKey, database_url: str, holder: psycopg.AsyncConnection[Any]
) -> None:
    """Its transaction is over then, so that the server itself would take the second one; and a deadlock is said to be
    the reason, so that both are tried again."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as session:
        await session.execute("CREATE SEQUENCE fails")
        await session.execute(
            "CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('fails') = 1 THEN RAISE EXCEPTION 'at the very end' USING ERRCODE = '40P01'; END IF;"
            " RETURN NULL; END $$"
        )
        await session.execute(
            "CREATE CONSTRAINT TRIGGER fails AFTER UPDATE ON kafka.partitions DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION fail_once()"
        )
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(%s)", [partition_key(*key)])
        await behind.submit_in_a_row(database_url)
    await behind.expect_all(database_url)


@compiled_only
async def test_both_are_answered_where_the_session_ends(
    behind: Behind, key: PartitionKey, database_url: str, holder: psycopg.AsyncConnection[Any]
) -> None:
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(%s)", [partition_key(*key)])
        await behind.submit_in_a_row(database_url)
        await holder.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tablewire'"
            " AND datname = current_database() AND wait_event_type = 'Lock'"
        )
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(*behind.done[2:], return_exceptions=True)
    assert all(isinstance(answer, NotLeaderOrFollower) for answer in answers), answers
    assert [row.value for row in await rows_of(database_url)] == [b"0", b"0"]


@compiled_only
async def test_what_compiled_code_does_not_judge_does_not_overtake_a_commit_that_fails(
    behind: Behind, key: PartitionKey, database_url: str, holder: psycopg.AsyncConnection[Any]
) -> None:
    gateway = behind._gateway
    (writer,) = gateway.appends._writers
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(%s)", [partition_key(*key)])
        first = gateway.submit(key, [b"first"])
        await until_waiting(database_url)
        # A producer that nobody has heard of, of as many bytes as were answered last.
        second = gateway.submit(key, [b"second" * 100], producer_id=10**10, epoch=0, sequence=0)
        async with asyncio.timeout(TIMEOUT_S):
            while writer._behind is None:  # noqa: ASYNC110 - nobody is told that it waits
                await asyncio.sleep(0.01)
        await write_as_another_gateway(holder, key)
    async with asyncio.timeout(TIMEOUT_S):
        assert [(await first).base_offset, (await second).base_offset] == [2, 3]


@compiled_only
async def test_who_waits_for_commits_under_way_is_answered_when_the_gateway_stops(
    behind: Behind, key: PartitionKey, database_url: str, holder: psycopg.AsyncConnection[Any]
) -> None:
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock(%s)", [partition_key(*key)])
        await behind.submit_in_a_row(database_url)
        behind.submit()  # one more, which nobody has taken
        async with asyncio.timeout(TIMEOUT_S):
            await behind._gateway.appends.stop()
            answers = await asyncio.gather(*behind.done[2:], return_exceptions=True)
    assert all(isinstance(answer, NotLeaderOrFollower) for answer in answers), answers


def test_a_commit_follows_only_one_that_is_in_force(key: PartitionKey, database_url: str) -> None:
    def script(*, follows: int, number: int) -> bytes:
        nothing = advance_script([], [], [], locked=False)
        return nothing.replace("('0', '0',", f"('{follows}', '{number}',", 1).encode()

    with psycopg.connect(database_url, autocommit=True) as session:
        with pytest.raises(psycopg.Error) as refused:
            session.execute(script(follows=1, number=2))
        assert refused.value.sqlstate == "TW008"
        session.execute(script(follows=0, number=3))
        session.execute(script(follows=3, number=4))
        with session.transaction(force_rollback=True):
            session.execute(script(follows=4, number=5))
        with pytest.raises(psycopg.Error) as refused:
            session.execute(script(follows=5, number=6))
        assert refused.value.sqlstate == "TW008"
        session.execute(script(follows=4, number=7))


# --- many producers --------------------------------------------------------------------------


async def test_known_and_new_producers_of_one_commit_are_all_remembered(
    start: Callable[..., Any], key: PartitionKey, database_url: str
) -> None:
    gateway = await start()
    known, new = range(10**10, 10**10 + 300), range(10**11, 10**11 + 100)

    async def write(producers: Iterable[int], values: Sequence[bytes], sequence: int) -> list[int]:
        done = [gateway.submit(key, values, producer_id=one, epoch=0, sequence=sequence) for one in producers]
        async with asyncio.timeout(TIMEOUT_S):
            return [(await one).base_offset for one in done]

    first = await write(known, [b"0"], 0)
    second, third = await asyncio.gather(write(known, [b"1", b"2"], 1), write(new, [b"0"], 0))
    expected = {one: (2, 3, [(at, 1), (then, 2)]) for one, at, then in zip(known, first, second, strict=True)}
    expected |= {one: (0, 1, [(at, 1)]) for one, at in zip(new, third, strict=True)}
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        cursor = await connection.execute(
            "SELECT producer_id, last_sequence, run_length, batches FROM kafka.producer_sequences"
        )
        found = {row[0]: (row[1], row[2], row[3]) for row in await cursor.fetchall()}
    without_times = {
        one: (last, length, [tuple(map(int, batch.split(":")[:2])) for batch in batches.split()])
        for one, (last, length, batches) in found.items()
    }
    assert without_times == expected


async def test_a_commit_into_some_of_a_topics_partitions_moves_these_and_remembers_its_producer_there(
    database_url: str, start: Callable[..., Any], key: PartitionKey, producer_id: int
) -> None:
    gateway = await start()
    keys = [PartitionKey(key.topic_id, partition) for partition in (1, 3)]
    for sequence in range(3):  # the first is not the usual kind
        identity = {"producer_id": producer_id, "epoch": 0, "sequence": sequence}
        done = [gateway.submit(one, [b"%d" % sequence], **identity) for one in keys]
        assert [(await one).base_offset for one in done] == [sequence, sequence]
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        cursor = await connection.execute(
            "SELECT p.partition, next_offset, last_stable_offset, max_timestamp, producer_epoch, last_sequence,"
            " run_length, array_length(string_to_array(batches, ' '), 1)"
            " FROM kafka.partitions p LEFT JOIN kafka.producer_sequences s ON (s.topic_id, partition_id) ="
            " (p.topic_id, p.partition) ORDER BY 1"
        )
        found = {row[0]: row[1:] for row in await cursor.fetchall()}
        newest = dict(
            await (
                await connection.execute('SELECT partition, max("timestamp") FROM kafka.messages GROUP BY 1')
            ).fetchall()
        )
    untouched = (0, 0, None, None, None, None, None)
    assert found == {0: untouched, 2: untouched} | {one: (3, 3, newest[one], 0, 2, 3, 3) for one in (1, 3)}


def test_a_producer_is_found_by_itself_however_many_others_came_since_the_session_began(
    key: PartitionKey, producer_id: int, database_url: str
) -> None:
    """What it wrote last, its transaction, and the transaction's partition."""
    others, first = 1000, 10**10

    def write(producer_id: int, sequence: int) -> bytes:
        state = ProducerState(0, sequence, 1, (WrittenBatch(sequence, sequence, sequence, 0),))
        extent = Extent(ProducerKey(*key, producer_id), 0, sequence, sequence)
        return advance_script([], [extent], [(extent.key, state)], locked=False).encode()

    def begin(session: psycopg.Connection[Any], producers: Sequence[int]) -> None:
        session.execute(
            "WITH begun AS (INSERT INTO kafka.transactions (transactional_id, producer_id, producer_epoch,"
            " transaction_timeout_ms, state, started_at)"
            " SELECT n::text, n, 0, 60000, 'Ongoing', now() FROM unnest(%s::bigint[]) AS n RETURNING producer_id)"
            " INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition)"
            " SELECT producer_id, %s, %s FROM begun",
            [list(producers), *key],
        )

    with psycopg.connect(database_url, autocommit=True) as session:
        for table in ("producer_sequences", "transactions", "transaction_partitions"):
            session.execute(f"ALTER TABLE kafka.{table} SET (autovacuum_enabled = off)".encode())
        begin(session, [first])
        session.execute(write(first, 0))  # plans are made, for tables that are nearly empty
        begin(session, range(first + 1, first + others))
        session.execute(
            "INSERT INTO kafka.producer_sequences (producer_id, topic_id, partition_id, producer_epoch, last_sequence,"
            " run_length, batches) SELECT n, %s, %s, 0, 0, 1, '0:1:0' FROM generate_series(%s::bigint, %s) AS n",
            [*key, first + 1, first + others],
        )
        begin(session, [producer_id])
        session.execute(write(producer_id, 0))
        with session.transaction():
            session.execute(write(producer_id, 1))
            fetched = session.execute(
                "SELECT relname, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = 'kafka'"
                " AND relname IN ('producer_sequences', 'transactions', 'transaction_partitions')"
            ).fetchall()
    assert len(fetched) == 3
    assert all(1 <= count < others / 10 for _, count in fetched), fetched


# --- transactions ----------------------------------------------------------------------------


class OpenTransaction:
    """A producer's transaction as other parts of a gateway leave it to the writers: begun, joined, ended."""

    def __init__(self, session: psycopg.AsyncConnection[Any], producer_id: int, gateway: Gateway) -> None:
        self._session = session
        self._producer_id = producer_id
        self._gateway = gateway
        self.epoch = 0

    async def begin(self, *keys: PartitionKey) -> None:
        await self._session.execute(
            "INSERT INTO kafka.transactions (transactional_id, producer_id, producer_epoch, transaction_timeout_ms,"
            " state, started_at) VALUES ('t', %(id)s, %(epoch)s, 60000, 'Ongoing', now())"
            " ON CONFLICT (transactional_id) DO UPDATE SET state = 'Ongoing', started_at = now()",
            {"id": self._producer_id, "epoch": self.epoch},
        )
        for key in keys:
            await self._session.execute(
                "INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition) VALUES (%s, %s, %s)",
                [self._producer_id, *key],
            )
        await self._session.commit()

    async def commit(self) -> None:
        """As KIP-890 has it: the next transaction has another epoch."""
        self.epoch += 1
        cursor = await self._session.execute(
            "SELECT topic_id, partition, next_offset, last_stable_offset, leader_epoch"
            " FROM kafka.end_transaction(%s, true, %s::smallint)",
            [self._producer_id, self.epoch],
        )
        marked = await cursor.fetchall()
        await self._session.commit()
        for topic_id, partition, next_offset, stable, leader_epoch in marked:
            state = PartitionState(0, stable, next_offset, leader_epoch)
            self._gateway.appends.marked(PartitionKey(topic_id, partition), state)

    def batch(self, sequence: int, *, epoch: int | None = None) -> dict[str, Any]:
        epoch = self.epoch if epoch is None else epoch
        return {"producer_id": self._producer_id, "epoch": epoch, "sequence": sequence, "is_transactional": True}


@pytest.fixture
async def begin(
    start: Callable[..., Any],
    key: PartitionKey,
    producer_id: int,
    holder: psycopg.AsyncConnection[Any],
) -> tuple[Gateway, OpenTransaction]:
    """A gateway that wrote two batches into an open transaction, the second by what it remembers of the first."""
    await holder.execute(
        "UPDATE kafka.producer_ids SET transactional_id = 't', transaction_timeout_ms = 60000 WHERE producer_id = %s",
        [producer_id],
    )
    gateway = await start()
    transaction = OpenTransaction(holder, producer_id, gateway)
    await transaction.begin(key)
    assert await gateway.append(key, [b"0"], **transaction.batch(0)) == 0
    assert await gateway.append(key, [b"1", b"2"], **transaction.batch(1)) == 1
    return gateway, transaction


async def test_what_is_appended_to_an_open_transaction_is_part_of_it(
    begin: tuple[Gateway, OpenTransaction], key: PartitionKey, holder: psycopg.AsyncConnection[Any], database_url: str
) -> None:
    gateway, transaction = begin
    assert await gateway.append(key, [b"plain"]) == 3  # another producer's, behind the open transaction
    assert await gateway.append(key, [b"3"], **transaction.batch(3)) == 4
    cursor = await holder.execute(
        "SELECT tp.first_offset, tp.last_offset, p.last_stable_offset, p.next_offset"
        " FROM kafka.transaction_partitions tp JOIN kafka.partitions p USING (topic_id, partition)"
    )
    assert await cursor.fetchall() == [(0, 4, 0, 5)]
    assert [written.state.last_stable_offset for written in gateway.written] == [0] * 4
    await transaction.commit()
    assert [row.sequence for row in await rows_of(database_url)] == [0, 1, 2, None, 3, None]


@compiled_only
@pytest.mark.parametrize("start", ["compiled"], indirect=True)
async def test_what_is_appended_to_a_known_transaction_is_planned_by_compiled_code(
    begin: tuple[Gateway, OpenTransaction], key: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, transaction = begin
    plans: list[Any] = []

    def spy(*arguments: Any, plan: Callable[..., Any] = appends_module.plan_usual, **keywords: Any) -> Any:
        plans.append(plan(*arguments, **keywords))
        return plans[-1]

    monkeypatch.setattr(appends_module, "plan_usual", spy)
    await gateway.append(key, [b"3"], **transaction.batch(3))
    await transaction.commit()
    await transaction.begin(key)
    await gateway.append(key, [b"0"], **transaction.batch(0))
    assert len(plans) == 2
    assert None not in plans


async def test_the_next_transaction_goes_on_with_the_next_epoch(
    begin: tuple[Gateway, OpenTransaction], key: PartitionKey, database_url: str
) -> None:
    gateway, transaction = begin
    for number in range(1, 4):
        await transaction.commit()
        await transaction.begin(key)
        base_offset = 2 * number + 2
        assert await gateway.append(key, [b"a"], **transaction.batch(0)) == base_offset
        # A retry, after which the producer goes on.
        assert await gateway.append(key, [b"a"], **transaction.batch(0)) == base_offset
    rows = await rows_of(database_url)
    assert [(row.epoch, row.sequence) for row in rows if row.sequence is not None] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
        (3, 0),
    ]


async def test_nothing_is_appended_to_a_transaction_that_has_ended(
    begin: tuple[Gateway, OpenTransaction], key: PartitionKey, database_url: str
) -> None:
    gateway, transaction = begin
    late = transaction.batch(3)
    await transaction.commit()
    with pytest.raises(KafkaError):
        await gateway.append(key, [b"late"], **late)
    assert b"late" not in [row.value for row in await rows_of(database_url)]


async def test_a_late_batch_does_not_slow_others_down(
    begin: tuple[Gateway, OpenTransaction], key: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks are taken first where another gateway is at work, which it is not."""
    gateway, transaction = begin
    late = transaction.batch(3)
    await transaction.commit()
    await gateway.append(key, [b"plain"])
    with pytest.raises(KafkaError):
        await gateway.append(key, [b"late"], **late)
    locked: list[Sequence[PartitionKey]] = []
    lock_and_load = LogConnection.lock_and_load

    async def watched(self: LogConnection, keys: Sequence[PartitionKey], producer_ids: Sequence[int]) -> Any:
        locked.append(keys)
        return await lock_and_load(self, keys, producer_ids)

    monkeypatch.setattr(LogConnection, "lock_and_load", watched)
    await gateway.append(key, [b"plain"])
    assert not locked


async def test_a_late_batch_does_not_slip_into_the_next_transaction_together_with_its_first_one(
    begin: tuple[Gateway, OpenTransaction],
    key: PartitionKey,
    holder: psycopg.AsyncConnection[Any],
    database_url: str,
) -> None:
    gateway, transaction = begin
    other = PartitionKey(key.topic_id, 1)
    assert await gateway.append(other, [b"0"]) == 0
    async with await psycopg.AsyncConnection.connect(database_url) as blocker:
        await blocker.execute("SELECT FROM kafka.partitions WHERE partition = 1 FOR UPDATE")
        blocked = gateway.submit(other, [b"1"])
        await until_waiting(database_url)
        late = gateway.submit(key, [b"late"], **transaction.batch(3))
        await transaction.commit()
        await transaction.begin(key)
        first = gateway.submit(key, [b"first"], **transaction.batch(0))
    async with asyncio.timeout(TIMEOUT_S):
        assert (await blocked).base_offset == 1
        with pytest.raises(KafkaError):
            await late
        assert (await first).base_offset == 4
    assert b"late" not in [row.value for row in await rows_of(database_url)]


# --- topics that go --------------------------------------------------------------------------


async def test_topic_deleted_meanwhile_is_unknown(
    start: Callable[..., Any], key: PartitionKey, producer_id: int, holder: psycopg.AsyncConnection[Any]
) -> None:
    gateway = await start()
    assert await gateway.append(key, [b"0"], producer_id=producer_id, epoch=0, sequence=0) == 0
    await holder.execute("DELETE FROM kafka.topics")
    await holder.commit()
    for identity in ({"producer_id": producer_id, "epoch": 0, "sequence": 1}, {}):
        with pytest.raises(UnknownTopicOrPartition):
            await gateway.append(key, [b"1"], **identity)


async def is_victim(holder: psycopg.AsyncConnection[Any], query: bytes) -> bool:
    """Close the circle of locks: whether PostgreSQL ended our transaction, not the writer's. It chooses by time."""
    try:
        await holder.execute(query)
    except psycopg.errors.DeadlockDetected:
        await holder.rollback()
        return True
    await holder.commit()
    return False


async def test_deletion_that_waits_for_a_writer_is_no_deadlock_to_producers(
    start: Callable[..., Any], key: PartitionKey, holder: psycopg.AsyncConnection[Any], database_url: str
) -> None:
    """The first batch of a producer looks at the topic's row, which a deletion holds before it wants the partition's:
    PostgreSQL ends one of them. The writer tries again."""
    gateway = await start()
    assert await gateway.append(key, [b"plain"]) == 0
    for attempt in range(1, 6):
        await holder.execute("SELECT FROM kafka.topics FOR UPDATE")
        done = gateway.submit(key, [b"x"], producer_id=10**10 + attempt, epoch=0, sequence=0)
        await until_waiting(database_url)
        was_victim = await is_victim(holder, b"DELETE FROM kafka.topics")
        async with asyncio.timeout(TIMEOUT_S):
            if not was_victim:
                with pytest.raises(UnknownTopicOrPartition):
                    await done
                return
            assert (await done).base_offset == attempt
    pytest.fail("PostgreSQL never chose the writer")


async def test_deadlock_is_invisible_to_producers(
    start: Callable[..., Any],
    key: PartitionKey,
    producer_id: int,
    holder: psycopg.AsyncConnection[Any],
    database_url: str,
) -> None:
    gateway = await start()
    assert await gateway.append(key, [b"0"], producer_id=producer_id, epoch=0, sequence=0) == 0
    for sequence in range(1, 6):
        await holder.execute("SELECT FROM kafka.producer_sequences FOR UPDATE")
        done = gateway.submit(key, [b"%d" % sequence], producer_id=producer_id, epoch=0, sequence=sequence)
        await until_waiting(database_url)
        # The writer holds the partition's row and wants the producer's.
        was_victim = await is_victim(holder, b"UPDATE kafka.partitions SET leader_epoch = leader_epoch")
        async with asyncio.timeout(TIMEOUT_S):
            assert (await done).base_offset == sequence
        assert await values_of(database_url) == [b"%d" % n for n in range(sequence + 1)]
        if not was_victim:
            return
    pytest.fail("PostgreSQL never chose the writer")


# --- bad data and unexpected errors ------------------------------------------------------------


async def test_batch_that_the_database_refuses_does_not_harm_its_group(
    start: Callable[..., Any],
    key: PartitionKey,
    producer_id: int,
    holder: psycopg.AsyncConnection[Any],
    database_url: str,
) -> None:
    await holder.execute(f"ALTER TABLE kafka.messages_{key.topic_id} ADD CHECK (value <> 'poison')".encode())
    await holder.commit()
    gateway = await start()
    good = [gateway.submit(key, [b"a"]), gateway.submit(key, [b"b"], producer_id=producer_id, epoch=0, sequence=0)]
    bad = gateway.submit(key, [b"poison"], producer_id=producer_id, epoch=0, sequence=1)
    after = gateway.submit(key, [b"c"], producer_id=producer_id, epoch=0, sequence=2)
    good.append(gateway.submit(key, [b"d"]))
    async with asyncio.timeout(TIMEOUT_S):
        assert [(await one).base_offset for one in good] == [0, 1, 2]
        with pytest.raises(InvalidRecord):
            await bad
        with pytest.raises(OutOfOrderSequence):
            await after
    assert await values_of(database_url) == [b"a", b"b", b"d"]
    assert await gateway.append(key, [b"e"], producer_id=producer_id, epoch=0, sequence=1) == 3


async def test_rows_that_take_several_statements_are_written_all_or_none(
    start: Callable[..., Any], key: PartitionKey, holder: psycopg.AsyncConnection[Any], database_url: str
) -> None:
    gateway = await start()
    values = [b"%d" % number for number in range(800)]
    assert await gateway.append(key, [b"first"]) == 0  # what follows is judged by memory

    async def append_all() -> list[Any]:
        async with asyncio.timeout(TIMEOUT_S):
            done = [gateway.submit(key, values[first : first + 100]) for first in range(0, 800, 100)]
            return await asyncio.gather(*done, return_exceptions=True)

    assert [one.base_offset for one in await append_all()] == [*range(1, 801, 100)]
    assert await values_of(database_url) == [b"first", *values]

    # The last batch meets a row that should not be there: what was copied before it is undone, and written without it.
    await holder.execute(
        'INSERT INTO kafka.messages (topic_id, partition, "offset", "timestamp", timestamp_type, is_transactional)'
        " VALUES (%s, %s, 1550, now(), 0, false)",
        key,
    )
    await holder.commit()
    *written, refused = await append_all()
    assert [one.base_offset for one in written] == [*range(801, 1501, 100)]
    assert isinstance(refused, InvalidRecord)
    await holder.execute('DELETE FROM kafka.messages WHERE "offset" = 1550')
    await holder.commit()
    assert await values_of(database_url) == [b"first", *values, *values[:700]]
    assert [one.base_offset for one in await append_all()] == [*range(1501, 2301, 100)]


async def test_writer_outlives_an_error_that_nobody_foresaw(
    start: Callable[..., Any], key: PartitionKey, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start()
    fail_once(monkeypatch, plans_module, "copy_rows")
    with pytest.raises(RuntimeError):
        await gateway.append(key, [b"0"])
    assert await gateway.append(key, [b"0"]) == 0
    assert await values_of(database_url) == [b"0"]


@compiled_only
@pytest.mark.parametrize("start", ["compiled"], indirect=True)
async def test_writer_outlives_an_error_of_compiled_code(
    start: Callable[..., Any], key: PartitionKey, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start()
    assert await gateway.append(key, [b"0"]) == 0
    fail_once(monkeypatch, appends_module, "plan_usual")
    with pytest.raises(RuntimeError):
        await gateway.append(key, [b"1"])
    assert await gateway.append(key, [b"1"]) == 1
    assert await values_of(database_url) == [b"0", b"1"]


def fail_once(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    works = getattr(module, name)

    def fail(*arguments: Any, **keywords: Any) -> None:
        monkeypatch.setattr(module, name, works)
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(module, name, fail)


async def test_marker_that_comes_while_a_batch_is_written_does_not_disturb_it(
    start: Callable[..., Any],
    key: PartitionKey,
    producer_id: int,
    holder: psycopg.AsyncConnection[Any],
    database_url: str,
) -> None:
    gateway = await start()
    assert await gateway.append(key, [b"0"], producer_id=producer_id, epoch=0, sequence=0) == 0
    await holder.execute("SELECT FROM kafka.partitions FOR UPDATE")
    done = gateway.submit(key, [b"1"], producer_id=producer_id, epoch=0, sequence=1)
    await until_waiting(database_url)
    gateway.appends.marked(key, PartitionState(0, 100, 100, 0))  # as if somebody had written far beyond
    await holder.rollback()
    async with asyncio.timeout(TIMEOUT_S):
        assert (await done).base_offset == 1
    assert await gateway.append(key, [b"2"], producer_id=producer_id, epoch=0, sequence=2) == 2


# --- unknown outcomes --------------------------------------------------------------------------


async def test_writer_that_waited_too_long_leaves_nothing_behind(
    start: Callable[..., Any],
    key: PartitionKey,
    producer_id: int,
    holder: psycopg.AsyncConnection[Any],
    database_url: str,
) -> None:
    gateway = await start(timeout_ms=300)

    async def retry(value: bytes, sequence: int) -> int:
        """As clients do: on a busy machine, time may be over without anybody in the way."""
        while True:
            with suppress(RequestTimedOut, NotLeaderOrFollower):
                return await gateway.append(key, [value], producer_id=producer_id, epoch=0, sequence=sequence)

    assert await retry(b"0", 0) == 0
    await holder.execute("SELECT FROM kafka.partitions FOR UPDATE")
    for _ in range(3):
        with pytest.raises((RequestTimedOut, NotLeaderOrFollower)):
            await gateway.append(key, [b"1"], producer_id=producer_id, epoch=0, sequence=1)
    await holder.rollback()
    await asyncio.to_thread(require_nothing_held, database_url)
    assert await retry(b"1", 1) == 1
    assert await retry(b"1", 1) == 1
    assert await values_of(database_url) == [b"0", b"1"]


async def test_commits_of_a_session_that_lost_its_prepared_statements_are_written_by_another(
    behind: Behind, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (writer,) = behind._gateway.appends._writers
    opened = []
    open_connection = LogConnection.open

    async def open_one_more(*args: Any, **kwargs: Any) -> LogConnection:
        opened.append(await open_connection(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(LogConnection, "open", open_one_more)
    await writer._connection._connection.execute("DEALLOCATE ALL")
    behind.submit()
    for _ in range(3):  # it is sent, and the next one behind it
        await asyncio.sleep(0)
        behind.submit()
    await behind.expect_all(database_url)
    assert len(opened) == 1


@compiled_only
async def test_statements_prepared_for_what_was_made_anew_are_replaced(
    behind: Behind, database_url: str, holder: psycopg.AsyncConnection[Any]
) -> None:
    """As by a restored dump: a type of the same name has another number."""
    (writer,) = behind._gateway.appends._writers
    session = writer._connection
    session.usual_commit = session.usual_commit._replace(bind_topic=b"")  # the other statement has no such types
    await behind.write()
    row = await (await holder.execute("SELECT pg_get_functiondef('kafka.advance_partitions'::regproc)")).fetchone()
    assert row is not None
    await holder.execute("DROP PROCEDURE kafka.advance_partitions")
    await holder.execute("ALTER TYPE kafka.remembered_producer RENAME TO remembered_before")
    await holder.execute(REMEMBERED_PRODUCER)
    await holder.execute("DROP TYPE kafka.remembered_before")
    await holder.execute(row[0])
    await holder.commit()
    behind.submit()
    for _ in range(3):
        await asyncio.sleep(0)
        behind.submit()
    await behind.expect_all(database_url)
    assert writer._connection is not session
    assert writer._connection.takes_messages


@compiled_only
async def test_where_statements_cannot_be_prepared_commits_are_strings(
    database_url: str, start: Callable[..., Any], key: PartitionKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Database.connect

    async def connect_as_others_left_it(self: Database) -> Any:
        connection = await connect(self)
        await connection.execute("PREPARE begin AS SELECT 1")
        return connection

    def begin(*_: Any) -> None:
        raise AssertionError("it was sent as messages")

    monkeypatch.setattr(Database, "connect", connect_as_others_left_it)
    monkeypatch.setattr(LogConnection, "begin", begin)
    gateway = await start()
    assert [await gateway.append(key, [value]) for value in (b"0", b"1")] == [0, 1]
    assert await values_of(database_url) == [b"0", b"1"]


async def test_a_server_that_falls_silent_while_a_writer_connects_is_given_up(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a network that drops everything, without a word to either side."""
    database = Database(database_url, connections=2, timeout_ms=300, prepared_statements=True)
    connected: list[psycopg.AsyncConnection[Any]] = []
    connect = Database.connect

    async def connect_and_lose_the_server(self: Database) -> Any:
        connected.append(await connect(self))
        # What is at the other end is ours, and nobody listens there.
        ours, silent = socket.socketpair()
        ours.setblocking(False)
        ends.append(silent)
        os.dup2(ours.fileno(), connected[-1].pgconn.socket)
        ours.close()
        return connected[-1]

    ends: list[socket.socket] = []
    monkeypatch.setattr(Database, "connect", connect_and_lose_the_server)
    monkeypatch.setattr(connections, "CANCEL_SECONDS", 0.1)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(TimeoutError):
            await LogConnection.open(database, timeout_ms=300)
    assert connected[0].closed
    for end in ends:
        end.close()


@compiled_only
async def test_a_writer_outlives_what_nobody_foresaw(
    behind: Behind, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr(LogConnection, "begin", fail)
        patched.setattr(LogConnection, "roll_back", fail)
        behind.submit()
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(RuntimeError):
                await behind.done[-1]
    del behind.done[-2:], behind.values[-1]
    behind._sequence -= 1
    behind.submit()
    await behind.expect_all(database_url)


async def test_terminated_session_costs_one_refusal(
    start: Callable[..., Any], key: PartitionKey, producer_id: int, database_url: str
) -> None:
    gateway = await start()
    assert await gateway.append(key, [b"0"], producer_id=producer_id, epoch=0, sequence=0) == 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'tablewire' AND datname = current_database()"
        )
    with pytest.raises(NotLeaderOrFollower):
        await gateway.append(key, [b"1"], producer_id=producer_id, epoch=0, sequence=1)
    assert await gateway.append(key, [b"1"], producer_id=producer_id, epoch=0, sequence=1) == 1
    assert await values_of(database_url) == [b"0", b"1"]


async def test_what_follows_a_batch_that_was_not_written_is_no_gap(
    start: Callable[..., Any], key: PartitionKey, producer_id: int, database_url: str
) -> None:
    """It came before anybody was told that the first one failed: the client sends both again."""
    gateway = await start()
    assert await gateway.append(key, [b"0"], producer_id=producer_id, epoch=0, sequence=0) == 0
    async with await psycopg.AsyncConnection.connect(database_url) as holder:
        await holder.execute("SELECT FROM kafka.partitions FOR UPDATE")
        first = gateway.submit(key, [b"1"], producer_id=producer_id, epoch=0, sequence=1)
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
            waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            async with asyncio.timeout(TIMEOUT_S):
                while (await (await other.execute(f"SELECT count(*) {waiting}".encode())).fetchone()) != (1,):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)
            rest = [gateway.submit(key, [b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) for n in range(2, 5)]
            await asyncio.sleep(0.01)  # a commit may be sent behind the one that waits
            await other.execute(f"SELECT pg_terminate_backend(pid, 5000) {waiting}".encode())
        async with asyncio.timeout(TIMEOUT_S):
            outcomes = await asyncio.gather(first, *rest, return_exceptions=True)
        assert [type(one) for one in outcomes] == [NotLeaderOrFollower] * 4
    for n in range(1, 5):
        assert await gateway.append(key, [b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) == n


@asynccontextmanager
async def losing_commits(database_url: str, lost: list[int]) -> AsyncIterator[str]:
    """A way to the database on which the answer to a COMMIT is lost, with the connection, `lost[0]` times."""
    address = urlsplit(database_url)
    committed = b"C\x00\x00\x00\x0bCOMMIT\x00"

    async def pipe(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *others: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if is_answer and lost[0] > 0 and committed in data:
                    lost[0] -= 1
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            for one in (writer, *others):
                one.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(address.hostname, address.port)
        await asyncio.gather(
            pipe(reader, server_writer, is_answer=False), pipe(server_reader, writer, server_writer, is_answer=True)
        )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield urlunsplit(address._replace(netloc=f"{address.username}:{address.password}@127.0.0.1:{port}"))
    finally:
        server.close()


async def test_lost_answer_to_a_commit_is_found_out_by_the_retry(
    start: Callable[..., Any], key: PartitionKey, producer_id: int, database_url: str
) -> None:
    """The gateway cannot know whether the batch was written; what it remembers must not matter."""
    lost = [0]
    async with losing_commits(database_url, lost) as url:
        gateway = await start(url=url)
        for n in range(6):
            lost[0] = n % 3
            outcomes: list[int | None] = []
            while not outcomes or outcomes[-1] is None:
                try:
                    outcomes.append(
                        await gateway.append(
                            key, [b"%d" % n, b"%d'" % n], producer_id=producer_id, epoch=0, sequence=n * 2
                        )
                    )
                except NotLeaderOrFollower:
                    outcomes.append(None)
            assert outcomes[-1] == n * 2
            # Lost once at most: the retry only reads, so its answer is not lost the same way.
            assert outcomes.count(None) == min(1, n % 3)
        lost[0] = 0
        assert await values_of(database_url) == [one for n in range(6) for one in (b"%d" % n, b"%d'" % n)]
