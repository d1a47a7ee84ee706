"""kafka.advance_topic does what kafka.advance_partitions does, for commits of the kind that it is made for, and finds
the rows of its partitions alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gateway.domain.sequences import ProducerState, Written
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import ADVANCES_TOPICS_FROM, Advance, advance_script
from gateway.storage.producers import format_batches
from gateway.storage.statements import statement

PARTITIONS = 6
PRODUCER_ID = 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

PARTITION_ROWS = """
    SELECT topic_id, partition, next_offset, last_stable_offset, max_timestamp FROM kafka.partitions ORDER BY 1, 2
"""
PRODUCER_ROWS = """
    SELECT topic_id, partition_id, producer_id, producer_epoch, last_sequence, run_length, batches
    FROM kafka.producer_sequences ORDER BY 1, 2
"""
LOCKS = "SELECT classid, objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() ORDER BY 1, 2"


timestamps = st.integers(-1, 2**41) | st.sampled_from([-1, 253_402_300_799_999])


class Moved(NamedTuple):
    """What a commit says of a partition, next to what the database has."""

    offset: int
    expected_offset: int
    stable_offset: int
    count: int
    newest_ms: int
    newest_before_ms: int | None
    """What the database has."""
    epoch: int | None
    """Of the producer's row, if there is one."""


class Commit(NamedTuple):
    partitions: Mapping[int, Moved]
    epoch: int | None
    """None where no producer is known."""


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    """Most of them succeed: each thing that stands against it is rare."""
    epoch = draw(st.none() | st.integers(0, 3))
    seldom = st.integers(0, 19).map(lambda number: number == 0)
    partitions = {}
    for partition in draw(st.sets(st.integers(0, PARTITIONS - 1), min_size=1)):
        offset = draw(st.integers(0, 2**40))
        newest = 3 if draw(seldom) else (epoch or 0)
        partitions[partition] = Moved(
            offset,
            offset + draw(seldom),
            draw(st.sampled_from([offset, offset // 2])),
            draw(st.integers(1, 1000)),
            draw(timestamps),
            draw(st.none() | timestamps),
            draw(st.none() | st.integers(0, newest)),
        )
    return Commit(partitions, epoch)


@pytest.fixture(scope="module")
def session(server_url: str, template_database: str) -> Iterator[psycopg.Connection[Any]]:
    """In the template itself: nothing is ever committed."""
    with psycopg.connect(server_url, dbname=template_database) as connection:
        yield connection
        connection.rollback()


@given(commit=commits())
@settings(deadline=None)
def test_a_commit_of_one_topic_leaves_what_a_commit_of_any_would(
    session: psycopg.Connection[Any], commit: Commit
) -> None:
    with session.transaction(force_rollback=True):
        topic_id = prepare(session, commit)
        one, other = (outcome(session, call(topic_id, commit)) for call in (advance_partitions, advance_topic))
    assert one == other
    event(one if isinstance(one, str) else "written")


def prepare(session: psycopg.Connection[Any], commit: Commit) -> int:
    row = session.execute(
        "INSERT INTO kafka.topics (name, partition_count) VALUES ('t', %s) RETURNING topic_id", [PARTITIONS]
    ).fetchone()
    assert row is not None
    for partition in range(PARTITIONS):
        moved = commit.partitions.get(partition)
        session.execute(
            "INSERT INTO kafka.partitions (topic_id, partition, next_offset, last_stable_offset, max_timestamp)"
            " VALUES (%s, %s, %s, %s, %s)",
            [
                row[0],
                partition,
                *((moved.offset, moved.stable_offset, time_of(moved.newest_before_ms)) if moved else (7, 7, None)),
            ],
        )
        if moved is not None and moved.epoch is not None:
            session.execute(
                "INSERT INTO kafka.producer_sequences (producer_id, topic_id, partition_id, producer_epoch,"
                " last_sequence, run_length, batches) VALUES (%s, %s, %s, %s, 4, 5, '0:5:0')",
                [PRODUCER_ID, row[0], partition, moved.epoch],
            )
    return int(row[0])


def time_of(ms: int | None) -> datetime | None:
    return None if ms is None else EPOCH + timedelta(milliseconds=ms)


def outcome(session: psycopg.Connection[Any], call: str) -> str | tuple[list[Any], ...]:
    """What the tables say afterwards, and who is locked; or the SQLSTATE."""
    try:
        with session.transaction(force_rollback=True):
            session.execute(call.encode())
            return tuple(session.execute(query).fetchall() for query in (PARTITION_ROWS, PRODUCER_ROWS, LOCKS))
    except psycopg.DatabaseError as error:
        return str(error.sqlstate)


def state_after(commit: Commit, moved: Moved) -> ProducerState:
    assert commit.epoch is not None
    last = 4 + moved.count
    written = Written(5, last, moved.offset, moved.newest_ms)
    return ProducerState(commit.epoch, last, last + 1, (Written(0, 4, 0, 0), written))


def advance_partitions(topic_id: int, commit: Commit) -> str:
    advances, producers = [], []
    for partition, moved in commit.partitions.items():
        key = PartitionKey(topic_id, partition)
        end = moved.expected_offset + moved.count
        stable = end if moved.stable_offset == moved.offset else moved.stable_offset
        advances.append(Advance(key, moved.expected_offset, end, stable, moved.newest_ms))
        if commit.epoch is not None:
            producers.append((ProducerKey(*key, PRODUCER_ID), state_after(commit, moved)))
    return advance_script(advances, (), producers, locked=False)


def advance_topic(topic_id: int, commit: Commit) -> str:
    partitions = sorted(commit.partitions)
    reach = range(partitions[0], partitions[-1] + 1)

    def array(values: Mapping[int, object]) -> str:
        elements = ",".join(f'"{values.get(partition, 0)}"' for partition in reach)
        return f"'[{reach[0]}:{reach[-1]}]={{{elements}}}'"

    moves = commit.partitions.items()
    newest = {partition: time_of(moved.newest_ms) for partition, moved in moves}
    earliest = dict.fromkeys(reach, EPOCH)
    places = {
        "follows": "0",
        "number": "0",
        "in_topic": str(topic_id),
        "in_partitions": f"'{{{','.join(map(str, partitions))}}}'",
        "begins": array({partition: moved.expected_offset for partition, moved in moves}),
        "ends": array({partition: moved.expected_offset + moved.count for partition, moved in moves}),
        "newest": array({partition: str(at) for partition, at in (earliest | newest).items()}),
        **dict.fromkeys(("producer", "epoch", "last_sequences", "run_lengths", "windows"), "NULL"),
    }
    if commit.epoch is not None:
        states = {partition: state_after(commit, moved) for partition, moved in moves}
        places |= {
            "producer": str(PRODUCER_ID),
            "epoch": f"'{commit.epoch}'",
            "last_sequences": array({partition: state.last_sequence for partition, state in states.items()}),
            "run_lengths": array({partition: state.run_length for partition, state in states.items()}),
            "windows": array({partition: format_batches(state.recent) for partition, state in states.items()}),
        }
    return statement("log/advance_topic").format(**places)


def test_rows_of_other_partitions_and_producers_are_not_read_however_many_came_since_the_session_began(
    session: psycopg.Connection[Any],
) -> None:
    if session.info.server_version < ADVANCES_TOPICS_FROM:
        pytest.skip("PostgreSQL 17 or newer is missing: gateways do not use the procedure with an older one")
    many = 1000

    def write(topic_id: int, offset: int) -> None:
        moved = Moved(offset, offset, offset, 1, 0, None, None)
        session.execute(advance_topic(topic_id, Commit({0: moved, 1: moved}, 0)).encode())

    def fetched() -> dict[str, int]:
        return dict(
            session.execute(
                "SELECT relname, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = 'kafka'"
                " AND relname IN ('partitions', 'producer_sequences')"
            ).fetchall()
        )

    with session.transaction(force_rollback=True):
        (small,), (large,) = session.execute(
            "INSERT INTO kafka.topics (name, partition_count) VALUES ('few', 2), ('many', %s) RETURNING topic_id",
            [many],
        ).fetchall()
        session.execute(
            "INSERT INTO kafka.partitions (topic_id, partition) VALUES (%(id)s, 0), (%(id)s, 1)", {"id": small}
        )
        write(small, 0)  # plans are made, for tables that are nearly empty
        session.execute(
            "INSERT INTO kafka.partitions (topic_id, partition) SELECT %s, n FROM generate_series(0, %s) AS n",
            [large, many - 1],
        )
        session.execute(
            "INSERT INTO kafka.producer_sequences (producer_id, topic_id, partition_id, producer_epoch, last_sequence,"
            " run_length, batches) SELECT producer, %(topic)s, partition, 0, 4, 5, '0:5:0' FROM"
            " (SELECT %(id)s, n FROM generate_series(0, %(many)s - 1) AS n UNION ALL"
            " SELECT %(id)s + n, n %% 2 FROM generate_series(1, %(many)s) AS n) AS known (producer, partition)",
            {"id": PRODUCER_ID, "topic": large, "many": many},
        )
        write(large, 0)
        before = fetched()
        write(large, 1)
        read = {name: count - before[name] for name, count in fetched().items()}
    assert len(read) == 2
    assert all(2 <= count < many / 10 for count in read.values()), read
