"""What must hold in the database after any fault, whatever the producers saw. I1 to I3 are those of the test matrix."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import psycopg

from tests.support.handmade import StoredRow, stored_rows
from tests.support.waiting import wait_for
from tests.support.workload import History

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tablewire' AND datname = current_database()"
ADVISORY_LOCKS = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def audit(database_url: str, histories: Sequence[History]) -> list[StoredRow]:
    """Check a topic against all that was sent to it; returns its rows."""
    topic, is_idempotent = histories[0].topic, histories[0].is_idempotent
    failures = {history.name: history.failures for history in histories if history.failures}
    assert not failures, f"producers were told of final errors: {failures}"
    rows = stored_rows(database_url, topic)
    _check_offsets(database_url, topic, rows)
    _check_acknowledged(rows, histories)
    if is_idempotent:
        _check_once_and_in_order(rows, histories)
        _check_states(database_url, topic, rows)
    return rows


def _check_offsets(database_url: str, topic: str, rows: Sequence[StoredRow]) -> None:
    """I3: without a gap, up to where the partition says its end is."""
    counts: Counter[int] = Counter()
    for row in rows:
        assert row.offset == counts[row.partition], f"a gap in partition {row.partition} before {row.offset}"
        counts[row.partition] += 1
    with psycopg.connect(database_url) as connection:
        ends = connection.execute(
            "SELECT partition, next_offset, last_stable_offset FROM kafka.partition_offsets WHERE topic = %s",
            [topic],
        ).fetchall()
    for partition, next_offset, last_stable_offset in ends:
        assert next_offset == last_stable_offset == counts[partition]


def _check_acknowledged(rows: Sequence[StoredRow], histories: Sequence[History]) -> None:
    """I1: every acknowledged record is where the producer was told, byte for byte."""
    values = {(row.partition, row.offset): row.value for row in rows}
    for history in histories:
        assert history.acknowledged, "nothing was acknowledged: the test has tested nothing"
        wrong = {
            place: (value, values.get(place))
            for place, value in history.acknowledged.items()
            if values.get(place) != value
        }
        assert not wrong, (
            f"{len(wrong)} acknowledged records of {history.name} are not there: {list(wrong.items())[:3]}"
        )
    written = {row.value for row in rows}
    for history in histories:
        lost = [value for values_sent in history.sent.values() for value in values_sent if value not in written]
        assert not lost, f"{len(lost)} records of {history.name} were reported delivered and are lost: {lost[:3]}"


def _check_once_and_in_order(rows: Sequence[StoredRow], histories: Sequence[History]) -> None:
    """I2, and the order in which each producer sent."""
    identities = Counter((row.producer_id, row.epoch, row.partition, row.sequence) for row in rows)
    assert all(count == 1 for count in identities.values()), identities.most_common(3)
    found: dict[tuple[bytes, int], list[bytes]] = defaultdict(list)
    for row in rows:
        found[row.value.split(b"/")[0], row.partition].append(row.value)
    for history in histories:
        for partition, sent in history.sent.items():
            in_table = found[history.name.encode(), partition]
            assert len(in_table) == len(sent), (
                f"{history.name} sent {len(sent)} to {partition}, {len(in_table)} are there; several times: "
                f"{_repeated(rows, partition)}"
            )
            assert in_table == sent, f"{history.name} in partition {partition}: not in the order sent"


def _repeated(rows: Sequence[StoredRow], partition: int) -> list[StoredRow]:
    """The rows whose value is there more than once."""
    counts = Counter(row.value for row in rows if row.partition == partition)
    return [row for row in rows if row.partition == partition and counts[row.value] > 1]


def _check_states(database_url: str, topic: str, rows: Sequence[StoredRow]) -> None:
    """What is remembered of producers is what the rows say."""
    sequences = {(row.partition, row.offset): (row.producer_id, row.epoch, row.sequence) for row in rows}
    last = {(row.producer_id, row.partition): (row.epoch, row.sequence) for row in rows}
    with psycopg.connect(database_url) as connection:
        states = connection.execute(
            "SELECT producer_id, partition, producer_epoch, last_sequence, batches"
            " FROM kafka.producer_state WHERE topic = %s",
            [topic],
        ).fetchall()
    assert {
        (producer_id, partition): (epoch, sequence) for producer_id, partition, epoch, sequence, _ in states
    } == last
    for producer_id, partition, epoch, _, batches in states:
        assert 1 <= len(batches) <= 5
        for batch in batches:
            size = batch["last_sequence"] - batch["first_sequence"]
            for place, sequence in ((0, batch["first_sequence"]), (size, batch["last_sequence"])):
                assert sequences[partition, batch["base_offset"] + place] == (producer_id, epoch, sequence)


def count_sessions(database_url: str) -> int:
    """How many sessions gateways have."""
    return number_of(database_url, SESSIONS)


def require_nothing_left(database_url: str) -> None:
    """After the gateways have ended: no session, no lock."""
    wait_for(lambda: count_sessions(database_url), 0)
    assert number_of(database_url, ADVISORY_LOCKS) == 0


def require_nothing_held(database_url: str) -> None:
    """While gateways run but nobody writes: no lock is held, no transaction is open."""
    wait_for(lambda: number_of(database_url, ADVISORY_LOCKS), 0)
    wait_for(lambda: number_of(database_url, f"{SESSIONS} AND state <> 'idle' AND xact_start IS NOT NULL"), 0)


def number_of(database_url: str, query: str) -> int:
    """The one number that the query returns."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0
