"""The rule of idempotence over the wire: hand-made batches, a real gateway, a real database.

Each case runs through one gateway and through two, where every request goes to the other one than the last, so
that a retry never meets the memory of the gateway that wrote the batch.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import psycopg
import pytest

from tests.conftest import _scratch_database as scratch_database
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import (
    FENCED,
    INVALID_RECORD,
    INVALID_REQUEST,
    OLD_DUPLICATE,
    OLD_EPOCH,
    OUT_OF_ORDER,
    HandmadeProducer,
    Outcome,
    StoredRow,
    make_batch,
    stored_rows,
)
from tests.support.waiting import wait_for

MAX_SEQUENCE = 2**31 - 1
LAST_EPOCH = 32766
UNKNOWN_IDS = itertools.count(7_000_000_000)
"""Ids that no gateway has given out."""


@pytest.fixture(scope="module")
def gateways(
    server_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[GatewayProcess]]:
    """Two gateways on a database of this module's own."""
    with ExitStack() as stack:
        database_url = stack.enter_context(scratch_database(server_url, template_database))
        yield start_two(stack, database_url, tmp_path_factory.mktemp("idempotence"))


def start_two(
    stack: ExitStack, database_url: str, directory: Path, settings: dict[str, str] | None = None
) -> list[GatewayProcess]:
    return [
        stack.enter_context(
            GatewayProcess(
                database_url,
                directory=directory,
                name=f"gateway-{node_id}",
                settings={"TABLEWIRE_NODE_ID": str(node_id), **(settings or {})},
            )
        )
        for node_id in (1, 2)
    ]


class Through:
    """Connections used in turn: to one gateway, or alternately to both."""

    def __init__(self, gateways: Sequence[GatewayProcess]) -> None:
        self.database_url = gateways[0].database_url
        self.connections = [HandmadeProducer(gateway.bootstrap) for gateway in gateways]
        self._turns = itertools.cycle(self.connections)

    @property
    def other(self) -> HandmadeProducer:
        return next(self._turns)

    def new_producer(self) -> int:
        code, producer_id, epoch = self.other.init_producer_id()
        assert (code, epoch) == (0, 0)
        return producer_id

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@pytest.fixture(params=["one gateway", "two gateways"])
def through(request: pytest.FixtureRequest, gateways: list[GatewayProcess]) -> Iterator[Through]:
    through = Through(gateways if request.param == "two gateways" else gateways[:1])
    yield through
    through.close()


@pytest.fixture
def new_topic(gateways: list[GatewayProcess]) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: str) -> str:
        with HandmadeProducer(gateways[0].bootstrap) as connection:
            return connection.create_topic(f"idempotence.{uuid.uuid4().hex[:12]}", partitions=partitions, **configs)

    return create


# --- the table of cases ----------------------------------------------------------------------


class Step(NamedTuple):
    """A batch of `count` records; `answer` is its base offset, or the error code below zero."""

    first: int
    count: int
    answer: int
    epoch: int = 0
    is_written: bool = True


def refused(first: int, count: int, code: int, *, epoch: int = 0) -> Step:
    return Step(first, count, -code, epoch, is_written=False)


def again(step: Step) -> Step:
    """The same batch once more: the same answer, and nothing is written."""
    return step._replace(is_written=False)


def run_of(batches: int, *, count: int = 2, epoch: int = 0, base: int = 0) -> list[Step]:
    return [Step(n * count, count, base + n * count, epoch) for n in range(batches)]


KNOWN_CASES: dict[str, list[Step]] = {
    "first and next": [Step(0, 3, 0), Step(3, 1, 3), Step(4, 10, 4)],
    "each of the last five is answered with its own offset": [
        *run_of(7),
        *[again(step) for step in run_of(7)[2:]],
        Step(14, 1, 14),
    ],
    "duplicates in any order": [*run_of(5), *[again(run_of(5)[n]) for n in (4, 0, 3, 3, 1)]],
    "a duplicate older than the window": [
        *run_of(7),
        refused(0, 2, OLD_DUPLICATE),
        refused(2, 2, OLD_DUPLICATE),
        Step(14, 2, 14),
        refused(4, 2, OLD_DUPLICATE),  # also by a gateway that remembers it, but did not write the last batch
    ],
    "part of what was written": [Step(0, 4, 0), refused(0, 2, OLD_DUPLICATE), refused(2, 2, OLD_DUPLICATE)],
    "more than what was written": [Step(0, 4, 0), refused(2, 4, OUT_OF_ORDER), refused(0, 5, OUT_OF_ORDER)],
    "a gap, and then recovery": [
        Step(0, 2, 0),
        refused(5, 2, OUT_OF_ORDER),
        refused(4, 1, OUT_OF_ORDER),
        Step(2, 2, 2),
        Step(4, 1, 4),
        Step(5, 2, 5),
    ],
    "a young producer starts at 0": [
        refused(1, 1, OUT_OF_ORDER),
        refused(100, 3, OUT_OF_ORDER),
        Step(0, 1, 0),
    ],
    "an old epoch": [
        Step(0, 2, 0),
        Step(0, 2, 2, epoch=1),
        refused(2, 2, OLD_EPOCH),
        refused(0, 2, OLD_EPOCH),
        Step(2, 1, 4, epoch=1),
    ],
    "a new epoch starts at 0": [
        Step(0, 2, 0),
        refused(2, 2, OUT_OF_ORDER, epoch=1),
        Step(2, 1, 2),
        Step(0, 1, 3, epoch=1),
        again(Step(0, 1, 3, epoch=1)),
    ],
    "an epoch higher than was issued": [
        Step(0, 1, 0),
        Step(0, 1, 1, epoch=7),
        Step(1, 1, 2, epoch=7),
        refused(1, 1, OLD_EPOCH, epoch=6),
        Step(0, 1, 3, epoch=LAST_EPOCH + 1),
        again(Step(0, 1, 3, epoch=LAST_EPOCH + 1)),
    ],
    "the window begins anew with an epoch": [
        *run_of(3),
        Step(0, 2, 6, epoch=1),
        refused(2, 2, OUT_OF_ORDER, epoch=2),
    ],
}

UNKNOWN_CASES: dict[str, list[Step]] = {
    "an unknown producer starts anywhere": [
        Step(40, 2, 0),
        again(Step(40, 2, 0)),
        Step(42, 1, 2),
        refused(38, 2, OUT_OF_ORDER),
        refused(44, 1, OUT_OF_ORDER),
    ],
    "an unknown producer in a later epoch": [Step(9, 1, 0, epoch=3), refused(0, 1, OLD_EPOCH, epoch=2)],
    "sequences wrap between two batches": [
        Step(MAX_SEQUENCE - 1, 2, 0),
        Step(0, 2, 2),
        again(Step(MAX_SEQUENCE - 1, 2, 0)),
        again(Step(0, 2, 2)),
        refused(3, 1, OUT_OF_ORDER),
        Step(2, 1, 4),
    ],
    "sequences wrap inside a batch": [
        Step(MAX_SEQUENCE, 3, 0),
        again(Step(MAX_SEQUENCE, 3, 0)),
        refused(0, 1, OLD_DUPLICATE),
        Step(2, 1, 3),
        refused(MAX_SEQUENCE - 1, 1, OUT_OF_ORDER),
    ],
    "an older duplicate across the wrap": [
        Step(MAX_SEQUENCE - 1, 2, 0),
        *[Step(n, 1, n + 2) for n in range(6)],
        refused(MAX_SEQUENCE - 1, 2, OLD_DUPLICATE),
    ],
    "an epoch or a sequence below zero": [
        refused(-1, 1, INVALID_RECORD),
        refused(-5, 1, INVALID_RECORD),
        refused(0, 1, INVALID_RECORD, epoch=-1),
        Step(0, 1, 0),
    ],
}


def values_of(step: Step, number: int) -> list[bytes]:
    return [b"%d:%d" % (number, n) for n in range(step.count)]


def play(through: Through, topic: str, producer_id: int, steps: Sequence[Step]) -> None:
    """Send each batch, compare the answer, then compare the table."""
    written: list[StoredRow] = []
    for number, step in enumerate(steps):
        values = values_of(step, number)
        batch = make_batch(values, producer_id=producer_id, epoch=step.epoch, sequence=step.first)
        outcome = through.other.produce(topic, batch)
        expected = Outcome(0, step.answer) if step.answer >= 0 else Outcome(-step.answer, -1)
        assert outcome == expected, f"step {number}: {step}"
        if step.is_written:
            written += [
                StoredRow(0, step.answer + n, value, producer_id, step.epoch, (step.first + n) % 2**31)
                for n, value in enumerate(values)
            ]
    assert stored_rows(through.database_url, topic) == written
    assert [row.offset for row in written] == list(range(len(written)))


@pytest.mark.parametrize("case", KNOWN_CASES)
def test_case_of_a_producer_that_asked_for_its_id(case: str, through: Through, new_topic: Callable[..., str]) -> None:
    play(through, new_topic(), through.new_producer(), KNOWN_CASES[case])


@pytest.mark.parametrize("case", UNKNOWN_CASES)
def test_case_of_a_producer_that_the_database_does_not_know(
    case: str, through: Through, new_topic: Callable[..., str]
) -> None:
    play(through, new_topic(), next(UNKNOWN_IDS), UNKNOWN_CASES[case])


def test_producer_without_an_id_is_never_judged(through: Through, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    batch = make_batch([b"same", b"bytes"])
    assert [through.other.produce(topic, batch) for _ in range(4)] == [Outcome(0, n * 2) for n in range(4)]
    rows = stored_rows(through.database_url, topic)
    assert [(row.offset, row.producer_id, row.sequence) for row in rows] == [(n, None, None) for n in range(8)]


def test_every_served_version_of_produce_is_judged(through: Through, new_topic: Callable[..., str]) -> None:
    topic, producer_id = new_topic(), through.new_producer()
    for n, version in enumerate(range(3, 13)):
        batch = make_batch([b"v%d" % version], producer_id=producer_id, epoch=0, sequence=n)
        assert [through.other.produce(topic, batch, version=version) for _ in range(3)] == [Outcome(0, n)] * 3
    assert len(stored_rows(through.database_url, topic)) == 10


@pytest.mark.parametrize("changed", [(57,), (23,), (57, 23)], ids=["the count", "the last offset", "both"])
def test_batch_whose_count_and_sequences_disagree_is_refused(
    changed: tuple[int, ...], through: Through, new_topic: Callable[..., str]
) -> None:
    """The number of records at byte 57, and the last offset's distance at byte 23, say which sequences it takes."""
    topic, producer_id = new_topic(), through.new_producer()
    batch = make_batch([b"a", b"b"], producer_id=producer_id, epoch=0, sequence=0)
    wrong = bytearray(batch)
    for position in changed:
        struct.pack_into(">i", wrong, position, 9 if position == 57 else 8)
    struct.pack_into(">I", wrong, 17, google_crc32c.value(bytes(wrong[21:])))
    assert [through.other.produce(topic, bytes(wrong)).code for _ in range(2)] == [INVALID_RECORD] * 2
    assert [through.other.produce(topic, batch) for _ in range(2)] == [Outcome(0, 0)] * 2
    assert len(stored_rows(through.database_url, topic)) == 2


def test_refusal_of_a_batch_that_never_comes_to_a_writer_is_logged(
    gateways: list[GatewayProcess], new_topic: Callable[..., str]
) -> None:
    gateway, topic = gateways[0], new_topic()
    with HandmadeProducer(gateway.bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        negative = make_batch([b"a"], producer_id=producer_id, epoch=0, sequence=-7)
        assert connection.produce(topic, negative).code == INVALID_RECORD
        nobodys = make_batch([b"a"], producer_id=producer_id, epoch=3, sequence=0, is_transactional=True)
        assert connection.produce(topic, nobodys).code != 0

    def told() -> list[str]:
        return [line for line in gateway.log_text().splitlines() if "batch refused" in line and topic in line]

    wait_for(lambda: len(told()), 2)
    unread, unnamed = told()
    assert f"producer {producer_id} with epoch 0 and sequence -7" in unread
    assert f"producer_id={producer_id}" in unnamed
    assert "producer_epoch=3" in unnamed


def test_compressed_retry_is_recognised(through: Through, new_topic: Callable[..., str]) -> None:
    topic, producer_id = new_topic(), through.new_producer()
    plain = make_batch([b"x" * 500] * 20, producer_id=producer_id, epoch=0, sequence=0)
    packed = make_batch([b"x" * 500] * 20, producer_id=producer_id, epoch=0, sequence=0, compression=1)
    assert through.other.produce(topic, packed) == Outcome(0, 0)
    assert through.other.produce(topic, packed) == Outcome(0, 0)
    assert through.other.produce(topic, plain) == Outcome(0, 0)  # a client may compress a retry differently
    assert len(stored_rows(through.database_url, topic)) == 20


def test_retry_is_told_the_append_time_of_its_first_try(through: Through, new_topic: Callable[..., str]) -> None:
    topic, producer_id = new_topic(message_timestamp_type="LogAppendTime"), through.new_producer()
    batch = make_batch([b"a"], producer_id=producer_id, epoch=0, sequence=0, timestamp_ms=1_000)
    first = through.other.produce(topic, batch)
    assert first.log_append_time_ms > 1_000_000_000_000
    assert [through.other.produce(topic, batch) for _ in range(3)] == [first] * 3


# --- several batches, partitions and topics ----------------------------------------------------


def test_pipelined_batches_are_judged_in_order_against_each_other(
    gateways: list[GatewayProcess], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    with HandmadeProducer(gateways[0].bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        sequences = [0, 1, 1, 2, 4, 3, 3, 0, 4, 5, 6, 7, 8, 9, 0, 5]
        for sequence in sequences:
            batch = make_batch([b"%d" % sequence], producer_id=producer_id, epoch=0, sequence=sequence)
            connection.send_produce({(topic, 0): batch})
        answers = [connection.receive_produce()[topic, 0] for _ in sequences]
    expected = [0, 1, 1, 2, -OUT_OF_ORDER, 3, 3, 0, 4, 5, 6, 7, 8, 9, -OLD_DUPLICATE, 5]
    assert [answer.base_offset if answer.code == 0 else -answer.code for answer in answers] == expected
    assert [row.value for row in stored_rows(gateways[0].database_url, topic)] == [b"%d" % n for n in range(10)]


def test_pipelined_producers_do_not_disturb_each_other(
    gateways: list[GatewayProcess], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    with HandmadeProducer(gateways[0].bootstrap) as connection:
        producers = [connection.init_producer_id()[1] for _ in range(5)]
        sent = [(producer_id, n) for n in range(20) for producer_id in producers]
        for producer_id, n in sent:
            batch = make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n)
            connection.send_produce({(topic, 0): batch})
        answers = [connection.receive_produce()[topic, 0] for _ in sent]
    assert answers == [Outcome(0, offset) for offset in range(len(sent))]


def test_each_partition_of_a_request_is_judged_on_its_own(through: Through, new_topic: Callable[..., str]) -> None:
    topic, producer_id = new_topic(partitions=4), through.new_producer()

    def batch(sequence: int, epoch: int = 0) -> bytes:
        return make_batch([b"%d" % sequence], producer_id=producer_id, epoch=epoch, sequence=sequence)

    assert set(through.other.produce_many({(topic, p): batch(0) for p in range(4)}).values()) == {Outcome(0, 0)}
    answers = through.other.produce_many(
        {(topic, 0): batch(1), (topic, 1): batch(0), (topic, 2): batch(5), (topic, 3): batch(0, epoch=1)}
    )
    assert answers == {
        (topic, 0): Outcome(0, 1),
        (topic, 1): Outcome(0, 0),
        (topic, 2): Outcome(OUT_OF_ORDER, -1),
        (topic, 3): Outcome(0, 1),
    }
    rows = stored_rows(through.database_url, topic)
    assert [(row.partition, row.offset) for row in rows] == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (3, 1)]


def test_retry_in_another_order_of_partitions_finds_each_offset(
    through: Through, new_topic: Callable[..., str]
) -> None:
    topic, producer_id = new_topic(partitions=6), through.new_producer()
    batches = {(topic, p): make_batch([b"x"] * (p + 1), producer_id=producer_id, epoch=0, sequence=0) for p in range(6)}
    first = through.other.produce_many(batches)
    assert through.other.produce_many(dict(reversed(batches.items()))) == first
    assert len(stored_rows(through.database_url, topic)) == 21


def test_producer_has_its_own_sequence_in_each_topic(through: Through, new_topic: Callable[..., str]) -> None:
    topics, producer_id = [new_topic(), new_topic()], through.new_producer()
    for topic in topics:
        batch = make_batch([b"first"], producer_id=producer_id, epoch=0, sequence=0)
        assert through.other.produce(topic, batch) == Outcome(0, 0)
    for topic in topics:
        batch = make_batch([topic.encode()], producer_id=producer_id, epoch=0, sequence=1)
        assert [through.other.produce(topic, batch) for _ in range(2)] == [Outcome(0, 1)] * 2
        rows = stored_rows(through.database_url, topic)
        assert [row.value for row in rows] == [b"first", topic.encode()]


def test_live_producer_goes_on_when_its_topic_is_deleted_and_created_anew(
    through: Through, new_topic: Callable[..., str]
) -> None:
    """Clients number on: Kafka takes whatever comes first into the new topic. librdkafka ends for good on 45."""
    topic, producer_id = new_topic(), through.new_producer()
    batches = [make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) for n in range(5)]
    for n in range(3):
        assert through.other.produce(topic, batches[n]) == Outcome(0, n)
    admin = through.connections[0]
    assert admin.call("DeleteTopics", 5, topic_names=[topic], timeout_ms=20_000)["responses"][0]["error_code"] == 0
    admin.create_topic(topic)
    for n in (3, 4):
        # The other gateway may believe in the old topic for a moment; what was written stays where it is.
        wait_for(lambda batch=batches[n]: through.other.produce(topic, batch), Outcome(0, n - 3))


# --- at the same time ----------------------------------------------------------------------------


def test_retry_in_flight_through_both_gateways_gets_the_first_offset(
    gateways: list[GatewayProcess], new_topic: Callable[..., str]
) -> None:
    topic, rounds = new_topic(), 150
    connections = [HandmadeProducer(gateway.bootstrap) for gateway in (*gateways, *gateways)]
    _, producer_id, _ = connections[0].init_producer_id()
    barrier = threading.Barrier(len(connections))

    def send_all(connection: HandmadeProducer) -> list[Outcome]:
        answers = []
        for n in range(rounds):
            batch = make_batch([b"%d" % n] * 3, producer_id=producer_id, epoch=0, sequence=n * 3)
            barrier.wait(60)
            answers.append(connection.produce(topic, batch))
        return answers

    with ThreadPoolExecutor(len(connections)) as threads:
        results = list(threads.map(send_all, connections))
    assert results == [[Outcome(0, n * 3) for n in range(rounds)]] * len(connections)
    rows = stored_rows(gateways[0].database_url, topic)
    assert [(row.offset, row.value) for row in rows] == [(n, b"%d" % (n // 3)) for n in range(rounds * 3)]
    for connection in connections:
        connection.close()


def test_pipelines_of_the_same_batches_through_both_gateways_are_written_once(
    gateways: list[GatewayProcess], new_topic: Callable[..., str]
) -> None:
    """A whole window in flight twice: whichever gateway comes second finds duplicates, gaps never."""
    topic, rounds = new_topic(partitions=2), 40
    connections = [HandmadeProducer(gateway.bootstrap) for gateway in gateways]
    _, producer_id, _ = connections[0].init_producer_id()
    barrier = threading.Barrier(len(connections))

    def send_all(connection: HandmadeProducer) -> list[dict[tuple[str, int], Outcome]]:
        answers = []
        for n in range(rounds):
            barrier.wait(60)
            for sequence in range(n * 5, n * 5 + 5):
                batch = make_batch([b"%d" % sequence], producer_id=producer_id, epoch=0, sequence=sequence)
                connection.send_produce({(topic, 0): batch, (topic, 1): batch})
            answers += [connection.receive_produce() for _ in range(5)]
        return answers

    with ThreadPoolExecutor(len(connections)) as threads:
        results = list(threads.map(send_all, connections))
    expected = [{(topic, 0): Outcome(0, n), (topic, 1): Outcome(0, n)} for n in range(rounds * 5)]
    assert results == [expected] * len(connections)
    assert [row.value for row in stored_rows(gateways[0].database_url, topic)] == [
        b"%d" % n for n in range(rounds * 5)
    ] * 2
    for connection in connections:
        connection.close()


# --- InitProducerId ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_new_producer_gets_an_id_that_nobody_had_and_epoch_zero(version: int, through: Through) -> None:
    answers = [through.other.init_producer_id(version=version) for _ in range(4)]
    assert [(code, epoch) for code, _, epoch in answers] == [(0, 0)] * 4
    assert len({producer_id for _, producer_id, _ in answers}) == 4
    with psycopg.connect(through.database_url) as connection:
        (known,) = connection.execute(
            "SELECT count(*) FROM kafka.producer_ids WHERE producer_id = ANY (%s) AND client_id = 'wire-test'"
            " AND created_at <= last_active_at AND transactional_id IS NULL",
            [[producer_id for _, producer_id, _ in answers]],
        ).fetchone() or (0,)
    assert known == 4


@pytest.mark.parametrize("version", [3, 4, 5])
def test_known_producer_has_its_epoch_bumped_and_the_old_one_fenced(version: int, through: Through) -> None:
    producer_id = through.new_producer()
    assert through.other.init_producer_id(producer_id, 0, version=version) == (0, producer_id, 1)
    assert through.other.init_producer_id(producer_id, 1, version=version) == (0, producer_id, 2)
    fenced = FENCED if version >= 4 else OLD_EPOCH
    for epoch in (0, 1):
        assert through.other.init_producer_id(producer_id, epoch, version=version) == (fenced, -1, -1)
    assert through.other.init_producer_id(producer_id, 2, version=version) == (0, producer_id, 3)


def test_of_two_that_ask_at_once_one_wins(gateways: list[GatewayProcess]) -> None:
    connections = [HandmadeProducer(gateway.bootstrap) for gateway in (*gateways, *gateways)]
    _, producer_id, _ = connections[0].init_producer_id()
    with ThreadPoolExecutor(len(connections)) as threads:
        for epoch in range(25):
            answers = list(threads.map(lambda one, e=epoch: one.init_producer_id(producer_id, e), connections))
            assert sorted(answers) == [(0, producer_id, epoch + 1)] + [(FENCED, -1, -1)] * 3
    for connection in connections:
        connection.close()


def test_id_at_its_last_epoch_is_given_up_for_a_new_one(through: Through) -> None:
    producer_id = through.new_producer()
    with psycopg.connect(through.database_url) as connection:
        connection.execute(
            "UPDATE kafka.producer_ids SET producer_epoch = %s WHERE producer_id = %s",
            [LAST_EPOCH - 1, producer_id],
        )
    assert through.other.init_producer_id(producer_id, LAST_EPOCH - 1) == (0, producer_id, LAST_EPOCH)
    code, new_id, epoch = through.other.init_producer_id(producer_id, LAST_EPOCH)
    assert (code, epoch) == (0, 0)
    assert new_id != producer_id
    code, newer_id, epoch = through.other.init_producer_id(producer_id, LAST_EPOCH + 1)
    assert (code, epoch) == (0, 0)
    assert newer_id not in (producer_id, new_id)


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5), (-2, -2), (-2, 0), (0, -1)])
def test_id_and_epoch_come_together_or_not_at_all(producer_id: int, epoch: int, through: Through) -> None:
    assert through.other.init_producer_id(producer_id, epoch) == (INVALID_REQUEST, -1, -1)


def test_id_that_is_not_known_is_replaced(through: Through) -> None:
    code, producer_id, epoch = through.other.init_producer_id(next(UNKNOWN_IDS), 4)
    assert (code, epoch) == (0, 0)
    assert producer_id < 7_000_000_000


def test_epoch_that_the_client_raised_itself_counts(through: Through, new_topic: Callable[..., str]) -> None:
    topic, producer_id = new_topic(), through.new_producer()
    batch = make_batch([b"x"], producer_id=producer_id, epoch=6, sequence=0)
    assert through.other.produce(topic, batch) == Outcome(0, 0)
    assert through.other.init_producer_id(producer_id, 0) == (FENCED, -1, -1)
    assert through.other.init_producer_id(producer_id, 5) == (FENCED, -1, -1)
    assert through.other.init_producer_id(producer_id, 6) == (0, producer_id, 7)
    # One that raised it further without telling anybody is believed as well.
    assert through.other.init_producer_id(producer_id, 9) == (0, producer_id, 10)
    old = make_batch([b"y"], producer_id=producer_id, epoch=6, sequence=1)
    # Fenced for InitProducerId, but as in Kafka a partition learns of an epoch only when it is written in it.
    assert through.other.produce(topic, old) == Outcome(0, 1)
    new = make_batch([b"z"], producer_id=producer_id, epoch=10, sequence=0)
    assert through.other.produce(topic, new) == Outcome(0, 2)
    assert through.other.produce(topic, old) == Outcome(OLD_EPOCH, -1)


def test_id_of_a_transactional_producer_is_not_given_out_without_its_name(through: Through) -> None:
    producer_id = through.new_producer()
    with psycopg.connect(through.database_url) as connection:
        connection.execute(
            "UPDATE kafka.producer_ids SET transactional_id = %s WHERE producer_id = %s",
            [f"somebody-{producer_id}", producer_id],
        )
    code, other_id, epoch = through.other.init_producer_id(producer_id, 0)
    assert (code, epoch) == (0, 0)
    assert other_id != producer_id
    with psycopg.connect(through.database_url) as connection:
        assert connection.execute(
            "SELECT producer_epoch FROM kafka.producer_ids WHERE producer_id = %s", [producer_id]
        ).fetchone() == (0,)


# --- seen from outside ---------------------------------------------------------------------------


def test_describe_producers_and_the_view_show_who_writes(through: Through, new_topic: Callable[..., str]) -> None:
    topic, producers = new_topic(partitions=2), [through.new_producer() for _ in range(2)]
    for producer_id in producers:
        for n in range(7):
            batch = make_batch([b"x", b"y"], producer_id=producer_id, epoch=3, sequence=n * 2, timestamp_ms=10**12 + n)
            assert through.other.produce(topic, batch).code == 0
    answer = through.other.call("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0, 1, 2]}])
    partitions = answer["topics"][0]["partitions"]
    assert [(one["partition_index"], one["error_code"]) for one in partitions] == [(0, 0), (1, 0), (2, 3)]
    assert partitions[0]["active_producers"] == [
        {
            "producer_id": producer_id,
            "producer_epoch": 3,
            "last_sequence": 13,
            "last_timestamp": 10**12 + 6,
            "coordinator_epoch": -1,
            "current_txn_start_offset": -1,
        }
        for producer_id in producers
    ]
    assert partitions[1]["active_producers"] == []
    with psycopg.connect(through.database_url) as connection:
        rows = connection.execute(
            "SELECT producer_id, client_id, partition, producer_epoch, last_sequence, batches, age < '1 minute'"
            " FROM kafka.producer_state WHERE topic = %s ORDER BY producer_id",
            [topic],
        ).fetchall()
    assert [row[:5] for row in rows] == [(one, "wire-test", 0, 3, 13) for one in producers]
    assert all(row[6] for row in rows)
    for position, row in enumerate(rows):
        assert [(b["first_sequence"], b["last_sequence"], b["base_offset"]) for b in row[5]] == [
            (n * 2, n * 2 + 1, position * 14 + n * 2) for n in range(2, 7)
        ]


def counters(gateway: GatewayProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{gateway.http_url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(tablewire_\S+) (\S+)$", text, re.MULTILINE)}


def test_metrics_and_log_tell_of_duplicates_and_refusals(
    gateways: list[GatewayProcess], new_topic: Callable[..., str]
) -> None:
    gateway, topic = gateways[0], new_topic()
    before = counters(gateway)

    def grown(name: str) -> float:
        return counters(gateway).get(name, 0.0) - before.get(name, 0.0)

    with HandmadeProducer(gateway.bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        for sequence in (0, 0, 0, 1, 9, 2, 3, 4, 5, 6, 0):
            connection.produce(topic, make_batch([b"x"], producer_id=producer_id, epoch=1, sequence=sequence))
        connection.produce(topic, make_batch([b"x"], producer_id=producer_id, epoch=0, sequence=0))
        connection.init_producer_id(producer_id, 0)
        keep_house(connection)
    wait_for(lambda: counters(gateway)["tablewire_active_producers"] >= 1, wanted=True)
    assert grown("tablewire_duplicate_batches_total") == 2
    assert grown('tablewire_sequence_refusals_total{error="out_of_order_sequence_number"}') == 1
    assert grown('tablewire_sequence_refusals_total{error="duplicate_sequence_number"}') == 1
    assert grown('tablewire_sequence_refusals_total{error="invalid_producer_epoch"}') == 1
    assert grown("tablewire_producers_fenced_total") == 2
    assert grown("tablewire_produced_records_total") == 7
    refusals = [line for line in gateway.log_text().splitlines() if f"{producer_id}" in line]
    assert any("expected sequence 2, received 9" in line for line in refusals)
    assert any("the producer's epoch is 1, received 0" in line for line in refusals)


# --- expiry and limits -----------------------------------------------------------------------------


def states_of(database_url: str, topic: str) -> set[int]:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT producer_id FROM kafka.producer_state WHERE topic = %s", [topic])
        return {producer_id for (producer_id,) in rows}


def keep_house(connection: HandmadeProducer) -> None:
    """Let the connection's gateway keep house now: it does so when a topic is deleted."""
    doomed = connection.create_topic(f"doomed.{uuid.uuid4().hex[:12]}")
    answer = connection.call("DeleteTopics", 5, topic_names=[doomed], timeout_ms=20_000)
    assert answer["responses"][0]["error_code"] == 0


def wait_for_states(database_url: str, topic: str, wanted: set[int], connection: HandmadeProducer) -> None:
    def read() -> set[int]:
        if (states := states_of(database_url, topic)) != wanted:
            keep_house(connection)
        return states

    wait_for(read, wanted)


@pytest.fixture
def start_gateways(database_url: str, tmp_path: Path) -> Iterator[Callable[..., list[GatewayProcess]]]:
    """Gateways with settings of the test, on a database of its own."""
    with ExitStack() as stack:

        def start(**settings: int) -> list[GatewayProcess]:
            variables = {f"TABLEWIRE_{name.upper()}": str(value) for name, value in settings.items()}
            return start_two(stack, database_url, tmp_path, variables)

        yield start


def let_producers_idle(database_url: str) -> None:
    """For two hours; those that write afterwards are as young as ever."""
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE kafka.producer_sequences SET updated_at = updated_at - interval '2 hours'")
        connection.execute("UPDATE kafka.producer_ids SET last_active_at = last_active_at - interval '2 hours'")


def test_expired_producer_goes_on_with_its_next_sequence(
    start_gateways: Callable[..., list[GatewayProcess]],
) -> None:
    gateways = start_gateways(producer_id_expiration_ms=3_600_000)
    url = gateways[0].database_url
    writer, other = (HandmadeProducer(gateway.bootstrap) for gateway in gateways)
    topic = writer.create_topic("expiring")
    _, producer_id, _ = writer.init_producer_id()
    for n in range(3):
        batch = make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n)
        assert writer.produce(topic, batch) == Outcome(0, n)
    let_producers_idle(url)
    wait_for_states(url, topic, set(), other)
    # The other gateway knows nothing of it; the first one may remember. Both let it go on.
    for n, connection in enumerate((other, writer, other, writer), start=3):
        batch = make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n)
        assert connection.produce(topic, batch) == Outcome(0, n)
        assert connection.produce(topic, batch) == Outcome(0, n)
    let_producers_idle(url)
    wait_for_states(url, topic, set(), writer)
    batch = make_batch([b"7"], producer_id=producer_id, epoch=0, sequence=7)
    assert writer.produce(topic, batch) == Outcome(0, 7)
    assert [row.value for row in stored_rows(url, topic)] == [b"%d" % n for n in range(8)]
    # A producer that came after the drop has lost nothing: it must start at 0.
    _, young, _ = other.init_producer_id()
    gap = make_batch([b"gap"], producer_id=young, epoch=0, sequence=1)
    assert other.produce(topic, gap) == Outcome(OUT_OF_ORDER, -1)
    writer.close()
    other.close()


def test_partition_keeps_the_newest_producers_and_the_others_go_on(
    start_gateways: Callable[..., list[GatewayProcess]],
) -> None:
    gateways = start_gateways(partition_max_producers=3)
    url = gateways[0].database_url
    connections = [HandmadeProducer(gateway.bootstrap) for gateway in gateways]
    topic = connections[0].create_topic("crowded")
    producers = [connections[n % 2].init_producer_id()[1] for n in range(10)]
    for n, producer_id in enumerate(producers):
        batch = make_batch([b"%d" % producer_id], producer_id=producer_id, epoch=0, sequence=0)
        assert connections[n % 2].produce(topic, batch) == Outcome(0, n)
    wait_for_states(url, topic, set(producers[-3:]), connections[0])
    for n, producer_id in enumerate(producers):
        batch = make_batch([b"%d" % producer_id], producer_id=producer_id, epoch=0, sequence=1)
        assert connections[n % 2].produce(topic, batch) == Outcome(0, 10 + n)
        assert connections[(n + 1) % 2].produce(topic, batch) == Outcome(0, 10 + n)
    assert [row.value for row in stored_rows(url, topic)] == [b"%d" % one for one in producers] * 2
    for connection in connections:
        connection.close()


def test_live_producers_never_fail_while_their_states_are_dropped_all_the_time(
    start_gateways: Callable[..., list[GatewayProcess]],
) -> None:
    """One state per partition is kept, and eight producers write: whoever is dropped goes on."""
    gateways = start_gateways(partition_max_producers=1, producer_id_expiration_ms=1)
    url = gateways[0].database_url
    with HandmadeProducer(gateways[0].bootstrap) as connection:
        topic = connection.create_topic("dropping")
        producers = [connection.init_producer_id()[1] for _ in range(8)]
    is_over = threading.Event()

    def write(producer_id: int) -> list[Outcome]:
        answers = []
        with ExitStack() as stack:
            connections = [stack.enter_context(HandmadeProducer(one.bootstrap)) for one in gateways]
            for n in itertools.count():
                if is_over.is_set():
                    return answers
                batch = make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n)
                answers.append(connections[n % 2].produce(topic, batch))
        raise AssertionError

    with ThreadPoolExecutor(len(producers)) as threads:
        running = [threads.submit(write, producer_id) for producer_id in producers]
        try:
            # Many drops: the partition says when the last one was.
            with psycopg.connect(url, autocommit=True) as database:
                seen: set[object] = set()

                def drops() -> bool:
                    keep_house(keeper)
                    row = database.execute(
                        "SELECT producers_dropped_at FROM kafka.partitions JOIN kafka.topics USING (topic_id)"
                        " WHERE name = %s",
                        [topic],
                    ).fetchone()
                    assert row is not None
                    seen.add(row[0])
                    return len(seen - {None}) >= 20

                with HandmadeProducer(gateways[1].bootstrap) as keeper:
                    wait_for(drops, wanted=True, timeout_s=120)
        finally:
            is_over.set()
        results = [one.result() for one in running]
    assert {answer.code for answers in results for answer in answers} == {0}
    rows = stored_rows(url, topic)
    assert [row.offset for row in rows] == list(range(sum(map(len, results))))
    for producer_id, answers in zip(producers, results, strict=True):
        own = [row for row in rows if row.producer_id == producer_id]
        assert [(row.offset, row.value) for row in own] == [
            (answer.base_offset, b"%d" % n) for n, answer in enumerate(answers)
        ]


def test_one_gateway_at_a_time_keeps_house(start_gateways: Callable[..., list[GatewayProcess]]) -> None:
    """While another session holds the housekeeping lock, no gateway drops anything; afterwards one does."""
    gateways = start_gateways(producer_id_expiration_ms=100)
    url = gateways[0].database_url
    with HandmadeProducer(gateways[0].bootstrap) as connection, psycopg.connect(url) as holder:
        from gateway.storage.locks import HOUSEKEEPING

        topic = connection.create_topic("kept")
        holder.execute("SELECT pg_advisory_xact_lock(%s, %s)", list(HOUSEKEEPING))
        _, producer_id, _ = connection.init_producer_id()
        connection.produce(topic, make_batch([b"x"], producer_id=producer_id, epoch=0, sequence=0))
        # Deleting a topic wakes housekeeping: once its storage is gone, a round has been made.
        keep_house(connection)

        def storages() -> int:
            with psycopg.connect(url) as reader:
                row = reader.execute(
                    "SELECT count(*) FROM pg_inherits WHERE inhparent = 'kafka.messages'::regclass"
                ).fetchone()
                return int(row[0]) if row else -1

        wait_for(storages, 1)
        assert states_of(url, topic) == {producer_id}
        holder.rollback()
        wait_for_states(url, topic, set(), connection)


def test_view_is_readable_as_json(through: Through, new_topic: Callable[..., str]) -> None:
    """What an operator pastes from sql/README.md must not depend on psycopg's reading of jsonb."""
    topic, producer_id = new_topic(), through.new_producer()
    through.other.produce(topic, make_batch([b"x"], producer_id=producer_id, epoch=0, sequence=0))
    with psycopg.connect(through.database_url) as connection:
        row = connection.execute("SELECT batches::text FROM kafka.producer_state WHERE topic = %s", [topic]).fetchone()
    assert row is not None
    assert json.loads(row[0])[0]["base_offset"] == 0
