"""What a consumer of committed records gets is what kafka.committed_messages holds, row for row, and both are what a
naive model says: under random interleavings of open, committed and aborted transactions and plain writes, from the
batches in memory and from rows, from any offset, in pieces of any size."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import _scratch_database as scratch_database
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade_transactions import (
    KIP_890,
    NONE,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Producer,
    Record,
    TransactionConnection,
)

PARTITIONS = 2
PRODUCERS = 3


class Stack(NamedTuple):
    database: psycopg.Connection[tuple[object, ...]]
    gateways: list[TransactionConnection]
    """One that keeps what it wrote in memory, and one that reads everything from rows."""


@pytest.fixture(scope="module")
def stack(server_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("isolation")
    with ExitStack() as opened:
        database_url = opened.enter_context(scratch_database(server_url, template_database))
        gateways = [
            opened.enter_context(
                GatewayProcess(
                    database_url, directory=directory, name=name, settings={"TABLEWIRE_NODE_ID": str(n), **more}
                )
            )
            for n, (name, more) in enumerate((("warm", {}), ("cold", {"TABLEWIRE_TAIL_CACHE_BYTES": "0"})), start=1)
        ]
        connections = [opened.enter_context(TransactionConnection(gateway.bootstrap, KIP_890)) for gateway in gateways]
        yield Stack(opened.enter_context(psycopg.connect(database_url, autocommit=True)), connections)


class Plain(NamedTuple):
    partition: int
    count: int


class Write(NamedTuple):
    producer: int
    partition: int
    count: int


class End(NamedTuple):
    producer: int
    commit: bool


class Read(NamedTuple):
    partition: int
    from_end: int
    max_bytes: int


PARTITION = st.integers(0, PARTITIONS - 1)
PRODUCER = st.integers(0, PRODUCERS - 1)
STEPS = st.lists(
    st.one_of(
        st.builds(Write, PRODUCER, PARTITION, st.integers(1, 3)),
        st.builds(Write, PRODUCER, PARTITION, st.integers(1, 3)),
        st.builds(End, PRODUCER, st.booleans()),
        st.builds(Plain, PARTITION, st.integers(1, 3)),
        st.builds(Read, PARTITION, st.integers(0, 12), st.sampled_from([1, 150, 400, 1 << 20])),
    ),
    min_size=3,
    max_size=30,
)


@dataclass
class Log:
    """One partition: each record with the transaction it belongs to, markers as None."""

    records: list[tuple[bytes, int | None] | None] = field(default_factory=list)

    def visible(self, outcomes: dict[int, bool]) -> list[Record]:
        """Naively: everything before the first record of an open transaction, without what was aborted."""
        stable = itertools.takewhile(
            lambda entry: entry[1] is None or entry[1][1] is None or entry[1][1] in outcomes, enumerate(self.records)
        )
        return [
            Record(offset, record[0])
            for offset, record in stable
            if record is not None and (record[1] is None or outcomes[record[1]])
        ]

    def written(self) -> list[Record]:
        return [Record(offset, record[0]) for offset, record in enumerate(self.records) if record is not None]


class Run:
    """Does the steps, through the two gateways in turn, and the same in the model."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.name = f"isolation.{uuid.uuid4().hex[:12]}"
        stack.gateways[0].create_topic(self.name, partitions=PARTITIONS)
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.outcomes: dict[int, bool] = {}
        self.open: dict[int, int] = {}  # by producer
        self.touched: dict[int, set[int]] = {}
        self.producers: dict[int, Producer] = {}
        self.sequences: dict[tuple[Producer, int], int] = {}
        self.numbers = itertools.count()
        self.turns = itertools.cycle(stack.gateways)

    def do(self, step: Plain | Write | End | Read) -> None:
        if isinstance(step, Plain):
            values = [b"p%d" % next(self.numbers) for _ in range(step.count)]
            assert next(self.turns).write_plainly(self.name, values, partition=step.partition).code == NONE
            self.logs[step.partition].records += [(value, None) for value in values]
        elif isinstance(step, Write):
            self.write(step)
        elif isinstance(step, End):
            self.end(step)
        else:
            log = self.logs[step.partition]
            self.check(step.partition, max(0, len(log.records) - step.from_end), step.max_bytes)

    def write(self, step: Write) -> None:
        name = f"{self.name}-{step.producer}"
        if step.producer not in self.producers:
            self.producers[step.producer] = next(self.turns).start(name)
        producer = self.producers[step.producer]
        transaction = self.open.setdefault(step.producer, next(self.numbers))
        sequence = self.sequences.get((producer, step.partition), 0)
        values = [b"t%d" % next(self.numbers) for _ in range(step.count)]
        outcome = next(self.turns).write(name, producer, self.name, values, sequence=sequence, partition=step.partition)
        assert (outcome.code, outcome.base_offset) == (NONE, len(self.logs[step.partition].records))
        self.sequences[producer, step.partition] = sequence + step.count
        self.touched.setdefault(transaction, set()).add(step.partition)
        self.logs[step.partition].records += [(value, transaction) for value in values]

    def end(self, step: End) -> None:
        if step.producer not in self.open:
            return
        name, producer = f"{self.name}-{step.producer}", self.producers[step.producer]
        code, self.producers[step.producer] = next(self.turns).end(name, producer, commit=step.commit)
        assert code == NONE
        transaction = self.open.pop(step.producer)
        self.outcomes[transaction] = step.commit
        for partition in self.touched[transaction]:
            self.logs[partition].records.append(None)

    def check(self, partition: int, start: int, max_bytes: int) -> None:
        log = self.logs[partition]
        visible = [record for record in log.visible(self.outcomes) if record.offset >= start]
        written = [record for record in log.written() if record.offset >= start]
        for gateway in self.stack.gateways:
            for isolation, expected in ((READ_COMMITTED, visible), (READ_UNCOMMITTED, written)):
                read = gateway.read_all(
                    self.name, partition=partition, start=start, max_bytes=max_bytes, isolation=isolation
                )
                assert read == expected, (gateway.bootstrap, isolation, start, max_bytes)

    def check_all(self) -> None:
        for partition, log in enumerate(self.logs):
            rows = self.stack.database.execute(
                'SELECT "offset", value FROM kafka.committed_messages WHERE topic = %s AND partition = %s'
                ' ORDER BY "offset"',
                [self.name, partition],
            ).fetchall()
            assert [Record(*row) for row in rows] == log.visible(self.outcomes)
            self.check(partition, 0, 1 << 20)
            self.check(partition, 0, 1)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=STEPS, last=st.lists(st.booleans(), min_size=PRODUCERS, max_size=PRODUCERS))
def test_consumers_and_psql_see_what_the_model_says(
    stack: Stack, steps: list[Plain | Write | End | Read], last: list[bool]
) -> None:
    run = Run(stack)
    for step in steps:
        run.do(step)
    run.check_all()
    for producer, commit in enumerate(last):
        run.do(End(producer, commit))
    run.check_all()
