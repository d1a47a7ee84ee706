"""Reading the log from rows: scans that are read ahead, and long polls that wait for nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from kafka.record import MemoryRecords
from psycopg.pq.abc import PGresult

from gateway.broker.positions import Positions
from gateway.broker.reads import Fetched, Reads, Wanted
from gateway.broker.tail import Tail
from gateway.clock import monotonic_seconds
from gateway.errors import OffsetOutOfRange, UnknownTopicOrPartition
from gateway.storage.database import Database, Row
from gateway.storage.keys import PartitionKey
from gateway.storage.statements import statement

TIMEOUT_S = 60
POLL_MS = 100
ROWS = 2_000
VALUE_BYTES = 100
PIECE_BYTES = 10_000
READ = "log/read_messages"


class CountedDatabase(Database):
    """Counts the statements that it runs."""

    def __init__(self, url: str) -> None:
        super().__init__(url, connections=4, timeout_ms=TIMEOUT_S * 1000, prepared_statements=True)
        self.statements: Counter[str] = Counter()

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        self.statements[name] += 1
        return await super().rows(name, **parameters)

    async def result(self, name: str, /, **parameters: object) -> PGresult:
        self.statements[name] += 1
        return await super().result(name, **parameters)


class Gateway:
    def __init__(self, database: CountedDatabase) -> None:
        self.database = database
        self.positions = Positions(database, poll_interval_ms=POLL_MS)
        self.reads = Reads(database, self.positions, Tail(limit_bytes=0), read_ahead_bytes=1 << 20)

    async def fetch(
        self, key: PartitionKey, offset: int, *, max_wait_ms: int = 0, read_committed: bool = False
    ) -> Fetched:
        [found] = await self.reads.fetch(
            [Wanted(key, offset, PIECE_BYTES)],
            min_bytes=1,
            max_bytes=PIECE_BYTES,
            max_wait_ms=max_wait_ms,
            read_committed=read_committed,
        )
        return found


@pytest.fixture
def key(database_url: str) -> PartitionKey:
    """A partition with 2,000 rows, the second half of them behind the last stable offset."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute(statement("topics/insert_topic"), {"name": "t", "partition_count": 1}).fetchone()
        assert row is not None
        connection.execute(statement("topics/insert_partitions"), {"topic_id": row[0], "first": 0, "last": 1})
        connection.execute(statement("topics/create_storage"), {"topic_id": row[0]})
        connection.execute(
            'INSERT INTO kafka.messages (topic_id, partition, "offset", "timestamp", timestamp_type, is_transactional,'
            " value) SELECT %s, 0, n, now(), 0, false, convert_to(repeat('v', %s), 'UTF8')"
            " FROM generate_series(0, %s) AS n",
            [row[0], VALUE_BYTES, ROWS - 1],
        )
        connection.execute("UPDATE kafka.partitions SET next_offset = %s, last_stable_offset = %s", [ROWS, ROWS // 2])
    return PartitionKey(row[0], 0)


@pytest.fixture
async def gateway(database_url: str) -> AsyncIterator[Gateway]:
    database = CountedDatabase(database_url)
    await database.open()
    gateway = Gateway(database)
    gateway.positions.start()
    yield gateway
    gateway.reads.stop()
    await gateway.positions.stop()
    await database.close()


def offsets_of(found: Fetched) -> list[int]:
    assert found.error is None
    batches = MemoryRecords(found.records)
    return [record.offset for batch in iter(batches.next_batch, None) for record in batch]


async def scan(gateway: Gateway, key: PartitionKey, *, pieces: int) -> int:
    """Read so many pieces one after the other; returns the offset after them."""
    offset = 0
    for _ in range(pieces):
        found = await gateway.fetch(key, offset)
        offset = offsets_of(found)[-1] + 1
    return offset


async def until_read_ahead(gateway: Gateway, reads: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while gateway.database.statements[READ] < reads:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def test_a_scan_reads_each_piece_once_and_the_next_one_ahead(gateway: Gateway, key: PartitionKey) -> None:
    offset = 0
    seen: list[int] = []
    while offset < ROWS:
        found = await gateway.fetch(key, offset)
        seen += offsets_of(found)
        offset = seen[-1] + 1
    assert seen == list(range(ROWS))
    pieces = gateway.database.statements[READ]
    assert ROWS * VALUE_BYTES // PIECE_BYTES <= pieces <= ROWS * (VALUE_BYTES + 20) // PIECE_BYTES + 5


def test_a_read_costs_the_same_however_much_follows(key: PartitionKey, database_url: str) -> None:
    """Rows that PostgreSQL looks at for one piece, with 2,000 rows ahead of the consumer and with 42,000."""
    wanted = {**key._asdict(), "start_offset": 100, "max_rows": 200, "max_bytes": PIECE_BYTES}
    more = (
        'INSERT INTO kafka.messages (topic_id, partition, "offset", "timestamp", timestamp_type, is_transactional,'
        ' value) SELECT topic_id, partition, n, "timestamp", 0, false, value FROM kafka.messages,'
        ' generate_series(%s, %s) AS n WHERE "offset" = 0'
    )
    with psycopg.connect(database_url, autocommit=True) as connection:

        def rows_looked_at(end_offset: int) -> int:
            query = f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {statement(READ)}"
            ((plans,),) = connection.execute(query.encode(), {**wanted, "end_offset": end_offset}).fetchall()
            return sum(scanned(plans[0]["Plan"]))

        connection.execute("ANALYZE kafka.messages")
        before = rows_looked_at(ROWS)
        connection.execute(more, [ROWS, ROWS + 40_000 - 1])
        connection.execute("ANALYZE kafka.messages")
        assert rows_looked_at(ROWS + 40_000) == before
        assert before <= 2 * 200


def scanned(plan: dict[str, Any]) -> Iterator[float]:
    """Of each node that reads a table: rows it gave, and rows it threw away."""
    if "Relation Name" in plan:
        yield plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    for part in plan.get("Plans", ()):
        yield from scanned(part)


async def test_a_reader_of_committed_records_gets_nothing_that_was_read_ahead_for_others(
    gateway: Gateway, key: PartitionKey
) -> None:
    stable, offset = ROWS // 2, 0
    while offset < stable:
        offset = offsets_of(await gateway.fetch(key, offset))[-1] + 1
        seen = offsets_of(await gateway.fetch(key, offset, read_committed=True))
        assert seen == list(range(offset, offset + len(seen)))
        assert not seen or seen[-1] < stable


async def test_what_was_read_ahead_is_refused_once_the_log_begins_after_it(
    gateway: Gateway, key: PartitionKey, database_url: str
) -> None:
    offset = await scan(gateway, key, pieces=3)
    await until_read_ahead(gateway, 4)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("UPDATE kafka.partitions SET log_start_offset = %s", [offset + 1])
    await gateway.positions.load([key])
    assert isinstance((await gateway.fetch(key, offset)).error, OffsetOutOfRange)


async def test_what_was_read_ahead_goes_with_its_topic(gateway: Gateway, key: PartitionKey, database_url: str) -> None:
    offset = await scan(gateway, key, pieces=3)
    await until_read_ahead(gateway, 4)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("DELETE FROM kafka.topics WHERE topic_id = %s", [key.topic_id])
    await gateway.positions.load([key])
    assert isinstance((await gateway.fetch(key, offset)).error, UnknownTopicOrPartition)


async def test_idle_long_polls_ask_the_database_nothing(gateway: Gateway, key: PartitionKey) -> None:
    """A thousand consumers at the end of the log cost what one does: one look at where the partitions are, at the
    beginning and every poll interval, for all of them together."""
    began = monotonic_seconds()
    for _ in range(3):
        found = await asyncio.gather(*(gateway.fetch(key, ROWS, max_wait_ms=500) for _ in range(1000)))
        assert not any(one.records or one.error for one in found)
    looks = (monotonic_seconds() - began) * 1000 / POLL_MS + 2
    assert set(gateway.database.statements) <= {"log/load_partitions"}
    assert gateway.database.statements["log/load_partitions"] <= looks
