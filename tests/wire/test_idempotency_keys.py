"""The produce gate over the wire: hand-made batches whose records carry business keys, real gateways, a real database.

Where it matters each request goes to the other gateway than the last.
"""

from __future__ import annotations

import itertools
import re
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, LiteralString, NamedTuple

import psycopg
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from gateway import failpoints
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import INVALID_RECORD, OLD_EPOCH, Outcome
from tests.support.handmade_transactions import (
    CLASSIC,
    KIP_890,
    NOBODY,
    NONE,
    Generation,
    Producer,
    TransactionConnection,
)
from tests.support.waiting import wait_for

TRY_AGAIN = 19
"""NOT_ENOUGH_REPLICAS: every client sends the batch again."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

Connection = psycopg.Connection[Any]
Doomed = Callable[[str], TransactionConnection]


@pytest.fixture(scope="module")
def gateways(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Two gateways on a database of this module's own."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(start(module_database_url, tmp_path_factory.mktemp("keys"), node_id))
            for node_id in (1, 2)
        ]


def start(url: str, directory: Path, node_id: int, failpoint: str | None = None) -> GatewayProcess:
    settings = {"TABLEWIRE_NODE_ID": str(node_id)}
    if failpoint is not None:
        settings["TABLEWIRE_TEST_FAILPOINT"] = failpoint
    return GatewayProcess(url, directory=directory, name=f"gateway-{node_id}", settings=settings)


@pytest.fixture
def one(gateways: list[GatewayProcess]) -> Iterator[TransactionConnection]:
    with TransactionConnection(gateways[0].bootstrap) as connection:
        yield connection


@pytest.fixture
def two(gateways: list[GatewayProcess]) -> Iterator[TransactionConnection]:
    with TransactionConnection(gateways[1].bootstrap) as connection:
        yield connection


@pytest.fixture
def database(module_database_url: str) -> Iterator[Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def topic(one: TransactionConnection) -> str:
    return create_topic(one, partitions=2)


def create_topic(connection: TransactionConnection, *, partitions: int = 1, **configs: str) -> str:
    """A topic that asks for keys."""
    configs = {"idempotency_keys_enable": "true", **configs}
    return connection.create_topic(f"keys-{uuid.uuid4().hex[:12]}", partitions=partitions, **configs)


class Sent(NamedTuple):
    """A record: its value, and the headers that name it."""

    value: str
    headers: list[tuple[str, bytes | None]]


def keyed(key: str | None, value: str = "v", *, tenant: str | None = None) -> Sent:
    headers: list[tuple[str, bytes | None]] = [("trace", b"x")]
    if key is not None:
        headers.append(("idempotency-key", key.encode()))
    if tenant is not None:
        headers.append(("tenant-id", tenant.encode()))
    return Sent(value, headers)


def make_batch(
    records: Sequence[Sent],
    producer: Producer = NOBODY,
    *,
    sequence: int = -1,
    transactional: bool = False,
    compression: int = 0,
) -> bytes:
    builder = DefaultRecordBatchBuilder(2, compression, transactional, producer.id, producer.epoch, sequence, 1 << 24)
    now_ms = int(time.time() * 1000)
    for offset, record in enumerate(records):
        assert builder.append(offset, now_ms, None, record.value.encode(), record.headers) is not None
    return bytes(builder.build())


def send(
    connection: TransactionConnection,
    topic: str,
    *records: Sent,
    producer: Producer = NOBODY,
    sequence: int = -1,
    transactional_id: str | None = None,
    partition: int = 0,
    compression: int = 0,
) -> Outcome:
    batch = make_batch(
        records,
        producer,
        sequence=sequence,
        transactional=transactional_id is not None,
        compression=compression,
    )
    return connection.produce(transactional_id, {(topic, partition): batch})[topic, partition]


def send_for_errors(connection: TransactionConnection, topic: str, batch: bytes, *, version: int = 9) -> dict[str, Any]:
    """The whole answer for one partition."""
    connection.send_produce(None, {(topic, 0): batch}, version=version)
    answer = connection.receive("Produce", version)
    (partition,) = answer["responses"][0]["partition_responses"]
    return dict(partition)


def values(connection: TransactionConnection, topic: str, *, partition: int = 0) -> list[str]:
    """What a consumer of committed records gets; offsets must not be given twice."""
    records = connection.read_all(topic, partition=partition)
    assert len({record.offset for record in records}) == len(records)
    return [record.value.decode() for record in records]


def rows(database: Connection, topic: str, columns: LiteralString = "key, status") -> list[tuple[Any, ...]]:
    return database.execute(
        "SELECT " + columns + " FROM kafka.idempotency_keys k JOIN kafka.topics t USING (topic_id)"
        " WHERE t.name = %s ORDER BY tenant, key",
        [topic],
    ).fetchall()


def offsets(database: Connection, topic: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, offset in database.execute(
        'SELECT m.partition, m."offset" FROM kafka.messages m JOIN kafka.topics t USING (topic_id)'
        ' WHERE t.name = %s ORDER BY m.partition, m."offset"',
        [topic],
    ):
        found.setdefault(partition, []).append(offset)
    return found


def require_gap_free(database: Connection, topic: str) -> None:
    for found in offsets(database, topic).values():
        assert found == list(range(len(found)))


def new_id() -> str:
    return f"tx-{uuid.uuid4().hex[:12]}"


# --- plain producers -------------------------------------------------------------------------


def test_a_key_sent_again_is_answered_with_its_first_offset_and_not_enqueued(
    one: TransactionConnection, two: TransactionConnection, topic: str, database: Connection
) -> None:
    assert send(one, topic, keyed(None)) == Outcome(NONE, 0)
    assert send(one, topic, keyed("a", "first")) == Outcome(NONE, 1)
    for connection in (one, two, one):
        assert send(connection, topic, keyed("a", "again")) == Outcome(NONE, 1)
    assert send(two, topic, keyed("b")) == Outcome(NONE, 2)
    assert values(one, topic) == ["v", "first", "v"]
    assert rows(database, topic, "key, status, attempts, first_partition, first_offset") == [
        ("a", "COMMITTED", 1, 0, 1),
        ("b", "COMMITTED", 1, 0, 2),
    ]


def test_a_key_is_unique_in_the_whole_topic_and_within_its_tenant(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    assert send(one, topic, keyed("a", tenant="x")) == Outcome(NONE, 0)
    assert send(one, topic, keyed("a", tenant="x"), partition=1) == Outcome(NONE, 0)
    assert send(one, topic, keyed("a", tenant="y"), partition=1) == Outcome(NONE, 0)
    assert send(one, topic, keyed("a"), partition=1) == Outcome(NONE, 1)
    assert rows(database, topic, "tenant, key, first_partition, first_offset") == [
        ("", "a", 1, 1),
        ("x", "a", 0, 0),
        ("y", "a", 1, 0),
    ]


def test_an_empty_key_is_none(one: TransactionConnection, topic: str, database: Connection) -> None:
    no_value = Sent("null", [("idempotency-key", None)])
    assert send(one, topic, keyed(""), keyed(""), no_value, no_value) == Outcome(NONE, 0)
    assert len(values(one, topic)) == 4
    assert rows(database, topic) == []


@pytest.mark.parametrize("codes", [range(1, 40), range(1, 256)], ids=["some", "all"])
def test_keys_may_have_any_character_that_could_separate_them(
    one: TransactionConnection, topic: str, database: Connection, codes: range
) -> None:
    names = ["x'y\\z\n", *(chr(code) for code in codes)]
    assert send(one, topic, keyed("first")) == Outcome(NONE, 0)
    for _ in range(2):
        assert send(one, topic, *(keyed(name, tenant=name[:1]) for name in names)) == Outcome(NONE, 1)
    found = rows(database, topic, "tenant, key, status, first_offset")
    assert sorted(found[1:]) == sorted((name[:1], name, "COMMITTED", 1 + place) for place, name in enumerate(names))
    assert len(values(one, topic)) == 1 + len(names)


def test_of_several_headers_of_one_name_the_last_counts(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    send(one, topic, Sent("v", [("idempotency-key", b"a"), ("idempotency-key", b"b")]))
    assert rows(database, topic, "key") == [("b",)]


def test_the_headers_names_are_the_topics(one: TransactionConnection, database: Connection) -> None:
    topic = create_topic(one, idempotency_key_header="id", idempotency_tenant_header="customer")
    for _ in range(2):
        assert (
            send(one, topic, Sent("v", [("id", b"a"), ("customer", b"c"), ("idempotency-key", b"x")])).base_offset == 0
        )
    assert rows(database, topic, "tenant, key") == [("c", "a")]


def test_a_topic_that_does_not_ask_for_keys_takes_everything(one: TransactionConnection, database: Connection) -> None:
    topic = create_topic(one, idempotency_keys_enable="false")
    assert [send(one, topic, keyed("a")).base_offset for _ in range(3)] == [0, 1, 2]
    assert rows(database, topic) == []


@pytest.mark.parametrize("compression", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_of_a_batch_only_what_is_new_is_enqueued(
    one: TransactionConnection, two: TransactionConnection, topic: str, database: Connection, compression: int
) -> None:
    """Also duplicates within the batch; through the gateway's memory and from the rows consumers get the same."""
    assert send(one, topic, keyed("b", "b0"), keyed("d", "d0"), compression=compression) == Outcome(NONE, 0)
    batch = [keyed(key, f"{key}1") for key in ("a", "b", "c", "a", "d", "e", "c")] + [keyed(None, "none")]
    assert send(one, topic, *batch, compression=compression) == Outcome(NONE, 2)
    assert send(one, topic, *batch[:-1], compression=compression) == Outcome(NONE, 2), "the first record's offset"
    assert send(one, topic, keyed("f", "f1"), compression=compression) == Outcome(NONE, 6)
    expected = ["b0", "d0", "a1", "c1", "e1", "none", "f1"]
    assert values(one, topic) == values(two, topic) == expected
    require_gap_free(database, topic)
    assert rows(database, topic, "key, first_offset") == [("a", 2), ("b", 0), ("c", 3), ("d", 1), ("e", 4), ("f", 6)]
    assert database.execute(
        "SELECT convert_from(value, 'UTF8') FROM kafka.committed_messages WHERE topic = %s ORDER BY \"offset\"", [topic]
    ).fetchall() == [(value,) for value in expected]


@pytest.mark.parametrize("compression", [0, GZIP, ZSTD])
@pytest.mark.parametrize("wrong", [b"\xff", b"a\0b", b"k" * 1025])
def test_a_key_that_cannot_be_kept_is_a_record_error(
    one: TransactionConnection, topic: str, database: Connection, wrong: bytes, compression: int
) -> None:
    batch = make_batch([keyed("a"), Sent("bad", [("idempotency-key", wrong)])], compression=compression)
    answer = send_for_errors(one, topic, batch)
    assert answer["error_code"] == INVALID_RECORD
    (error,) = answer["record_errors"]
    assert error["batch_index"] == 1
    assert error["batch_index_error_message"].startswith("the header idempotency-key ")
    assert rows(database, topic) == []


def test_two_producers_at_once_through_two_gateways_enqueue_each_key_once(
    gateways: list[GatewayProcess], topic: str, database: Connection
) -> None:
    """Six producers send overlapping batches of the same keys, in different orders and to different partitions."""

    def produce(number: int) -> None:
        with TransactionConnection(gateways[number % 2].bootstrap) as connection:
            for round_ in range(12):
                keys = [f"k{(round_ * 7 + step) % 60}" for step in range(20)]
                if number % 3 == 0:
                    keys.reverse()
                outcome = send(connection, topic, *(keyed(key, key) for key in keys), partition=number % 2)
                assert outcome.code == NONE

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(produce, range(6)))
    with TransactionConnection(gateways[0].bootstrap) as connection:
        enqueued = values(connection, topic) + values(connection, topic, partition=1)
    assert sorted(enqueued) == sorted(set(enqueued))
    assert {key for (key,) in rows(database, topic, "key")} == set(enqueued)
    require_gap_free(database, topic)
    # Each key's row says where its record is.
    assert database.execute(
        "SELECT count(*) FROM kafka.idempotency_keys k JOIN kafka.topics t USING (topic_id)"
        " JOIN kafka.messages m USING (topic_id)"
        ' WHERE t.name = %s AND m.partition = k.first_partition AND m."offset" = k.first_offset'
        " AND convert_from(m.value, 'UTF8') = k.key",
        [topic],
    ).fetchone() == (len(enqueued),)


# --- idempotent producers --------------------------------------------------------------------


def test_sequences_count_what_was_sent_and_a_retry_gets_the_same_answer(
    one: TransactionConnection, two: TransactionConnection, topic: str, database: Connection
) -> None:
    code, producer = one.init(None)
    assert code == NONE
    send(one, topic, keyed("b"))
    batches = [
        [keyed("a"), keyed("b"), keyed("c")],  # one of three was there before
        [keyed("a"), keyed("c")],  # both were
        [keyed("d")],
    ]
    sequences = [0, 3, 5]
    expected = [1, 1, 3]
    for attempt in range(3):
        for records, sequence, offset in zip(batches, sequences, expected, strict=True):
            connection = (one, two)[(attempt + sequence) % 2]
            assert send(connection, topic, *records, producer=producer, sequence=sequence) == Outcome(NONE, offset)
    assert send(two, topic, keyed("e"), producer=producer, sequence=6) == Outcome(NONE, 4)
    assert len(values(one, topic)) == 5
    require_gap_free(database, topic)
    assert [
        sequence
        for (sequence,) in database.execute(
            "SELECT m.sequence FROM kafka.messages m JOIN kafka.topics t USING (topic_id) WHERE t.name = %s"
            ' AND m.producer_id = %s ORDER BY m."offset"',
            [topic, producer.id],
        )
    ] == [0, 2, 5, 6]


def test_a_batch_that_repeats_another_of_the_same_commit_is_remembered_in_its_own_partition(
    one: TransactionConnection, two: TransactionConnection, database: Connection
) -> None:
    topic = create_topic(one, partitions=3)
    _, producer = one.init(None)
    for partition in (0, 2):  # which have the same writer
        assert send(one, topic, keyed(f"{partition}"), producer=producer, sequence=0, partition=partition).code == NONE
    batch = make_batch([keyed("a"), keyed("b")], producer, sequence=1)
    expected = {(topic, 0): Outcome(NONE, 1), (topic, 2): Outcome(NONE, 1)}
    for connection in (one, one, two):
        assert connection.produce(None, {(topic, 0): batch, (topic, 2): batch}) == expected
    for partition in (0, 2):
        outcome = send(two, topic, keyed(f"z{partition}"), producer=producer, sequence=3, partition=partition)
        assert outcome == Outcome(NONE, 3 if partition == 0 else 1)
    require_gap_free(database, topic)


def test_a_batch_out_of_order_is_refused_whatever_its_keys(one: TransactionConnection, topic: str) -> None:
    _, producer = one.init(None)
    send(one, topic, keyed("a"), producer=producer, sequence=0)
    assert send(one, topic, keyed("a"), producer=producer, sequence=7).code == 45


# --- transactions ----------------------------------------------------------------------------


@pytest.fixture(params=[CLASSIC, KIP_890], ids=lambda generation: generation.name)
def generation(request: pytest.FixtureRequest) -> Generation:
    found: Generation = request.param
    return found


@pytest.fixture
def writer(gateways: list[GatewayProcess], generation: Generation) -> Iterator[TransactionConnection]:
    with TransactionConnection(gateways[0].bootstrap, generation) as connection:
        yield connection


def begin(writer: TransactionConnection, topic: str, *records: Sent, timeout_ms: int = 60_000) -> tuple[str, Producer]:
    """A producer whose transaction is open and has these records in it."""
    name = new_id()
    producer = writer.start(name, timeout_ms=timeout_ms)
    if not writer.generation.bumps:
        assert writer.add_one(name, producer, topic) == NONE
    assert send(writer, topic, *records, producer=producer, sequence=0, transactional_id=name).code == NONE
    return name, producer


def test_a_key_of_an_open_transaction_is_pending_until_it_commits(
    writer: TransactionConnection, two: TransactionConnection, topic: str, database: Connection
) -> None:
    name, producer = begin(writer, topic, keyed("a", "mine"))
    assert rows(database, topic, "key, status, producer_id") == [("a", "PENDING", producer.id)]
    assert database.execute(
        "SELECT key, transactional_id FROM kafka.keys_in_flight WHERE topic = %s", [topic]
    ).fetchall() == [("a", name)]
    answer = send_for_errors(two, topic, make_batch([keyed("x"), keyed("a"), keyed("y")]))
    assert answer["error_code"] == TRY_AGAIN
    assert answer["record_errors"] == [
        {"batch_index": 1, "batch_index_error_message": "the key 'a' is held by an open transaction"}
    ]
    assert "the key 'a' is held by an open transaction" in answer["error_message"]
    repeated = send(writer, topic, keyed("a", "again"), producer=producer, sequence=1, transactional_id=name)
    assert repeated == Outcome(NONE, 0), "in its own transaction it is a duplicate"
    assert writer.end(name, producer, commit=True)[0] == NONE
    assert rows(database, topic, "key, status, producer_id, first_offset") == [("a", "COMMITTED", None, 0)]
    assert send(two, topic, keyed("x"), keyed("a"), keyed("y")) == Outcome(NONE, 2)
    assert values(two, topic) == ["mine", "v", "v"]


def test_an_aborted_transaction_leaves_its_keys_failed_and_they_are_sent_again(
    writer: TransactionConnection, two: TransactionConnection, topic: str, database: Connection
) -> None:
    name, producer = begin(writer, topic, keyed("a", "lost"), keyed("b", "lost"))
    code, producer = writer.end(name, producer, commit=False)
    assert code == NONE
    assert rows(database, topic, "key, status, last_error") == [
        ("a", "FAILED", "the transaction was aborted"),
        ("b", "FAILED", "the transaction was aborted"),
    ]
    assert send(two, topic, keyed("a", "plain")) == Outcome(NONE, 3)
    if not writer.generation.bumps:
        writer.add_one(name, producer, topic)
    sequence = 0 if writer.generation.bumps else 2
    records = [keyed("b", "again"), keyed("a", "again")]
    assert send(writer, topic, *records, producer=producer, sequence=sequence, transactional_id=name) == Outcome(
        NONE, 4
    )
    assert writer.end(name, producer, commit=True)[0] == NONE
    assert values(two, topic) == ["plain", "again"]
    assert rows(database, topic, "key, status, attempts, first_offset") == [
        ("a", "COMMITTED", 2, 3),
        ("b", "COMMITTED", 2, 4),
    ]


def end_by_timeout(database: Connection, connection: TransactionConnection, name: str, producer: Producer) -> None:
    database.execute(
        "UPDATE kafka.transactions SET started_at = now() - interval '1 hour' WHERE transactional_id = %s", [name]
    )


def end_by_operator(database: Connection, connection: TransactionConnection, name: str, producer: Producer) -> None:
    database.execute("SELECT kafka.abort_transaction(%s)", [name])


def end_by_init(database: Connection, connection: TransactionConnection, name: str, producer: Producer) -> None:
    connection.start(name)


@pytest.mark.parametrize("end", [end_by_timeout, end_by_operator, end_by_init])
def test_however_a_transaction_is_aborted_its_keys_have_failed(
    one: TransactionConnection,
    two: TransactionConnection,
    topic: str,
    database: Connection,
    end: Callable[[Connection, TransactionConnection, str, Producer], None],
) -> None:
    name, producer = begin(one, topic, keyed("a"))
    end(database, two, name, producer)
    wait_for(lambda: rows(database, topic), [("a", "FAILED")])
    assert send(two, topic, keyed("a", "then")).code == NONE
    assert values(two, topic) == ["then"]


def test_a_transaction_of_nothing_but_duplicates_commits(
    writer: TransactionConnection, two: TransactionConnection, topic: str
) -> None:
    send(two, topic, keyed("a", "first"))
    name, producer = begin(writer, topic, keyed("a"), keyed("a"))
    assert writer.end(name, producer, commit=True)[0] == NONE
    assert values(two, topic) == ["first"]


def test_transactions_with_keys_race_for_them_and_one_of_them_gets_each(
    gateways: list[GatewayProcess], topic: str, database: Connection
) -> None:
    """Four producers try the same twenty keys, each in its own transaction, half of which abort at first."""

    def produce(number: int) -> None:
        with TransactionConnection(gateways[number % 2].bootstrap, KIP_890) as connection:
            name = new_id()
            producer = connection.start(name)
            for n in range(20):
                for attempt in itertools.count():
                    outcome = send(
                        connection, topic, keyed(f"k{n}", f"k{n}"), producer=producer, sequence=0, transactional_id=name
                    )
                    assert outcome.code in (NONE, TRY_AGAIN)
                    commit = outcome.code == NONE and (attempt > 0 or (n + number) % 2 == 0)
                    code, producer = connection.end(name, producer, commit=commit)
                    assert code == NONE
                    if commit:
                        break

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(produce, range(4)))
    with TransactionConnection(gateways[0].bootstrap) as connection:
        assert sorted(values(connection, topic)) == sorted(f"k{n}" for n in range(20))
    assert {status for (status,) in rows(database, topic, "status")} == {"COMMITTED"}


# --- owners with leases ----------------------------------------------------------------------


def test_a_key_that_an_owner_works_on_is_refused_and_what_came_with_it_has_failed(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    """An owner of the producers' own scope is somebody who called kafka.begin_once without a group."""
    database.execute("SELECT kafka.begin_once('', %s, '', 'a', owner => 'importer')", [topic])
    answer = send_for_errors(one, topic, make_batch([keyed("b"), keyed("a")]))
    assert answer["error_code"] == INVALID_RECORD
    assert answer["record_errors"] == [
        {"batch_index": 1, "batch_index_error_message": "the key 'a' is held by an owner whose lease is not over"}
    ]
    held = ("a", "PENDING", 1, None)
    reason = "invalid_record: record 1 of the batch is refused: the key 'a' is held by an owner whose lease is not over"
    assert rows(database, topic, "key, status, attempts, last_error") == [held, ("b", "FAILED", 1, reason)]
    assert send(one, topic, keyed("b")).code == NONE
    assert values(one, topic) == ["v"]


def test_a_key_whose_lease_ran_out_is_taken_over(one: TransactionConnection, topic: str, database: Connection) -> None:
    database.execute("SELECT kafka.begin_once('', %s, '', 'a', '1 microsecond', 'importer')", [topic])
    assert send(one, topic, keyed("a")) == Outcome(NONE, 0)
    assert rows(database, topic, "status, attempts, owner, last_error") == [
        ("COMMITTED", 2, None, "the lease of importer ran out")
    ]


def test_a_key_that_a_worker_did_is_a_duplicate_without_an_offset(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    database.execute("SELECT kafka.begin_once('', %s, '', 'a'), kafka.mark_success('', %s, '', 'a')", [topic, topic])
    assert send(one, topic, keyed("a")) == Outcome(NONE, -1)
    assert values(one, topic) == []


def test_what_a_group_has_done_is_nothing_to_producers(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    database.execute("SELECT kafka.begin_once('', %s, 'g', 'a'), kafka.mark_success('', %s, 'g', 'a')", [topic, topic])
    assert send(one, topic, keyed("a")) == Outcome(NONE, 0)


def test_old_clients_are_told_the_reason_by_the_code(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    """Record errors came with Produce v8."""
    database.execute("SELECT kafka.begin_once('', %s, '', 'a')", [topic])
    assert one.produce(None, {(topic, 0): make_batch([keyed("a")])}, version=7)[topic, 0].code == INVALID_RECORD


# --- crashes ---------------------------------------------------------------------------------


@pytest.fixture
def doomed(module_database_url: str, gateways: list[GatewayProcess], tmp_path: Path) -> Iterator[Doomed]:
    """A connection to a third gateway, which dies as if by kill -9 where it is told to."""
    with ExitStack() as stack:

        def connect(failpoint: str) -> TransactionConnection:
            process = stack.enter_context(start(module_database_url, tmp_path, 7, failpoint))
            return stack.enter_context(TransactionConnection(process.bootstrap, KIP_890))

        yield connect


def test_a_batch_whose_answer_was_lost_in_a_crash_is_recognised_by_its_keys(
    doomed: Doomed, two: TransactionConnection, topic: str, database: Connection
) -> None:
    """A plain producer has no sequences: without keys it would have written twice."""
    send(two, topic, keyed("b", "first"))
    connection = doomed(failpoints.PRODUCE_COMMITTED)
    with pytest.raises(ConnectionError):
        send(connection, topic, keyed("a"), keyed("b"), keyed("c"))
    assert send(two, topic, keyed("a"), keyed("b"), keyed("c")) == Outcome(NONE, 1)
    assert values(two, topic) == ["first", "v", "v"]
    require_gap_free(database, topic)


@pytest.mark.parametrize("is_all_duplicate", [False, True])
def test_a_sifted_batch_of_an_idempotent_producer_survives_a_crash(
    doomed: Doomed,
    two: TransactionConnection,
    topic: str,
    database: Connection,
    is_all_duplicate: bool,
) -> None:
    _, producer = two.init(None)
    send(two, topic, keyed("a", "first"), keyed("b", "first"))
    records = [keyed("b"), keyed("a")] if is_all_duplicate else [keyed("b"), keyed("c")]
    connection = doomed(failpoints.PRODUCE_COMMITTED)
    with pytest.raises(ConnectionError):
        send(connection, topic, *records, producer=producer, sequence=0)
    expected = Outcome(NONE, 1 if is_all_duplicate else 2)
    assert send(two, topic, *records, producer=producer, sequence=0) == expected
    assert send(two, topic, keyed("d"), producer=producer, sequence=2) == Outcome(NONE, 2 if is_all_duplicate else 3)
    require_gap_free(database, topic)


@pytest.mark.parametrize(
    ("failpoint", "is_ended", "commit"),
    [
        (failpoints.END_BEFORE, False, True),
        (failpoints.END_WRITTEN, False, True),
        (failpoints.END_COMMITTED, True, True),
        (failpoints.END_COMMITTED, True, False),
    ],
)
def test_keys_are_settled_with_their_transaction_or_not_at_all(
    doomed: Doomed,
    gateways: list[GatewayProcess],
    topic: str,
    database: Connection,
    failpoint: str,
    is_ended: bool,
    commit: bool,
) -> None:
    settled = "COMMITTED" if commit else "FAILED"
    two = TransactionConnection(gateways[1].bootstrap, KIP_890)
    name, producer = begin(two, topic, keyed("a"), keyed("b"))
    connection = doomed(failpoint)
    with pytest.raises(ConnectionError):
        connection.end(name, producer, commit=commit)
    status = settled if is_ended else "PENDING"
    assert rows(database, topic) == [("a", status), ("b", status)]
    assert two.end(name, producer, commit=commit)[0] == NONE
    assert rows(database, topic) == [("a", settled), ("b", settled)]
    assert send(two, topic, keyed("a")) == Outcome(NONE, 0 if commit else 3)
    two.close()


# --- housekeeping and metrics ----------------------------------------------------------------


def test_keys_are_forgotten_by_age_unless_somebody_holds_them(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    send(one, topic, keyed("old"), keyed("young"))
    name, producer = begin(one, topic, keyed("open"))
    database.execute("SELECT kafka.begin_once('', %s, 'g', 'worked on')", [topic])
    database.execute(
        "UPDATE kafka.idempotency_keys SET expires_at = now() - interval '1 s' WHERE key <> 'young'"
        " AND topic_id = (SELECT topic_id FROM kafka.topics WHERE name = %s)",
        [topic],
    )
    left = [("open", "PENDING"), ("worked on", "PENDING"), ("young", "COMMITTED")]
    wait_for(lambda: rows(database, topic), left, timeout_s=30)
    assert send(one, topic, keyed("old", "anew")).code == NONE
    one.end(name, producer, commit=True)
    wait_for(lambda: [key for (key,) in rows(database, topic, "key")], ["old", "worked on", "young"], timeout_s=30)


@pytest.mark.parametrize(("retention_ms", "expected"), [("60000", timedelta(minutes=1)), ("-1", None)])
def test_keys_are_remembered_for_as_long_as_their_topic_says(
    one: TransactionConnection, database: Connection, retention_ms: str, expected: timedelta | None
) -> None:
    topic = create_topic(one, idempotency_keys_retention_ms=retention_ms)
    send(one, topic, keyed("a"))
    send(one, topic, keyed("b"), keyed("c"))
    kept: LiteralString = "CASE WHEN isfinite(expires_at) THEN expires_at - k.created_at END"
    assert rows(database, topic, "key, " + kept) == [("a", expected), ("b", expected), ("c", expected)]


def test_the_keys_of_a_deleted_topic_are_forgotten(
    one: TransactionConnection, topic: str, database: Connection
) -> None:
    send(one, topic, keyed("a"), keyed("b"))
    (topic_id,) = database.execute("SELECT topic_id FROM kafka.topics WHERE name = %s", [topic]).fetchone() or (0,)
    one.call("DeleteTopics", 5, topic_names=[topic], timeout_ms=20_000)

    def left() -> object:
        return database.execute(
            "SELECT count(*) FROM kafka.idempotency_keys WHERE topic_id = %s", [topic_id]
        ).fetchone()

    wait_for(left, (0,), timeout_s=30)


def test_keys_are_counted(gateways: list[GatewayProcess], one: TransactionConnection, topic: str) -> None:
    sample = re.compile(r'^tablewire_idempotency_keys_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)

    def counted() -> dict[str, float]:
        with urllib.request.urlopen(f"{gateways[0].http_url}/metrics") as answer:
            return {outcome: float(number) for outcome, number in sample.findall(answer.read().decode())}

    before = counted()
    send(one, topic, keyed("a"), keyed("b"), keyed("a"))
    for commit in (False, True):
        name, producer = begin(one, topic, keyed("c"))
        send(one, topic, keyed("c"))
        one.end(name, producer, commit=commit)
    after = counted()
    assert {outcome: number - before.get(outcome, 0) for outcome, number in after.items()} == {
        "begun": 4,
        "committed": 3,
        "failed": 1,
        "duplicate": 1,
        "held": 2,
    }


@pytest.mark.parametrize("key", ["new", None])
def test_a_producer_that_a_repeated_batch_has_fenced_is_fenced_at_every_gateway(
    key: str | None, one: TransactionConnection, two: TransactionConnection, topic: str
) -> None:
    """A batch of nothing but repeated keys moves its producer and not the end of the log."""
    _, older = one.init(None)
    newer = Producer(older.id, older.epoch + 1)
    assert send(two, topic, keyed("a"), producer=older, sequence=0) == Outcome(NONE, 0)
    assert send(one, topic, keyed("a", "again"), producer=newer, sequence=0) == Outcome(NONE, 0)
    assert send(two, topic, keyed(key), producer=older, sequence=1).code == OLD_EPOCH
    assert send(one, topic, keyed("c"), producer=newer, sequence=1) == Outcome(NONE, 1)
