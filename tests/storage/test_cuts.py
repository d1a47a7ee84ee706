"""Cuts on real tables: random histories of transactions, written as the gateway leaves them."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from gateway.domain.cuts import Cut, CutChanged, OffsetsUnavailable, UnknownTopics
from gateway.errors import PipelineError
from gateway.pipeline import PipelinePosition, check_cut, fix_cut

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = (f"cut-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def connection(module_database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(module_database_url, autocommit=True) as connected:
        yield connected


@dataclass
class Transaction:
    producer_id: int
    rows: list[tuple[int, int]] = field(default_factory=list)  # partition, offset
    outcome: str = "open"


class Log:
    """A topic written row by row, with the ends that the gateway would keep."""

    def __init__(self, connection: psycopg.Connection[Any], partitions: int) -> None:
        self.name = next(NAMES)
        self.partitions = range(partitions)
        self.transactions: list[Transaction] = []
        self._connection = connection
        self._next = dict.fromkeys(self.partitions, 0)
        self._clock = itertools.count()
        self._unsaved: list[tuple[Any, ...]] = []
        (self.topic_id,) = connection.execute(
            "INSERT INTO kafka.topics (name, partition_count) VALUES (%s, %s) RETURNING topic_id",
            [self.name, partitions],
        ).fetchone() or (0,)
        connection.execute("SELECT kafka.create_topic_storage(%s)", [self.topic_id])
        for partition in self.partitions:
            connection.execute(
                "INSERT INTO kafka.partitions (topic_id, partition) VALUES (%s, %s)", [self.topic_id, partition]
            )

    def now(self) -> datetime:
        return BEGIN + timedelta(milliseconds=next(self._clock))

    def write(self, partition: int, transaction: Transaction | None = None, *, at: datetime | None = None) -> int:
        producer_id = None if transaction is None else transaction.producer_id
        offset = self._append(partition, producer_id, None, at or self.now())
        if transaction is not None:
            transaction.rows.append((partition, offset))
        return offset

    def begin(self, producer_id: int) -> Transaction:
        self.transactions.append(Transaction(producer_id))
        return self.transactions[-1]

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        at = self.now()
        firsts: dict[int, int] = {}
        for partition, offset in transaction.rows:
            firsts.setdefault(partition, offset)
        for partition, first in firsts.items():
            marker = self._append(partition, transaction.producer_id, int(commit), at)
            if not commit:
                self._connection.execute(
                    "INSERT INTO kafka.aborted_transactions (topic_id, partition, producer_id, first_offset,"
                    " last_offset) VALUES (%s, %s, %s, %s, %s)",
                    [self.topic_id, partition, transaction.producer_id, first, marker],
                )
        transaction.outcome = "committed" if commit else "aborted"

    def _append(self, partition: int, producer_id: int | None, control_type: int | None, at: datetime) -> int:
        offset = self._next[partition]
        self._next[partition] += 1
        epoch = None if producer_id is None else 0
        self._unsaved.append(
            (offset, at, producer_id, self.topic_id, partition, epoch, control_type, producer_id is not None)
        )
        return offset

    @property
    def last_stable(self) -> dict[int, int]:
        ends = dict(self._next)
        for transaction in self.transactions:
            if transaction.outcome == "open":
                for partition, offset in transaction.rows:
                    ends[partition] = min(ends[partition], offset)
        return ends

    def save(self) -> None:
        with self._connection.transaction():
            self._connection.cursor().executemany(
                'INSERT INTO kafka.messages ("offset", "timestamp", producer_id, topic_id, partition, producer_epoch,'
                " control_type, is_transactional, timestamp_type) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 0)",
                self._unsaved,
            )
            self._unsaved.clear()
            for partition, stable in self.last_stable.items():
                self._connection.execute(
                    "UPDATE kafka.partitions SET next_offset = %s, last_stable_offset = %s"
                    " WHERE topic_id = %s AND partition = %s",
                    [self._next[partition], stable, self.topic_id, partition],
                )

    def torn(self, cut: Cut) -> list[Transaction]:
        """Committed transactions of which the cut holds some rows and lacks some that were not read before it."""
        ranges = {one.partition: one for one in cut.ranges}
        torn = []
        for transaction in self.transactions:
            if transaction.outcome == "committed":
                held = {
                    ranges[partition].start <= offset < ranges[partition].end for partition, offset in transaction.rows
                }
                if len(held) > 1:
                    torn.append(transaction)
        return torn


def test_a_commit_behind_an_open_transaction_is_in_no_partition_of_the_cut(
    connection: psycopg.Connection[Any],
) -> None:
    log = Log(connection, 2)
    log.write(1)
    open_one, committed = log.begin(1), log.begin(2)
    log.write(0, open_one)
    log.write(0, committed)
    log.write(1, committed)
    log.end(committed, commit=True)
    log.write(1)
    log.save()
    cut = fix_cut(connection, log.name)
    assert cut.ends == {(log.name, 0): 0, (log.name, 1): 1}, "the last stable offset of partition 1 is higher"
    log.end(open_one, commit=True)
    log.save()
    assert fix_cut(connection, log.name, start=cut).ends == {(log.name, 0): 4, (log.name, 1): 4}


def test_offsets_given_as_the_end_are_taken_as_they_are(connection: psycopg.Connection[Any]) -> None:
    log = Log(connection, 1)
    one = log.begin(1)
    for _ in range(4):
        log.write(0, one)
    log.end(one, commit=True)
    log.save()
    assert fix_cut(connection, log.name, end={log.name: {0: 2}}).ends == {(log.name, 0): 2}


def test_a_transaction_with_more_rows_than_the_limit_is_taken_whole(connection: psycopg.Connection[Any]) -> None:
    log = Log(connection, 2)
    one = log.begin(1)
    for number in range(40):
        log.write(number % 2, one)
    log.end(one, commit=True)
    log.write(0)
    log.save()
    cut = fix_cut(connection, log.name, max_rows=4)
    assert log.torn(cut) == []
    assert cut.ends[log.name, 0] >= 20
    assert cut.ends[log.name, 1] >= 20


def test_plain_rows_are_limited_exactly(connection: psycopg.Connection[Any]) -> None:
    log = Log(connection, 3)
    for number in range(30):
        log.write(number % 3)
    log.save()
    assert fix_cut(connection, log.name, max_rows=7).size == 7


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_tears_a_transaction_apart_and_all_rows_are_read_in_the_end(
    connection: psycopg.Connection[Any], seed: int
) -> None:
    chance = random.Random(seed)
    log = Log(connection, chance.choice([1, 2, 4]))
    running: dict[int, Transaction] = {}
    position: Cut | None = None
    read: dict[int, int] = defaultdict(int)

    def read_on(max_rows: int | None) -> Cut:
        nonlocal position
        log.save()
        cut = fix_cut(connection, log.name, start=position or "earliest", max_rows=max_rows)
        assert [one.outcome for one in log.torn(cut)] == [], f"seed {seed}"
        for one in cut.ranges:
            assert one.start == read[one.partition], "no gap, no overlap"
            assert one.end <= log.last_stable[one.partition]
            read[one.partition] = one.end
        position = cut
        return cut

    for _ in range(chance.randrange(20, 150)):
        action = chance.random()
        producer_id = chance.randrange(5)
        if action < 0.1:
            log.write(chance.choice(log.partitions))
        elif action < 0.75:
            running.setdefault(producer_id, log.begin(producer_id))
            for _ in range(chance.randrange(1, 4)):
                log.write(chance.choice(log.partitions), running[producer_id])
        elif action < 0.95:
            if producer_id in running:
                log.end(running.pop(producer_id), commit=chance.random() < 0.7)
        else:
            read_on(chance.choice([None, 1, 5, 20]))
    for transaction in running.values():
        log.end(transaction, commit=True)
    limit = chance.choice([None, 1, 7])
    while not read_on(limit).is_empty:
        pass
    assert dict(read) == log.last_stable, "everything is committed now, and nothing is left"


def test_a_time_stands_for_the_first_committed_record_at_or_after_it(connection: psycopg.Connection[Any]) -> None:
    log = Log(connection, 2)
    for second in range(10):
        log.write(0, at=BEGIN + timedelta(seconds=second))
    log.write(1, at=BEGIN)
    log.save()
    cut = fix_cut(connection, log.name, start=BEGIN + timedelta(seconds=3), end=BEGIN + timedelta(seconds=6.5))
    assert [(one.start, one.end) for one in cut.ranges] == [(3, 7), (1, 1)]
    with pytest.raises(PipelineError, match="has no time zone"):
        fix_cut(connection, log.name, start=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_pipelines_position_is_where_it_goes_on(connection: psycopg.Connection[Any]) -> None:
    log = Log(connection, 2)
    for partition in (0, 0, 0, 1, 1):
        log.write(partition)
    log.save()
    connection.execute("INSERT INTO kafka.pipelines (name) VALUES (%s)", [log.name])
    connection.execute(
        "INSERT INTO kafka.pipeline_positions (pipeline, topic_id, partition, next_offset) VALUES (%s, %s, 0, 2)",
        [log.name, log.topic_id],
    )
    starts = fix_cut(connection, log.name, start=PipelinePosition(log.name)).starts
    assert starts == {(log.name, 0): 2, (log.name, 1): 0}
    starts = fix_cut(connection, log.name, start=PipelinePosition(log.name, otherwise="latest")).starts
    assert starts == {(log.name, 0): 2, (log.name, 1): 2}


def test_what_cannot_be_cut_is_refused_with_what_to_do(connection: psycopg.Connection[Any]) -> None:
    log = Log(connection, 1)
    for _ in range(5):
        log.write(0)
    log.save()
    with pytest.raises(UnknownTopics, match="There is no topic nobody"):
        fix_cut(connection, [log.name, "nobody"])
    with pytest.raises(PipelineError, match="No topic is named"):
        fix_cut(connection, [])
    with pytest.raises(PipelineError, match="'soon' is no place to start or end"):
        fix_cut(connection, log.name, start="soon")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="max_rows must be at least 1"):
        fix_cut(connection, log.name, max_rows=0)
    cut = fix_cut(connection, log.name)
    check_cut(connection, cut)
    connection.execute("UPDATE kafka.partitions SET log_start_offset = 2 WHERE topic_id = %s", [log.topic_id])
    with pytest.raises(OffsetsUnavailable, match="deleted by retention since this cut was fixed"):
        check_cut(connection, cut)
    with pytest.raises(OffsetsUnavailable, match="was deleted by retention, the log starts at 2"):
        fix_cut(connection, log.name, start={log.name: {0: 1}})
    connection.execute("UPDATE kafka.topics SET topic_uuid = gen_random_uuid() WHERE topic_id = %s", [log.topic_id])
    with pytest.raises(CutChanged, match="made anew"):
        fix_cut(connection, log.name, start=cut)
