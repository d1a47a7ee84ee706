"""Transactions over the wire: section T of the test matrix with hand-made requests, a real gateway, a real database.

Each case runs through one gateway and through two, where every request goes to the other one than the last, and in
both generations of the protocol: the classic one, and KIP-890 with a new epoch for each transaction.
"""

from __future__ import annotations

import itertools
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.conftest import _scratch_database as scratch_database
from tests.support.attack import bounded_memory, fetch_fields
from tests.support.gateway_process import GatewayProcess
from tests.support.group_member import ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, Member
from tests.support.handmade import OLD_DUPLICATE, OUT_OF_ORDER, Outcome, make_batch
from tests.support.handmade_transactions import (
    ABORTABLE,
    BAD_TIMEOUT,
    CLASSIC,
    FENCED,
    INVALID_TXN_STATE,
    KIP_890,
    NOBODY,
    NONE,
    OLD_EPOCH,
    OLDEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    WRONG_MAPPING,
    Generation,
    Producer,
    Record,
    TransactionConnection,
    transactional_batch,
)
from tests.support.proxy import END_TXN, Fault, Proxy
from tests.support.raw_connection import RawConnection, decode_answer
from tests.support.waiting import wait_for
from tests.support.wire_client import known_brokers

LAST_EPOCH = 32766
UNKNOWN_TOPIC = 3
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
NOT_ATTEMPTED = 55
UNSTABLE = 88
ID_NOT_FOUND = 105
SWEPT_WITHIN_S = 12.0
"""A transaction is aborted ten seconds after its time at the latest; the machine may be busy."""


@pytest.fixture(scope="module")
def gateways(
    server_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[GatewayProcess]]:
    """Two gateways on a database of this module's own, each knowing the other, so that they agree on coordinators."""
    directory = tmp_path_factory.mktemp("transactions")
    with ExitStack() as stack:
        database_url = stack.enter_context(scratch_database(server_url, template_database))
        pair = [
            stack.enter_context(
                GatewayProcess(
                    database_url,
                    directory=directory,
                    name=f"gateway-{node_id}",
                    settings={"TABLEWIRE_NODE_ID": str(node_id), **SETTINGS},
                )
            )
            for node_id in (1, 2)
        ]
        for gateway in pair:
            wait_for(lambda gateway=gateway: known_brokers(gateway.bootstrap), [1, 2])
        yield pair


SETTINGS = {"TABLEWIRE_MAX_OPEN_TRANSACTIONS_PER_CLIENT": "200", "TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


class Through:
    """A client whose requests go to one gateway, or in turn to both; where its connection is closed it comes back."""

    def __init__(self, gateways: Sequence[GatewayProcess], generation: Generation) -> None:
        self.database_url = gateways[0].database_url
        self.generation = generation
        self._addresses = [gateway.bootstrap for gateway in gateways]
        self._connections: dict[str, TransactionConnection] = {}
        self._turns = itertools.cycle(self._addresses)

    def ask(self, method: str, *arguments: Any, **more: Any) -> Any:
        address = next(self._turns)
        for _ in range(3):
            connection = self._connections.get(address)
            if connection is None:
                connection = self._connections[address] = TransactionConnection(address, self.generation)
            try:
                return getattr(connection, method)(*arguments, **more)
            except ConnectionError:
                self._connections.pop(address).close()
        raise AssertionError(f"{method} is not answered")

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *arguments, **more: self.ask(method, *arguments, **more)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


@pytest.fixture(params=["one gateway", "two gateways"])
def through(
    request: pytest.FixtureRequest, gateways: list[GatewayProcess], generation: Generation
) -> Iterator[Through]:
    through = Through(gateways if request.param == "two gateways" else gateways[:1], generation)
    yield through
    through.close()


@pytest.fixture(params=[CLASSIC, KIP_890], ids=lambda generation: generation.name)
def generation(request: pytest.FixtureRequest) -> Generation:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def name() -> str:
    """A transactional id that nobody has used."""
    return f"id.{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(gateways: list[GatewayProcess]) -> Callable[..., str]:
    def create(partitions: int = 1) -> str:
        with TransactionConnection(gateways[0].bootstrap) as connection:
            return connection.create_topic(f"transactions.{uuid.uuid4().hex[:12]}", partitions=partitions)

    return create


@pytest.fixture
def connect(gateways: list[GatewayProcess]) -> Iterator[Callable[..., TransactionConnection]]:
    with ExitStack() as stack:

        def open_one(number: int = 0, generation: Generation = CLASSIC) -> TransactionConnection:
            return stack.enter_context(TransactionConnection(gateways[number].bootstrap, generation))

        yield open_one


class Writer:
    """A producer that numbers its records and begins its transactions as its generation does."""

    def __init__(self, through: Through | TransactionConnection, name: str, *, timeout_ms: int = 60_000) -> None:
        self.through: Any = through
        self.name = name
        self.producer: Producer = through.start(name, timeout_ms=timeout_ms)
        self.sequences: dict[tuple[str, int], int] = {}
        self.added: set[tuple[str, int]] = set()

    def begin(self, topic: str, partition: int = 0) -> None:
        if not self.through.generation.bumps and (topic, partition) not in self.added:
            assert self.through.add_one(self.name, self.producer, topic, partition) == NONE
        self.added.add((topic, partition))

    def write(self, topic: str, *values: bytes, partition: int = 0) -> Outcome:
        self.begin(topic, partition)
        place = (topic, partition)
        sequence = self.sequences.get(place, 0)
        outcome: Outcome = self.through.write(
            self.name, self.producer, topic, values, sequence=sequence, partition=partition
        )
        if outcome.code == NONE:
            self.sequences[place] = sequence + len(values)
        return outcome

    def end(self, *, commit: bool) -> int:
        code, producer = self.through.end(self.name, self.producer, commit=commit)
        if code == NONE:
            self.added.clear()
            if producer != self.producer:
                self.sequences.clear()
            self.producer = producer
        return int(code)


def run(database_url: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        cursor = connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def committed(database_url: str, topic: str, partition: int = 0) -> list[Record]:
    """What psql says."""
    query = 'SELECT "offset", value FROM kafka.committed_messages WHERE topic = %s AND partition = %s ORDER BY "offset"'
    return [Record(*row) for row in run(database_url, query, topic, partition)]


def offsets_of(database_url: str, topic: str, partition: int = 0) -> tuple[int, int, int]:
    """Log start, last stable and next offset."""
    ((found),) = run(
        database_url,
        "SELECT log_start_offset, last_stable_offset, next_offset FROM kafka.partitions"
        " JOIN kafka.topics USING (topic_id) WHERE name = %s AND partition = %s",
        topic,
        partition,
    )
    return found  # type: ignore[return-value]


def let_time_pass(database_url: str, name: str, *, seconds: int) -> None:
    """The open transaction of this id is that much older than it was."""
    run(
        database_url,
        "UPDATE kafka.transactions SET started_at = started_at - %s * interval '1 second' WHERE transactional_id = %s",
        seconds,
        name,
    )


def values(records: Sequence[Record]) -> list[bytes]:
    return [record.value for record in records]


def require_seen(through: Through, topic: str, expected: Sequence[bytes], partition: int = 0) -> None:
    """Consumers of every gateway and psql agree on what is committed."""
    for _ in range(2):
        assert values(through.read_all(topic, partition=partition)) == list(expected)
    assert values(committed(through.database_url, topic, partition)) == list(expected)


# --- commit, abort, isolation (T9, T15, T16, T20) --------------------------------------------


def test_nothing_is_seen_before_the_commit_and_everything_after_it(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topics = [new_topic(2), new_topic(1)]
    writer = Writer(through, name)
    places = [(topics[0], 0), (topics[0], 1), (topics[1], 0)]
    for n, (topic, partition) in enumerate(places):
        assert writer.write(topic, b"a%d" % n, b"b%d" % n, partition=partition) == Outcome(NONE, 0)
    for n, (topic, partition) in enumerate(places):
        assert through.end_offset(topic, partition=partition) == 0
        assert through.end_offset(topic, partition=partition, isolation=READ_UNCOMMITTED) == 2
        require_seen(through, topic, [], partition)
        uncommitted = through.read_all(topic, partition=partition, isolation=READ_UNCOMMITTED)
        assert values(uncommitted) == [b"a%d" % n, b"b%d" % n]
    assert writer.end(commit=True) == NONE
    for n, (topic, partition) in enumerate(places):
        require_seen(through, topic, [b"a%d" % n, b"b%d" % n], partition)
        assert through.end_offset(topic, partition=partition) == 3
        assert through.markers(topic, partition=partition) == [(2, 1)]
        assert through.fetch(topic, 0, partition=partition).aborted == ()
        assert offsets_of(through.database_url, topic, partition) == (0, 3, 3)


def test_an_aborted_transaction_is_never_seen_and_can_be_passed(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    assert through.write_plainly(topic, [b"before"]).code == NONE
    first_id = writer.producer.id
    writer.write(topic, b"x", b"y")
    assert writer.end(commit=False) == NONE
    require_seen(through, topic, [b"before"])
    assert through.markers(topic) == [(3, 0)]
    read = through.fetch(topic, 1)
    assert (read.visible, read.aborted) == ((), ((first_id, 1),))
    assert through.end_offset(topic) == 4
    assert through.fetch(topic, 4).next_offset == 4
    # A consumer that begins inside the aborted range is told of it too.
    assert through.fetch(topic, 2).visible == ()
    assert values(through.read_all(topic, isolation=READ_UNCOMMITTED)) == [b"before", b"x", b"y"]


def test_transactions_follow_each_other(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    expected = []
    for n in range(6):
        value = b"%d" % n
        assert writer.write(topic, value).code == NONE
        assert writer.end(commit=n % 3 != 1) == NONE
        if n % 3 != 1:
            expected.append(value)
        require_seen(through, topic, expected)
    assert offsets_of(through.database_url, topic) == (0, 12, 12)


def test_an_empty_transaction_ends_with_success_and_writes_nothing(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    for commit in (True, True, False) if through.generation.bumps else (True, True):
        assert writer.end(commit=commit) == NONE
    assert through.add_one(name, writer.producer, topic, version=3) == NONE
    assert through.end_offset(topic) == 0
    assert writer.end(commit=True) == NONE
    assert offsets_of(through.database_url, topic) == (0, 0, 0)
    assert writer.write(topic, b"v").code == NONE
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"v"])


def test_an_open_transaction_holds_back_the_last_stable_offset_and_nothing_else(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    slow, quick = Writer(through, name), Writer(through, f"{name}-quick")
    through.write_plainly(topic, [b"p0"])
    slow.write(topic, b"s1")
    for n in range(3):
        quick.write(topic, b"q%d" % n)
        quick.write(topic, b"other%d" % n, partition=1)
        assert quick.end(commit=n != 1) == NONE
    through.write_plainly(topic, [b"p1"])
    assert offsets_of(through.database_url, topic) == (0, 1, 9)
    require_seen(through, topic, [b"p0"])
    require_seen(through, topic, [b"other0", b"other2"], partition=1)
    assert slow.end(commit=True) == NONE
    require_seen(through, topic, [b"p0", b"s1", b"q0", b"q2", b"p1"])
    assert offsets_of(through.database_url, topic) == (0, 10, 10)


def test_short_transactions_beside_a_long_one_are_seen_together_when_it_ends(
    gateways: list[GatewayProcess],
    connect: Callable[..., TransactionConnection],
    generation: Generation,
    name: str,
    new_topic: Callable[..., str],
) -> None:
    """T16: they end at once; a consumer that waits behind the long one is woken by its end, not by its poll's."""
    topic, connection = new_topic(), connect(0, generation)
    long, short = Writer(connection, name), Writer(connection, f"{name}-short")
    long.write(topic, b"long")
    for n in range(50):
        assert short.write(topic, b"%d" % n).code == NONE
        assert short.end(commit=True) == NONE
    assert offsets_of(gateways[0].database_url, topic) == (0, 0, 101)
    with RawConnection(gateways[0].port) as reader:
        asked_at = time.monotonic()
        fields = fetch_fields([(topic, 0, 0)], max_wait_ms=60_000, min_bytes=1)
        reader.request("Fetch", 11, **(fields | {"isolation_level": READ_COMMITTED}))
        assert not reader.has_answer(timeout_s=0.3)
        assert long.end(commit=True) == NONE
        answer = decode_answer("Fetch", 11, reader.receive())
        assert time.monotonic() - asked_at < 30
    (partition,) = answer["responses"][0]["partitions"]
    assert partition["last_stable_offset"] == 102
    assert values(connection.read_all(topic)) == [b"long", *(b"%d" % n for n in range(50))]


def test_the_oldest_of_several_open_transactions_decides(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writers = [Writer(through, f"{name}-{n}") for n in range(4)]
    for n, writer in enumerate(writers):
        writer.write(topic, b"%d" % n)
    stable = []
    for n in (2, 0, 1, 3):
        assert writers[n].end(commit=True) == NONE
        stable.append(offsets_of(through.database_url, topic)[1])
        wait_for(lambda: through.fetch(topic, 0).last_stable_offset, stable[-1])
    assert stable == [0, 1, 3, 8]
    require_seen(through, topic, [b"0", b"1", b"2", b"3"])


def test_an_aborted_transaction_whose_marker_lies_beyond_an_open_one_is_skipped(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    """The last stable offset is between the aborted record and its marker."""
    topic = new_topic()
    aborted, still_open = Writer(through, f"{name}-a"), Writer(through, f"{name}-b")
    aborted.write(topic, b"never")
    still_open.write(topic, b"later")
    assert aborted.end(commit=False) == NONE
    assert offsets_of(through.database_url, topic) == (0, 1, 3)
    require_seen(through, topic, [])
    assert still_open.end(commit=True) == NONE
    require_seen(through, topic, [b"later"])


def test_list_offsets_by_time_sees_what_the_isolation_level_allows(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    writer.write(topic, b"v")
    assert through.list_offset(topic, 0) == -1
    assert through.list_offset(topic, 0, isolation=READ_UNCOMMITTED) == 0
    assert writer.end(commit=True) == NONE
    assert through.list_offset(topic, 0) == 0
    assert through.list_offset(topic, int(time.time() * 1000) + 100_000) == -1


def test_a_reader_of_uncommitted_records_is_told_of_no_aborted_ones(
    connect: Callable[..., TransactionConnection], name: str, new_topic: Callable[..., str]
) -> None:
    topic, connection = new_topic(), connect()
    writer = Writer(connection, name)
    writer.write(topic, b"v")
    assert writer.end(commit=False) == NONE
    answer = connection.fetch(topic, 0, isolation=READ_UNCOMMITTED)
    assert (values(answer.visible), answer.aborted, answer.last_stable_offset) == ([b"v"], (), 2)


# --- sequences inside transactions (T1, T2) --------------------------------------------------


def test_a_retried_batch_is_written_once_and_a_gap_is_refused(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    writer.write(topic, b"0", b"1")
    for _ in range(2):
        retried = through.write(name, writer.producer, topic, [b"0", b"1"], sequence=0)
        assert retried == Outcome(NONE, 0)
    assert through.write(name, writer.producer, topic, [b"9"], sequence=9).code == OUT_OF_ORDER
    for n in range(2, 9):
        assert writer.write(topic, b"%d" % n).base_offset == n
    assert through.write(name, writer.producer, topic, [b"0", b"1"], sequence=0).code == OLD_DUPLICATE
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"%d" % n for n in range(9)])


def test_sequences_go_on_within_an_epoch_and_begin_anew_with_the_next(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    writer.write(topic, b"a")
    assert writer.end(commit=True) == NONE
    writer.begin(topic)
    wrong, right = (1, 0) if through.generation.bumps else (0, 1)
    assert through.write(name, writer.producer, topic, [b"b", b"c"], sequence=wrong).code in (
        OUT_OF_ORDER,
        OLD_DUPLICATE,
    )
    assert through.write(name, writer.producer, topic, [b"b", b"c"], sequence=right).code == NONE
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"a", b"b", b"c"])


def test_a_plain_batch_inside_a_transaction_is_refused(
    connect: Callable[..., TransactionConnection], name: str, new_topic: Callable[..., str]
) -> None:
    topic, connection = new_topic(), connect()
    writer = Writer(connection, name)
    writer.write(topic, b"t")
    plain = make_batch([b"p"], producer_id=writer.producer.id, epoch=writer.producer.epoch, sequence=1)
    assert connection.produce(name, {(topic, 0): plain})[topic, 0].code == INVALID_TXN_STATE
    assert writer.end(commit=True) == NONE
    assert values(connection.read_all(topic)) == [b"t"]


# --- fencing (T5, T6, F23) -------------------------------------------------------------------


def test_a_second_instance_fences_the_first_and_aborts_its_transaction(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    first = Writer(through, name)
    first.write(topic, b"of the first")
    second = Writer(through, name)
    assert second.producer == Producer(first.producer.id, first.producer.epoch + 1)
    assert offsets_of(through.database_url, topic) == (0, 2, 2)
    batch = transactional_batch([b"late"], first.producer, sequence=1)
    for version in (3, 9, 11, 12):
        assert through.produce(name, {(topic, 0): batch}, version=version)[topic, 0].code == OLD_EPOCH
    for commit in (True, False):
        assert through.end(name, first.producer, commit=commit)[0] == FENCED
        assert through.end(name, first.producer, commit=commit, version=1)[0] == OLD_EPOCH
    assert through.add_one(name, first.producer, topic, version=3) == FENCED
    assert through.add_one(name, first.producer, topic, version=1) == OLD_EPOCH
    assert through.add_offsets(name, first.producer, "group") == FENCED
    assert through.add_offsets(name, first.producer, "group", version=1) == OLD_EPOCH
    assert through.init(name, first.producer, version=4)[0] == FENCED
    assert through.init(name, first.producer, version=3)[0] == OLD_EPOCH
    second.write(topic, b"of the second")
    assert second.end(commit=True) == NONE
    require_seen(through, topic, [b"of the second"])


def test_a_producer_recovers_with_the_id_it_had(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    """KIP-360: what is open is aborted, the epoch goes up, and asking once more gives the same."""
    topic = new_topic()
    writer = Writer(through, name)
    writer.write(topic, b"lost")
    had = writer.producer
    for _ in range(2):
        assert through.init(name, had, version=4) == (NONE, Producer(had.id, had.epoch + 1))
    writer.producer = Producer(had.id, had.epoch + 1)
    writer.sequences.clear()
    writer.added.clear()
    writer.write(topic, b"kept")
    assert through.init(name, had, version=4)[0] == FENCED
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"kept"])


def set_epoch(database_url: str, name: str, epoch: int) -> Producer:
    ((producer_id,),) = run(
        database_url,
        "UPDATE kafka.transactions SET producer_epoch = %s WHERE transactional_id = %s RETURNING producer_id",
        epoch,
        name,
    )
    run(database_url, "UPDATE kafka.producer_ids SET producer_epoch = %s WHERE producer_id = %s", epoch, producer_id)
    return Producer(producer_id, epoch)


def test_epochs_run_out_and_the_id_is_replaced(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    """T6: 32765, 32766, then a new id at epoch 0. 32767 is never told."""
    topic = new_topic()
    writer = Writer(through, name)
    writer.producer = set_epoch(through.database_url, name, LAST_EPOCH - 2)
    expected, told = [], [writer.producer]
    for n in range(5):
        value = b"%d" % n
        if not through.generation.bumps:
            writer = Writer(through, name)
        assert writer.write(topic, value).code == NONE
        before = writer.producer
        assert writer.end(commit=True) == NONE
        expected.append(value)
        told += [before, writer.producer]
        retried = through.end(name, before, commit=True)
        assert retried == (NONE, writer.producer if through.generation.bumps else before)
        assert through.end(name, before, commit=False)[0] == INVALID_TXN_STATE
        require_seen(through, topic, expected)
    assert len({producer.id for producer in told}) == 2
    assert {producer.epoch for producer in told} <= {LAST_EPOCH - 2, LAST_EPOCH - 1, LAST_EPOCH, 0, 1, 2, 3}
    late = transactional_batch([b"late"], told[0], sequence=1)
    assert through.produce(name, {(topic, 0): late})[topic, 0].code in (WRONG_MAPPING, OLD_EPOCH)


def test_who_was_fenced_with_the_last_epoch_does_not_learn_the_new_id(through: Through, name: str) -> None:
    through.start(name)
    old = set_epoch(through.database_url, name, LAST_EPOCH)
    new = through.start(name)
    assert new.id != old.id
    assert new.epoch == 0
    assert through.init(name, old, version=4)[0] == FENCED
    for commit in (True, False):
        assert through.end(name, old, commit=commit)[0] == WRONG_MAPPING


def test_two_instances_that_start_at_once_get_different_epochs(
    gateways: list[GatewayProcess], name: str, connect: Callable[..., TransactionConnection]
) -> None:
    connections = [connect(n % 2) for n in range(6)]
    with ThreadPoolExecutor(len(connections)) as pool:
        told = list(pool.map(lambda connection: connection.start(name), connections))
    assert len({producer.id for producer in told}) == 1
    assert len({producer.epoch for producer in told}) == len(told)
    last = max(told)
    for producer in told:
        code = connections[0].add_offsets(name, producer, "group")
        assert code == (NONE if producer == last else FENCED)


# --- wrong requests (T13) --------------------------------------------------------------------


def test_a_batch_outside_a_transaction_is_refused_before_anything_is_written(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    writer = Writer(through, name)
    batch = transactional_batch([b"x"], writer.producer, sequence=0)
    for version, code in ((3, INVALID_TXN_STATE), (9, INVALID_TXN_STATE), (11, ABORTABLE)):
        assert through.produce(name, {(topic, 0): batch}, version=version)[topic, 0].code == code
    writer.write(topic, b"y", partition=1)
    if not through.generation.bumps:
        assert through.produce(name, {(topic, 0): batch})[topic, 0].code == INVALID_TXN_STATE
    old = transactional_batch([b"x"], writer.producer._replace(epoch=writer.producer.epoch + 3), sequence=0)
    assert through.produce(name, {(topic, 0): old})[topic, 0].code == OLD_EPOCH, "the epoch is judged first"
    ended = writer.producer
    assert writer.end(commit=True) == NONE
    late = transactional_batch([b"late"], ended, sequence=1)
    code = OLD_EPOCH if through.generation.bumps else INVALID_TXN_STATE
    assert through.produce(name, {(topic, 1): late})[topic, 1].code == code
    assert offsets_of(through.database_url, topic, 0) == (0, 0, 0)
    require_seen(through, topic, [b"y"], partition=1)


def test_a_transactional_id_writes_with_its_own_producer_id_only(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    through.start(f"{name}-other")
    writer.write(topic, b"v")
    foreign = transactional_batch([b"foreign"], writer.producer, sequence=1)
    for claimed in (f"{name}-other", f"{name}-unknown"):
        assert through.produce(claimed, {(topic, 0): foreign})[topic, 0].code == WRONG_MAPPING
        assert through.add_one(claimed, writer.producer, topic, version=3) == WRONG_MAPPING
        assert through.end(claimed, writer.producer, commit=True)[0] == WRONG_MAPPING
    assert through.produce(None, {(topic, 0): foreign})[topic, 0].code != NONE
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"v"])


def test_wrong_epochs_and_ids_are_refused_in_every_request(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    through.start(name)
    writer = Writer(through, name)
    for is_open in (False, True):
        if is_open:
            writer.write(topic, b"v")
        for wrong, code in (
            (writer.producer._replace(epoch=0), FENCED),
            (writer.producer._replace(epoch=9), FENCED),
            (writer.producer._replace(id=writer.producer.id + 10**6), WRONG_MAPPING),
        ):
            assert through.add_one(name, wrong, topic, version=3) == code
            assert through.add_offsets(name, wrong, "group") == code
            assert through.end(name, wrong, commit=True)[0] == code
            assert through.end(name, wrong, commit=False)[0] == code
            assert through.init(name, wrong, version=4)[0] == FENCED
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"v"])


def test_one_unknown_partition_keeps_the_others_out(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    writer = Writer(through, name)
    for version in (1, 3, 4):
        answered = through.add(name, writer.producer, {topic: [0, 7], f"{topic}-none": [0]}, version=version)
        assert answered == {(topic, 0): NOT_ATTEMPTED, (topic, 7): UNKNOWN_TOPIC, (f"{topic}-none", 0): UNKNOWN_TOPIC}
    assert through.write(name, writer.producer, topic, [b"x"], sequence=0, version=9).code == INVALID_TXN_STATE


def test_partitions_can_be_verified_without_adding_them(
    connect: Callable[..., TransactionConnection], name: str, new_topic: Callable[..., str]
) -> None:
    topic, connection = new_topic(3), connect()
    producer = connection.start(name)
    verify = {"version": 4, "only_verifies": True}
    assert connection.add(name, producer, {topic: [0]}, **verify) == {(topic, 0): ABORTABLE}
    assert connection.add_one(name, producer, topic, 1) == NONE
    assert connection.add(name, producer, {topic: [0, 1]}, **verify) == {(topic, 0): ABORTABLE, (topic, 1): NONE}
    assert connection.add(name, producer, {topic: [0]}, **verify) == {(topic, 0): ABORTABLE}
    assert connection.add_one(name, producer._replace(epoch=5), topic, 1, **verify) == FENCED


def test_several_transactions_in_one_request(
    connect: Callable[..., TransactionConnection], name: str, new_topic: Callable[..., str]
) -> None:
    topic, connection = new_topic(2), connect()
    producers = {f"{name}-{n}": connection.start(f"{name}-{n}") for n in range(2)}
    asked = [
        {
            "transactional_id": each,
            "producer_id": producer.id + (each.endswith("1")),
            "producer_epoch": producer.epoch,
            "verify_only": False,
            "topics": [{"name": topic, "partitions": [0, 1]}],
        }
        for each, producer in producers.items()
    ]
    answer = connection.call("AddPartitionsToTxn", 4, transactions=asked)
    codes = {
        one["transactional_id"]: {
            partition["partition_error_code"]
            for found in one["topic_results"]
            for partition in found["results_by_partition"]
        }
        for one in answer["results_by_transaction"]
    }
    assert codes == {f"{name}-0": {NONE}, f"{name}-1": {WRONG_MAPPING}}


@pytest.mark.parametrize("timeout_ms", [0, -5, 900_001, 2**31 - 1])
def test_a_timeout_beyond_the_limit_is_refused(
    timeout_ms: int, connect: Callable[..., TransactionConnection], name: str
) -> None:
    assert connect().init(name, timeout_ms=timeout_ms) == (BAD_TIMEOUT, NOBODY)
    assert connect().init(name, timeout_ms=900_000)[0] == NONE


def test_bad_names_are_refused(connect: Callable[..., TransactionConnection]) -> None:
    connection = connect()
    for bad in ("", "a\0b"):
        assert connection.init(bad)[0] == INVALID_REQUEST
        assert connection.end(bad, Producer(1, 0), commit=True)[0] in (INVALID_REQUEST, WRONG_MAPPING)
        assert connection.add_offsets(bad, Producer(1, 0), "group") in (INVALID_REQUEST, WRONG_MAPPING)
    assert connection.init("id", Producer(5, -1), version=4)[0] == INVALID_REQUEST
    long = "x" * 3000
    assert connection.init(long)[0] == NONE


def test_open_transactions_of_a_client_are_limited(
    connect: Callable[..., TransactionConnection], name: str, new_topic: Callable[..., str]
) -> None:
    """Every test here has the same client id, so the limit is only reached together with those left open."""
    topic, connection = new_topic(), connect()
    codes = []
    held = []
    for n in range(201):
        producer = connection.start(f"{name}-{n}")
        codes.append(connection.add_one(f"{name}-{n}", producer, topic))
        held.append(producer)
        if codes[-1] != NONE:
            break
    assert codes[-1] == POLICY_VIOLATION
    for n, producer in enumerate(held[:-1]):
        assert connection.end(f"{name}-{n}", producer, commit=False)[0] == NONE
    assert connection.add_one(f"{name}-{len(held) - 1}", held[-1], topic) == NONE
    assert connection.end(f"{name}-{len(held) - 1}", held[-1], commit=False)[0] == NONE


@pytest.mark.parametrize("commit", [True, False])
def test_the_oldest_versions_are_served(
    commit: bool, connect: Callable[..., TransactionConnection], name: str, new_topic: Callable[..., str]
) -> None:
    topic, connection = new_topic(), connect(0, OLDEST)
    writer = Writer(connection, name)
    for n in range(2):
        assert writer.write(topic, b"%d" % n).code == NONE
        assert writer.end(commit=commit) == NONE
    assert values(connection.read_all(topic)) == ([b"0", b"1"] if commit else [])
    assert connection.end(name, writer.producer, commit=not commit)[0] == INVALID_TXN_STATE


# --- the end, again (T8, T10, F3, F11) -------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_retried_end_is_success_and_the_opposite_is_refused(
    commit: bool, through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    writer.write(topic, b"v")
    before = writer.producer
    assert writer.end(commit=commit) == NONE
    for _ in range(3):
        assert through.end(name, before, commit=commit) == (NONE, writer.producer)
        assert through.end(name, before, commit=not commit)[0] == INVALID_TXN_STATE
    assert offsets_of(through.database_url, topic) == (0, 2, 2)
    writer.write(topic, b"next")
    expected = FENCED if through.generation.bumps else None
    if expected is not None:
        assert through.end(name, before, commit=commit)[0] == expected, "a retry does not reach the next transaction"
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"v", b"next"] if commit else [b"next"])


def test_a_transaction_outlives_its_gateway(
    generation: Generation,
    database_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
) -> None:
    """T10, F3: what was written before kill -9 is committed after it, or aborted, whole."""
    directory = tmp_path_factory.mktemp("killed")
    with GatewayProcess(database_url, directory=directory) as gateway:
        topic = f"transactions.{uuid.uuid4().hex[:12]}"
        with TransactionConnection(gateway.bootstrap, generation) as connection:
            connection.create_topic(topic, partitions=2)
            writer = Writer(connection, name)
            writer.write(topic, b"0")
            writer.write(topic, b"1", partition=1)
        gateway.kill9()
        gateway.restart()
        through = Through([gateway], generation)
        writer.through = through
        writer.write(topic, b"2")
        assert writer.end(commit=True) == NONE
        assert values(through.read_all(topic)) == [b"0", b"2"]
        assert values(through.read_all(topic, partition=1)) == [b"1"]
        through.close()


def test_another_process_may_end_what_it_was_told_of(
    gateways: list[GatewayProcess], generation: Generation, name: str, new_topic: Callable[..., str]
) -> None:
    """T18: Flink writes producer id and epoch into its checkpoint; who takes over commits without InitProducerId."""
    topic = new_topic(2)
    for n, gateway in enumerate((gateways[0], gateways[1])):
        with TransactionConnection(gateways[0].bootstrap, generation) as before:
            writer = Writer(before, f"{name}-{n}")
            for partition in range(2):
                assert writer.write(topic, b"%d" % n, partition=partition).code == NONE
        through = Through([gateway], generation)
        writer.through = through
        had = writer.producer
        assert writer.end(commit=True) == NONE
        assert through.end(writer.name, had, commit=True)[0] == NONE, "it may recover from the same checkpoint again"
        for partition in range(2):
            require_seen(through, topic, [b"%d" % each for each in range(n + 1)], partition)
        through.close()


def test_the_end_of_a_transaction_that_was_lost_is_refused(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    """T10: no gateway has anything to lose, but a database can be restored to an earlier time."""
    topic = new_topic()
    writer = Writer(through, name)
    writer.write(topic, b"lost")
    run(
        through.database_url,
        "WITH lost AS (DELETE FROM kafka.transactions WHERE transactional_id = %s RETURNING producer_id)"
        " DELETE FROM kafka.transaction_partitions WHERE producer_id IN (SELECT producer_id FROM lost)",
        name,
    )
    for commit in (True, False):
        assert writer.end(commit=commit) == WRONG_MAPPING
    late = transactional_batch([b"late"], writer.producer, sequence=1)
    assert through.produce(name, {(topic, 0): late})[topic, 0].code in (WRONG_MAPPING, INVALID_TXN_STATE, ABORTABLE)
    assert committed(through.database_url, topic) == []


# --- time (T7, T19) --------------------------------------------------------------------------


def test_a_transaction_past_its_time_is_aborted_and_its_producer_fenced(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = Writer(through, name, timeout_ms=60_000)
    begun_at = time.monotonic()
    assert writer.write(topic, b"x").code == NONE
    let_time_pass(through.database_url, name, seconds=59)
    wait_for(lambda: offsets_of(through.database_url, topic), (0, 2, 2), timeout_s=1 + SWEPT_WITHIN_S)
    assert time.monotonic() - begun_at >= 0.9, "not before its time"
    had = writer.producer
    late = transactional_batch([b"late"], had, sequence=1)
    for version in (9, 11, 12):
        assert through.produce(name, {(topic, 0): late}, version=version)[topic, 0].code == OLD_EPOCH
    if through.generation.bumps:
        assert through.end(name, had, commit=True)[0] == ABORTABLE
        assert through.end(name, had, commit=False) == (NONE, Producer(had.id, had.epoch + 1))
    else:
        assert through.end(name, had, commit=True)[0] == FENCED
        assert through.end(name, had, commit=False)[0] == FENCED
        assert through.init(name, had, version=4) == (NONE, Producer(had.id, had.epoch + 1))
    writer.producer = Producer(had.id, had.epoch + 1)
    writer.sequences.clear()
    writer.added.clear()
    writer.write(topic, b"again")
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"again"])


def test_the_clock_starts_with_each_transaction_anew(
    gateways: list[GatewayProcess],
    connect: Callable[..., TransactionConnection],
    name: str,
    new_topic: Callable[..., str],
) -> None:
    """Each of three is open for fifty seconds of its sixty, and the sweeper comes by each time."""
    topic, other, connection = new_topic(), new_topic(), connect()
    writer, late = Writer(connection, name), f"{name}-late"
    database_url = gateways[0].database_url
    state = "SELECT state FROM kafka.transactions WHERE transactional_id = %s"
    for n in range(3):
        assert writer.write(topic, b"%d" % n).code == NONE
        let_time_pass(database_url, name, seconds=50)
        Writer(connection, late).begin(other)
        let_time_pass(database_url, late, seconds=61)  # the sweeper begins with the oldest
        wait_for(lambda: run(database_url, state, late), [("CompleteAbort",)])
        assert writer.end(commit=True) == NONE
    assert values(connection.read_all(topic)) == [b"0", b"1", b"2"]


def test_a_producer_that_never_pauses_is_timed_out_too(
    gateways: list[GatewayProcess],
    connect: Callable[..., TransactionConnection],
    generation: Generation,
    name: str,
    new_topic: Callable[..., str],
) -> None:
    """Appends hold the transaction's row all the time, shared; the sweeper gets it nevertheless."""
    topic = new_topic(4)
    connection = connect(0, generation)
    writer = Writer(connection, name, timeout_ms=60_000)
    for partition in range(4):
        assert writer.write(topic, b"0", partition=partition).code == NONE
    let_time_pass(gateways[0].database_url, name, seconds=59)
    is_over = threading.Event()

    def write_on(partition: int) -> int:
        with TransactionConnection(connection.bootstrap, KIP_890) as own:
            sequence = 1
            while not is_over.is_set():
                batch = transactional_batch([b"x"], writer.producer, sequence=sequence)
                code = own.produce(name, {(topic, partition): batch})[topic, partition].code
                if code != NONE:
                    return code
                sequence += 1
        return NONE

    begun_at = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write_on, partition) for partition in range(4)]
        try:
            assert {one.result(30) for one in writing} == {OLD_EPOCH}
        finally:
            is_over.set()
    assert time.monotonic() - begun_at < 1 + SWEPT_WITHIN_S


def test_a_retry_is_recognised_for_as_long_as_its_transaction_is_open(
    database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """States of idle producers expire, but not those of open transactions."""
    settings = {"TABLEWIRE_PRODUCER_ID_EXPIRATION_MS": "1000"}
    states = "SELECT producer_id FROM kafka.producer_sequences"
    with (
        GatewayProcess(database_url, directory=tmp_path_factory.mktemp("idle"), settings=settings) as gateway,
        TransactionConnection(gateway.bootstrap) as connection,
    ):
        topic = connection.create_topic("idle")
        kept, ended = Writer(connection, "kept"), Writer(connection, "ended")
        for writer in (kept, ended):
            writer.write(topic, b"0")
            writer.write(topic, b"1")
        assert ended.end(commit=True) == NONE
        wait_for(lambda: run(database_url, states), [(kept.producer.id,)], timeout_s=30)
        assert connection.write("kept", kept.producer, topic, [b"1"], sequence=1) == Outcome(NONE, 1)
        assert connection.write("kept", kept.producer, topic, [b"5"], sequence=5).code == OUT_OF_ORDER
        assert kept.end(commit=True) == NONE
        wait_for(lambda: run(database_url, states), [], timeout_s=30)


MANY_IDS = 10_000


def test_ten_thousand_transactional_ids_take_little_memory_and_all_expire(
    database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {
        "TABLEWIRE_TRANSACTIONAL_ID_EXPIRATION_MS": "3600000",
        "TABLEWIRE_PRODUCER_ID_EXPIRATION_MS": "3600000",
    }
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("crowd")
        gateway = stack.enter_context(GatewayProcess(database_url, directory=directory, settings=settings))
        many = [stack.enter_context(TransactionConnection(gateway.bootstrap)) for _ in range(16)]
        with bounded_memory(gateway.pid, limit_bytes=MANY_IDS * 2_000):
            with ThreadPoolExecutor(len(many)) as pool:
                ids = list(pool.map(start_many, many, range(len(many))))
            assert len(set(itertools.chain(*ids))) == MANY_IDS
            assert run(database_url, "SELECT count(*) FROM kafka.transactions") == [(MANY_IDS,)]
            with psycopg.connect(database_url) as connection:  # two hours pass, but not for one of them
                connection.execute(
                    "UPDATE kafka.transactions SET updated_at = now() - interval '2 hours'"
                    " WHERE transactional_id <> 'crowd-0'"
                )
                connection.execute("UPDATE kafka.producer_ids SET last_active_at = now() - interval '2 hours'")
            names = "SELECT transactional_id FROM kafka.transactions"
            kept = [("crowd-0",)]
            # A housekeeper that takes one step a round would need several of them, five seconds each.
            wait_for(lambda: run(database_url, f"{names} LIMIT 2"), kept, timeout_s=30)
            wait_for(lambda: run(database_url, "SELECT transactional_id FROM kafka.producer_ids LIMIT 2"), kept)
        assert many[0].start("crowd-1").id not in set(itertools.chain(*ids)), "an expired id begins anew"


def start_many(connection: TransactionConnection, share: int) -> list[int]:
    """InitProducerId for a sixteenth of the ids, without waiting for each answer."""
    names = [f"crowd-{n}" for n in range(share, MANY_IDS, 16)]
    found = []
    for start in range(0, len(names), 10):
        some = names[start : start + 10]
        for name in some:
            connection.send("InitProducerId", 1, transactional_id=name, transaction_timeout_ms=60_000)
        answers = [connection.receive("InitProducerId", 1) for _ in some]
        assert {answer["error_code"] for answer in answers} == {NONE}
        found += [answer["producer_id"] for answer in answers]
    return found


def test_unused_transactional_ids_expire(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"TABLEWIRE_TRANSACTIONAL_ID_EXPIRATION_MS": "3600000"}
    with (
        GatewayProcess(database_url, directory=tmp_path_factory.mktemp("expiring"), settings=settings) as gateway,
        TransactionConnection(gateway.bootstrap) as connection,
    ):
        topic = connection.create_topic("expiring")
        kept = Writer(connection, "kept")
        kept.write(topic, b"open")
        first = [connection.start(f"many-{n}") for n in range(300)]
        run(database_url, "UPDATE kafka.transactions SET updated_at = now() - interval '2 hours'")
        names = "SELECT transactional_id FROM kafka.transactions"
        wait_for(lambda: run(database_url, names), [("kept",)], timeout_s=30)
        assert kept.end(commit=True) == NONE
        again = connection.start("many-0")
        assert again.id not in {producer.id for producer in first}, "an expired id begins anew"
        assert connection.add_one("many-1", first[1], topic) == WRONG_MAPPING


# --- a connection that was given up (T12, F12) -----------------------------------------------


@pytest.mark.parametrize("moves_to", ["the same gateway", "another gateway"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_delayed_end_does_not_reach_the_next_transaction(
    commit: bool, moves_to: str, gateways: list[GatewayProcess], name: str, new_topic: Callable[..., str]
) -> None:
    """KAFKA-17754: EndTxn hangs in the network, the client comes back over a new connection, ends, and begins anew."""
    topic = new_topic()
    with Proxy(gateways[0].port, api_keys=[END_TXN], faults=[Fault.HELD_BACK], cut_every=1, waits=True) as proxy:
        with TransactionConnection(proxy.address) as before:
            writer = Writer(before, name)
            writer.write(topic, b"first")
            with pytest.raises(ConnectionError):
                writer.end(commit=commit)
        through = Through([gateways[0 if moves_to == "the same gateway" else 1]], CLASSIC)
        writer.through = through
        assert writer.end(commit=commit) == NONE
        assert writer.write(topic, b"second").code == NONE
        proxy.let_go()
        wait_for(lambda: proxy.held, 0)
        assert writer.write(topic, b"third").code == NONE, "the next transaction is still open"
        assert offsets_of(through.database_url, topic) == (0, 2, 4)
        assert writer.end(commit=True) == NONE
        require_seen(through, topic, [b"first", b"second", b"third"] if commit else [b"second", b"third"])
        through.close()


def test_who_asks_for_the_coordinator_is_listened_to_over_the_next_connection(
    gateways: list[GatewayProcess], name: str, new_topic: Callable[..., str]
) -> None:
    """A client that moves to another gateway is not sent away first; what it gave up there before still is."""
    topic = new_topic()
    with ExitStack() as stack:
        here, elsewhere = gateways
        asking = stack.enter_context(TransactionConnection(here.bootstrap))
        found = asking.call("FindCoordinator", 3, key=name, key_type=1)
        if found["port"] != here.port:
            here, elsewhere = elsewhere, here
            asking = stack.enter_context(TransactionConnection(here.bootstrap))
        writer = Writer(stack.enter_context(TransactionConnection(elsewhere.bootstrap)), name)
        writer.write(topic, b"first")
        given_up = stack.enter_context(TransactionConnection(here.bootstrap))
        assert asking.call("FindCoordinator", 3, key=name, key_type=1)["port"] == here.port
        after = stack.enter_context(TransactionConnection(here.bootstrap))
        with pytest.raises(ConnectionError):
            given_up.end(name, writer.producer, commit=False)
        writer.through = after
        assert writer.end(commit=True) == NONE
    assert [record.value for record in committed(gateways[0].database_url, topic)] == [b"first"]


def test_a_restarted_gateway_listens_to_the_first_connection(
    database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with GatewayProcess(database_url, directory=tmp_path_factory.mktemp("restarted"), settings=SETTINGS) as gateway:
        with TransactionConnection(gateway.bootstrap) as before:
            topic = before.create_topic("restarted")
            writer = Writer(before, "restarted")
            writer.write(topic, b"first")
            gateway.kill9()
        gateway.restart()
        with TransactionConnection(gateway.bootstrap) as after:
            writer.through = after
            assert writer.end(commit=True) == NONE
    assert [record.value for record in committed(database_url, topic)] == [b"first"]


def test_a_delayed_produce_does_not_reach_the_next_transaction(
    gateways: list[GatewayProcess], name: str, new_topic: Callable[..., str]
) -> None:
    """The client gave the batch up with its transaction, and sends another with the same sequence in the next."""
    topic = new_topic()
    with Proxy(gateways[0].port, faults=[Fault.HELD_BACK], cut_every=1, waits=True) as proxy:
        with TransactionConnection(proxy.address) as before:
            writer = Writer(before, name)
            writer.begin(topic)
            with pytest.raises(ConnectionError):
                before.write(name, writer.producer, topic, [b"of the first"], sequence=0)
        through = Through(gateways[:1], CLASSIC)
        writer.through = through
        assert writer.end(commit=False) == NONE
        writer.begin(topic, 0)
        through.produce(name, {(topic, 9): transactional_batch([b"?"], writer.producer, sequence=0)})
        assert through.add_one(name, writer.producer, topic) == NONE
        other = new_topic()
        writer.write(other, b"heard of the new connection")
        proxy.let_go()
        wait_for(lambda: proxy.held, 0)
        assert offsets_of(through.database_url, topic) == (0, 0, 0)
        assert writer.write(topic, b"of the second").code == NONE
        assert writer.end(commit=True) == NONE
        require_seen(through, topic, [b"of the second"])
        through.close()


def test_a_delayed_end_of_the_newer_protocol_has_an_old_epoch(
    gateways: list[GatewayProcess], name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    with Proxy(gateways[0].port, api_keys=[END_TXN], faults=[Fault.HELD_BACK], cut_every=1, waits=True) as proxy:
        with TransactionConnection(proxy.address, KIP_890) as before:
            writer = Writer(before, name)
            writer.write(topic, b"first")
            with pytest.raises(ConnectionError):
                writer.end(commit=True)
        through = Through(gateways[:1], KIP_890)
        writer.through = through
        assert writer.end(commit=True) == NONE
        assert writer.write(topic, b"second").code == NONE
        proxy.let_go()
        wait_for(lambda: proxy.held, 0)
        assert writer.write(topic, b"third").code == NONE
        assert writer.end(commit=True) == NONE
        require_seen(through, topic, [b"first", b"second", b"third"])
        through.close()


# --- races through two gateways --------------------------------------------------------------


def test_what_was_acknowledged_before_the_end_is_in_it_and_nothing_after_it(
    gateways: list[GatewayProcess],
    connect: Callable[..., TransactionConnection],
    generation: Generation,
    name: str,
    new_topic: Callable[..., str],
) -> None:
    """One thread appends through one gateway while the transaction is ended through the other."""
    topic = new_topic(3)
    appending, ending = connect(0, generation), connect(1, KIP_890)
    for attempt in range(12):
        writer = Writer(appending, f"{name}-{attempt}")
        for partition in range(3):
            writer.begin(topic, partition)
        written: list[bytes] = []
        is_begun = threading.Event()

        def append_until_refused(
            writer: Writer = writer, written: list[bytes] = written, is_begun: threading.Event = is_begun
        ) -> int:
            for n in itertools.count():
                value = b"%s/%d" % (writer.name.encode(), n)
                outcome = writer.write(topic, value, partition=n % 3)
                if outcome.code != NONE:
                    return outcome.code
                written.append(value)
                is_begun.set()
            raise AssertionError

        commit = attempt % 3 != 2
        with ThreadPoolExecutor(1) as pool:
            refused = pool.submit(append_until_refused)
            assert is_begun.wait(60)
            time.sleep(0.002 * attempt)
            assert ending.end(writer.name, writer.producer, commit=commit)[0] == NONE
            assert refused.result(60) == OLD_EPOCH
        seen = [
            value
            for partition in range(3)
            for value in values(committed(gateways[0].database_url, topic, partition))
            if value.startswith(writer.name.encode() + b"/")
        ]
        assert sorted(seen) == (sorted(written) if commit else [])
    for partition in range(3):
        _, stable, end = offsets_of(gateways[0].database_url, topic, partition)
        assert stable == end
        for connection in (appending, ending):
            assert connection.read_all(topic, partition=partition) == committed(
                gateways[0].database_url, topic, partition
            )


def test_an_instance_that_starts_while_the_other_writes_leaves_nothing_half_done(
    gateways: list[GatewayProcess],
    connect: Callable[..., TransactionConnection],
    generation: Generation,
    name: str,
    new_topic: Callable[..., str],
) -> None:
    topic = new_topic(2)
    connections = [connect(0, generation), connect(1, generation)]
    outcomes: list[tuple[bool, list[bytes]]] = []

    def run_transactions(number: int) -> None:
        for attempt in range(15):
            writer = Writer(connections[number], name)
            mine = []
            for n in range(4):
                value = b"%d.%d.%d" % (number, attempt, n)
                try:
                    code = writer.write(topic, value, partition=n % 2).code
                except AssertionError:
                    code = FENCED  # AddPartitionsToTxn says so
                if code != NONE:
                    break
                mine.append(value)
            outcomes.append((len(mine) == 4 and writer.end(commit=True) == NONE, mine))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run_transactions, number) for number in range(2)]:
            done.result(60)
    connections[0].start(name)
    expected = sorted(value for is_committed, mine in outcomes if is_committed for value in mine)
    seen = [record for partition in range(2) for record in committed(gateways[0].database_url, topic, partition)]
    assert sorted(values(seen)) == expected
    for connection in connections:
        read = [record for partition in range(2) for record in connection.read_all(topic, partition=partition)]
        assert sorted(values(read)) == expected
    for partition in range(2):
        assert len(set(offsets_of(gateways[0].database_url, topic, partition)[1:])) == 1


def test_ends_and_appends_of_many_producers_at_once(
    gateways: list[GatewayProcess],
    connect: Callable[..., TransactionConnection],
    name: str,
    new_topic: Callable[..., str],
) -> None:
    """Transactions over the same partitions in different orders: no deadlock is told to anybody."""
    topic = new_topic(5)

    def work(number: int) -> list[bytes]:
        connection = connect(number % 2, KIP_890 if number % 3 else CLASSIC)
        writer = Writer(connection, f"{name}-{number}")
        kept = []
        for attempt in range(8):
            mine = []
            for step in range(5):
                partition = (step * (number + 1) + attempt) % 5
                value = b"%d.%d.%d" % (number, attempt, step)
                assert writer.write(topic, value, partition=partition).code == NONE
                mine.append(value)
            commit = (number + attempt) % 4 != 0
            assert writer.end(commit=commit) == NONE
            kept += mine if commit else []
        return kept

    with ThreadPoolExecutor(6) as pool:
        expected = sorted(value for kept in pool.map(work, range(6)) for value in kept)
    seen = [value for partition in range(5) for value in values(committed(gateways[0].database_url, topic, partition))]
    assert sorted(seen) == expected
    for number in range(2):
        reader = connect(number)
        for partition in range(5):
            assert reader.read_all(topic, partition=partition) == committed(gateways[0].database_url, topic, partition)


# --- topics that change under a transaction --------------------------------------------------


def test_a_topic_deleted_inside_a_transaction_does_not_keep_it_from_ending(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    gone, kept = new_topic(), new_topic()
    writer = Writer(through, name)
    writer.write(gone, b"gone")
    writer.write(kept, b"kept")
    answer = through.call("DeleteTopics", 4, topic_names=[gone], timeout_ms=20_000)
    assert answer["responses"][0]["error_code"] == NONE
    assert writer.write(gone, b"more").code == UNKNOWN_TOPIC
    assert writer.end(commit=True) == NONE
    require_seen(through, kept, [b"kept"])


def test_a_topic_may_be_deleted_while_a_transaction_over_it_ends(
    connect: Callable[..., TransactionConnection], name: str, new_topic: Callable[..., str]
) -> None:
    """Both want the same rows, in different orders: PostgreSQL may undo one of them, and nobody hears of it."""
    kept = new_topic()
    ending, deleting = connect(0, KIP_890), connect(1)
    writer = Writer(ending, name)
    for n in range(15):
        gone = new_topic(6)
        for partition in reversed(range(6)):
            assert writer.write(gone, b"gone", partition=partition).code == NONE
        writer.write(kept, b"%d" % n)
        with ThreadPoolExecutor(2) as pool:
            ended = pool.submit(writer.end, commit=True)
            deleted = pool.submit(deleting.call, "DeleteTopics", 4, topic_names=[gone], timeout_ms=20_000)
            assert ended.result(60) == NONE
            assert deleted.result(60)["responses"][0]["error_code"] == NONE
    assert values(ending.read_all(kept)) == [b"%d" % n for n in range(15)]


def test_new_partitions_can_join_an_open_transaction(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    writer = Writer(through, name)
    writer.write(topic, b"0")
    answer = through.call(
        "CreatePartitions",
        1,
        topics=[{"name": topic, "count": 3, "assignments": None}],
        timeout_ms=20_000,
        validate_only=False,
    )
    assert answer["results"][0]["error_code"] == NONE
    wait_for(lambda: {through.fetch(topic, 0, partition=2).code for _ in range(2)}, {NONE})
    assert writer.write(topic, b"2", partition=2).code == NONE
    assert writer.end(commit=True) == NONE
    require_seen(through, topic, [b"0"])
    require_seen(through, topic, [b"2"], partition=2)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_records_of_an_open_transaction_may_be_deleted(
    commit: bool, through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    """As with Kafka: the last stable offset is never below the log's start, and readers go on behind it."""
    topic = new_topic()
    through.write_plainly(topic, [b"p0"])
    writer = Writer(through, name)
    writer.write(topic, b"t1", b"t2", b"t3")
    delete = {"timeout_ms": 20_000}
    places = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
    answer = through.call("DeleteRecords", 1, topics=places, **delete)
    assert answer["topics"][0]["partitions"][0] == {"partition_index": 0, "low_watermark": 3, "error_code": NONE}
    assert offsets_of(through.database_url, topic) == (3, 3, 4)
    assert through.end_offset(topic) == 3
    through.write_plainly(topic, [b"p4"])
    assert writer.write(topic, b"t5").code == NONE
    assert offsets_of(through.database_url, topic) == (3, 3, 6)
    assert writer.end(commit=commit) == NONE
    assert offsets_of(through.database_url, topic) == (3, 7, 7)
    expected = [b"t3", b"p4", b"t5"] if commit else [b"p4"]
    for _ in range(2):
        assert values(through.read_all(topic, start=3)) == expected
    assert values(committed(through.database_url, topic)) == expected


def test_all_records_of_an_open_transaction_may_be_deleted(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writers = [Writer(through, f"{name}-{n}") for n in range(2)]
    writers[0].write(topic, b"t0")
    places = [{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}]
    through.call("DeleteRecords", 1, topics=places, timeout_ms=20_000)
    assert offsets_of(through.database_url, topic) == (1, 1, 1)
    through.write_plainly(topic, [b"p1"])
    writers[1].write(topic, b"u2")
    assert writers[1].end(commit=True) == NONE
    writers[0].write(topic, b"t4")
    stable = offsets_of(through.database_url, topic)[1]
    assert 1 <= stable <= 4
    assert writers[0].end(commit=True) == NONE
    assert offsets_of(through.database_url, topic) == (1, 6, 6)
    assert values(through.read_all(topic, start=1)) == [b"p1", b"u2", b"t4"]


# --- consumer offsets inside transactions (T14) ----------------------------------------------


def coordinator(through: Through, group: str) -> TransactionConnection:
    """A connection to the gateway that coordinates a group."""
    answer = through.call("FindCoordinator", 3, key=group, key_type=0)
    assert answer["error_code"] == NONE
    return TransactionConnection(f"{answer['host']}:{answer['port']}", through.generation)


def committed_offset(through: Through, group: str, topic: str, partition: int = 0) -> int:
    with coordinator(through, group) as connection:
        asked = [{"name": topic, "partition_indexes": [partition]}]
        answer = connection.call("OffsetFetch", 5, group_id=group, topics=asked)
    assert answer["error_code"] == NONE, answer
    (one,) = answer["topics"][0]["partitions"]
    assert one["error_code"] == NONE
    return int(one["committed_offset"])


def commit_offsets(writer: Writer, group: str, offsets: Mapping[tuple[str, int], int], **more: Any) -> set[int]:
    with coordinator(writer.through, group) as connection:
        return set(connection.commit_offsets(writer.name, writer.producer, group, offsets, **more).values())


def begin_offsets(writer: Writer, group: str) -> None:
    """What comes before offsets in a transaction: nothing since KIP-890."""
    if not writer.through.generation.bumps:
        assert writer.through.add_offsets(writer.name, writer.producer, group) == NONE


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_offsets_become_true_with_the_transaction(
    commit: bool, through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    source, target = new_topic(2), new_topic()
    groups = [f"{name}-g{n}" for n in range(3)]
    writer = Writer(through, name)
    writer.write(target, b"out")
    for n, group in enumerate(groups):
        if not through.generation.bumps:
            assert through.add_offsets(name, writer.producer, group) == NONE
        assert commit_offsets(writer, group, {(source, 0): 5, (source, 1): 1}) == {NONE}
        assert commit_offsets(writer, group, {(source, 0): 10 + n}) == {NONE}, "a later one replaces an earlier one"
        assert committed_offset(through, group, source) == -1
    assert writer.end(commit=commit) == NONE
    for n, group in enumerate(groups):
        assert committed_offset(through, group, source) == (10 + n if commit else -1)
        assert committed_offset(through, group, source, 1) == (1 if commit else -1)
    require_seen(through, target, [b"out"] if commit else [])


def test_offsets_alone_make_a_transaction(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    group = f"{name}-g"
    if not through.generation.bumps:
        for version, code in ((0, INVALID_TXN_STATE), (3, INVALID_TXN_STATE), (4, ABORTABLE)):
            assert commit_offsets(writer, group, {(topic, 0): 3}, version=version) == {code}
        assert through.add_offsets(name, writer.producer, group) == NONE
    assert commit_offsets(writer, group, {(topic, 0): 3}) == {NONE}
    assert writer.end(commit=True) == NONE
    assert committed_offset(through, group, topic) == 3


def test_offsets_of_a_fenced_producer_or_a_stranger_to_the_group_are_not_stored(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    group = f"{name}-g"
    old = Writer(through, name)
    if not through.generation.bumps:
        assert through.add_offsets(name, old.producer, group) == NONE
    assert commit_offsets(old, group, {(topic, 0): 7}) == {NONE}
    new = Writer(through, name)
    assert commit_offsets(old, group, {(topic, 0): 8}) == {OLD_EPOCH}
    if not through.generation.bumps:
        assert through.add_offsets(name, new.producer, group) == NONE
    stranger = {"member_id": "nobody", "generation_id": 3}
    assert commit_offsets(new, group, {(topic, 0): 9}, **stranger) <= {22, 25}
    assert commit_offsets(new, group, {(topic, 99): 9}) == {UNKNOWN_TOPIC}
    assert commit_offsets(new, group, {(topic, 0): 9}, metadata="x" * 5000) == {12}
    assert new.end(commit=True) == NONE
    assert committed_offset(through, group, topic) == -1
    assert run(through.database_url, "SELECT count(*) FROM kafka.transaction_offsets WHERE group_id = %s", group) == [
        (0,)
    ]


def stable_offsets(through: Through, group: str, topic: str, partitions: int) -> list[tuple[int, int]]:
    """Error code and offset of each partition, asked as a consumer of committed records asks (KIP-447)."""
    asked = [{"name": topic, "partition_indexes": list(range(partitions))}]
    with coordinator(through, group) as connection:
        answer = connection.call("OffsetFetch", 7, group_id=group, topics=asked, require_stable=True)
    assert answer["error_code"] == NONE, answer
    return [(one["error_code"], one["committed_offset"]) for one in answer["topics"][0]["partitions"]]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_an_offset_that_a_transaction_may_change_is_unstable_until_its_end(
    commit: bool, through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic, group = new_topic(2), f"{name}-g"
    first = Writer(through, name)
    begin_offsets(first, group)
    assert commit_offsets(first, group, {(topic, 0): 4, (topic, 1): 5}) == {NONE}
    assert stable_offsets(through, group, topic, 2) == [(UNSTABLE, -1), (UNSTABLE, -1)]
    assert first.end(commit=True) == NONE
    assert stable_offsets(through, group, topic, 2) == [(NONE, 4), (NONE, 5)]
    begin_offsets(first, group)
    assert commit_offsets(first, group, {(topic, 1): 9}) == {NONE}
    assert stable_offsets(through, group, topic, 2) == [(NONE, 4), (UNSTABLE, -1)], "the other partition is not held"
    assert committed_offset(through, group, topic, 1) == 5, "who does not ask for stable ones sees the last commit"
    assert stable_offsets(through, f"{group}-other", topic, 2) == [(NONE, -1), (NONE, -1)]
    assert first.end(commit=commit) == NONE
    assert stable_offsets(through, group, topic, 2) == [(NONE, 4), (NONE, 9 if commit else 5)]


def coordinator_address(gateway: GatewayProcess, group: str) -> str:
    with TransactionConnection(gateway.bootstrap) as connection:
        answer = connection.call("FindCoordinator", 3, key=group, key_type=0)
    return f"{answer['host']}:{answer['port']}"


def test_a_zombie_member_commits_nothing_in_its_transaction(
    through: Through, name: str, new_topic: Callable[..., str], gateways: list[GatewayProcess]
) -> None:
    """Its generation has passed: who took its partitions over may have read the same records (KIP-447)."""
    topic, group = new_topic(), f"{name}-g"
    # Members keep their connections, so the group must not move: gateways just started may not know each other yet.
    wait_for(lambda: len({coordinator_address(gateway, group) for gateway in gateways}), 1)
    address = coordinator_address(gateways[0], group)
    zombie, heir = (Member(address, group, topic=topic) for _ in range(2))
    try:
        zombie.settle()
        was = {"member_id": zombie.member_id, "generation_id": zombie.generation}
        writer = Writer(through, name)
        begin_offsets(writer, group)
        assert commit_offsets(writer, group, {(topic, 0): 3}, **was) == {NONE}
        assert writer.end(commit=True) == NONE
        joining = heir.begin_join()
        wait_for(zombie.heartbeat, REBALANCE_IN_PROGRESS)
        assert zombie.join()["error_code"] == NONE
        assert joining.result(60)["error_code"] == NONE
        begin_offsets(writer, group)
        assert commit_offsets(writer, group, {(topic, 0): 8}, **was) == {ILLEGAL_GENERATION}
        zombie.leave()
        assert commit_offsets(writer, group, {(topic, 0): 8}, **was) == {UNKNOWN_MEMBER_ID}
        stranger = {**was, "generation_id": heir.generation}
        assert commit_offsets(writer, group, {(topic, 0): 8}, **stranger) == {UNKNOWN_MEMBER_ID}
        query = "SELECT count(*) FROM kafka.transaction_offsets WHERE group_id = %s"
        assert run(through.database_url, query, group) == [(0,)]
        assert writer.end(commit=True) == NONE
        assert committed_offset(through, group, topic) == 3
    finally:
        zombie.close()
        heir.close()


# --- what operators see (KIP-664) ------------------------------------------------------------


def test_transactions_are_listed_and_described(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    writer = Writer(through, name, timeout_ms=50_000)
    writer.write(topic, b"a", partition=2)
    writer.write(topic, b"b")
    described = through.call("DescribeTransactions", 0, transactional_ids=[name, "", f"{name}-none"])
    one, *others = described["transaction_states"]
    assert [other["error_code"] for other in others] == [INVALID_REQUEST, ID_NOT_FOUND]
    started_at_ms = one.pop("transaction_start_time_ms")
    assert abs(started_at_ms - time.time() * 1000) < 60_000
    assert one == {
        "error_code": NONE,
        "transactional_id": name,
        "transaction_state": "Ongoing",
        "transaction_timeout_ms": 50_000,
        "producer_id": writer.producer.id,
        "producer_epoch": writer.producer.epoch,
        "topics": [{"topic": topic, "partitions": [0, 2]}],
    }
    listed = list_transactions(through, state_filters=["Ongoing", "Nonsense"])
    assert listed["unknown_state_filters"] == ["Nonsense"]
    assert (name, "Ongoing") in states_of(listed)
    assert states_of(list_transactions(through, producer_id_filters=[writer.producer.id])) == [(name, "Ongoing")]
    assert states_of(list_transactions(through, pattern=f"{name}.*")) == [(name, "Ongoing")]
    assert states_of(list_transactions(through, pattern=name[:-1])) == [], "the whole name must match"
    for unreadable in ("[", r"(a)\1", "(?=a)", "a\0", "(a{1000}){1000}"):
        assert list_transactions(through, pattern=unreadable)["error_code"] == 128, unreadable
    assert (name, "Ongoing") in states_of(list_transactions(through, duration_filter=0))
    assert (name, "Ongoing") not in states_of(list_transactions(through, duration_filter=3_600_000))
    assert writer.end(commit=True) == NONE
    (after,) = through.call("DescribeTransactions", 0, transactional_ids=[name])["transaction_states"]
    assert (after["transaction_state"], after["topics"], after["transaction_start_time_ms"]) == (
        "CompleteCommit",
        [],
        -1,
    )


def test_no_pattern_keeps_a_gateway_busy(connect: Callable[..., TransactionConnection]) -> None:
    """Backtracking would try more ways than there are atoms to match this."""
    connection = connect()
    connection.start("a" * 300)
    assert states_of(list_transactions(connection, pattern="(a+)+(a|aa)+b")) == []
    assert states_of(list_transactions(connection, pattern="(a+)+(a|aa)+")) == [("a" * 300, "Empty")]


def list_transactions(through: Through | TransactionConnection, **filters: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    version = 0
    if "duration_filter" in filters:
        version = 1
    if "pattern" in filters:
        version = 2
        filters["transactional_id_pattern"] = filters.pop("pattern")
    if version >= 1:
        fields["duration_filter"] = -1
    answer: dict[str, Any] = through.call("ListTransactions", version, **{**fields, **filters})
    return answer


def states_of(listed: dict[str, Any]) -> list[tuple[str, str]]:
    assert listed["error_code"] == NONE
    return [(one["transactional_id"], one["transaction_state"]) for one in listed["transaction_states"]]


def test_producers_of_a_partition_show_where_their_transactions_began(
    through: Through, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    through.write_plainly(topic, [b"p"])
    writer = Writer(through, name)
    writer.write(topic, b"a")
    writer.write(topic, b"b")

    def producers() -> list[tuple[int, int, int]]:
        answer = through.call("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
        (one,) = answer["topics"][0]["partitions"]
        return [
            (each["producer_id"], each["last_sequence"], each["current_txn_start_offset"])
            for each in one["active_producers"]
        ]

    assert producers() == [(writer.producer.id, 1, 1)]
    assert writer.end(commit=True) == NONE
    assert producers() == [(writer.producer.id, 1, -1)]


def test_an_operator_aborts_a_transaction(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    topic, other = new_topic(2), new_topic()
    writer = Writer(through, name)
    writer.write(topic, b"a")
    writer.write(other, b"b")
    had = writer.producer

    def write_marker(*, epoch: int, commit: bool = False, partitions: Sequence[int] = (0,)) -> list[int]:
        marker = {
            "producer_id": had.id,
            "producer_epoch": epoch,
            "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": list(partitions)}],
            "coordinator_epoch": 0,
        }
        answer = through.call("WriteTxnMarkers", 1, markers=[marker])
        (one,) = answer["markers"][0]["topics"]
        return [partition["error_code"] for partition in one["partitions"]]

    assert write_marker(epoch=had.epoch + 4) == [OLD_EPOCH]
    assert write_marker(epoch=had.epoch, commit=True) == [INVALID_REQUEST]
    assert write_marker(epoch=had.epoch, partitions=[1]) == [INVALID_TXN_STATE]
    assert write_marker(epoch=had.epoch) == [NONE]
    require_seen(through, topic, [])
    require_seen(through, other, [])
    assert writer.end(commit=True) == (ABORTABLE if through.generation.bumps else FENCED)
    assert offsets_of(through.database_url, topic) == (0, 2, 2)


def test_the_same_by_psql(through: Through, name: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    writer = Writer(through, name)
    through.write_plainly(topic, [b"p"])
    writer.write(topic, b"a")
    ((partitions, age, waiting),) = run(
        through.database_url,
        "SELECT partitions, age, offsets_waiting FROM kafka.open_transactions WHERE transactional_id = %s",
        name,
    )
    assert partitions == [
        {"topic": topic, "partition": 0, "first_offset": 1, "last_offset": 1, "holds_last_stable_offset": True}
    ]
    assert 0 <= age.total_seconds() < 60
    assert waiting == 0
    ((before,),) = run(through.database_url, "SELECT aborted FROM kafka.transaction_stats")
    ((said,),) = run(through.database_url, "SELECT kafka.abort_transaction(%s)", name)
    assert said == "aborted, in 1 partitions; the producer is fenced"
    ((said,),) = run(through.database_url, "SELECT kafka.abort_transaction(%s)", name)
    assert said == f"{name} has no open transaction"
    with pytest.raises(psycopg.errors.RaiseException, match="no transactional id"):
        run(through.database_url, "SELECT kafka.abort_transaction(%s)", f"{name}-none")
    ((after,),) = run(through.database_url, "SELECT aborted FROM kafka.transaction_stats")
    assert after == before + 1
    require_seen(through, topic, [b"p"])
    batch = transactional_batch([b"late"], writer.producer, sequence=1)
    assert through.produce(name, {(topic, 0): batch})[topic, 0].code == OLD_EPOCH


def test_transactions_are_counted_and_measured(
    gateways: list[GatewayProcess],
    connect: Callable[..., TransactionConnection],
    name: str,
    new_topic: Callable[..., str],
) -> None:
    topic, connection = new_topic(), connect(0, KIP_890)

    def measured() -> dict[str, float]:
        with urllib.request.urlopen(f"{gateways[0].http_url}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def count(outcome: str) -> str:
        return f'tablewire_transactions{{outcome="{outcome}"}}'

    wait_for(lambda: count("started") in measured(), wanted=True)
    before = measured()
    writers = [Writer(connection, f"{name}-{n}", timeout_ms=3000 if n == 2 else 60_000) for n in range(4)]
    for writer in writers:
        writer.write(topic, b"v")

    def counts_these() -> bool:
        now = measured()
        return (
            now[count("started")] >= before[count("started")] + 4
            and now["tablewire_open_transactions"] >= 2
            and now["tablewire_oldest_open_transaction_seconds"] > 0
        )

    # What it counts first may be of before: others have begun and ended some that it had not seen yet.
    wait_for(counts_these, wanted=True)
    writers[0].end(commit=True)
    writers[1].end(commit=False)
    writers[3].end(commit=True)
    wait_for(
        lambda: (
            measured()[count("committed")] >= before[count("committed")] + 2
            and measured()[count("aborted")] >= before[count("aborted")] + 2
            and measured()[count("timed_out")] >= before[count("timed_out")] + 1
        ),
        wanted=True,
        timeout_s=3 + SWEPT_WITHIN_S,
    )
    after = measured()
    lasted = 'tablewire_transaction_seconds_count{outcome="committed"}'
    assert after[lasted] >= before.get(lasted, 0) + 2
    assert after["tablewire_transaction_end_seconds_count"] >= before["tablewire_transaction_end_seconds_count"] + 3
