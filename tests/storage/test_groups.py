"""Groups and offsets in PostgreSQL: who may write, and what becomes of what is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from gateway.domain.groups.classic import GroupSnapshot, MemberSnapshot
from gateway.storage import groups, offsets
from gateway.storage.database import Database
from gateway.storage.keys import PartitionKey
from gateway.storage.offsets import CommittedOffset, OffsetToCommit
from tests.support.waiting import wait_for

MEMBER = MemberSnapshot(
    "m-1", "worker-1", "client", "/127.0.0.1", 10_000, 60_000, (("range", b"\x00\x01"), ("sticky", b"")), b"\xffall"
)
OTHER = MemberSnapshot("m-0", None, "client", "/127.0.0.1", 6_000, 30_000, (("range", b""),), b"")
STABLE = GroupSnapshot(4, "consumer", "range", "m-1", (MEMBER, OTHER))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, connections=4, timeout_ms=10_000, prepared_statements=True)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def topic_id(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "WITH made AS (INSERT INTO kafka.topics (name, partition_count) VALUES ('t', 3) RETURNING topic_id)"
            " INSERT INTO kafka.partitions (topic_id, partition)"
            " SELECT topic_id, generate_series(0, 2) FROM made RETURNING topic_id"
        ).fetchone()
    assert row is not None
    found: int = row[0]
    return found


def waiting_for_a_lock(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    assert row is not None
    return row[0]


async def claim(database: Database, *, node_id: int, group_id: str = "g") -> groups.Claim:
    claimed = await groups.claim(database, group_id, node_id=node_id, create=True)
    assert claimed is not None
    return claimed


async def commit(database: Database, epoch: int, *rows: OffsetToCommit, group_id: str = "g") -> set[str]:
    return await offsets.commit(database, {group_id: epoch}, {(group_id, row.key): row for row in rows})


async def test_a_group_that_nobody_made_is_not_claimed_unless_asked(database: Database) -> None:
    assert await groups.claim(database, "g", node_id=1, create=False) is None
    assert await groups.list_all(database) == []


async def test_what_was_saved_is_loaded_by_the_next_coordinator(database: Database) -> None:
    first = await claim(database, node_id=1)
    assert await groups.save_classic(database, "g", STABLE, epoch=first.epoch, state="Stable")
    second = await groups.claim(database, "g", node_id=2, create=False)
    assert second is not None
    assert (second.state, second.generation, second.epoch > first.epoch) == ("Stable", 4, True)
    assert await groups.load_classic(database, "g", second) == STABLE


async def test_of_two_gateways_only_the_last_to_claim_can_write(database: Database, topic_id: int) -> None:
    zombie = await claim(database, node_id=1)
    await groups.save_classic(database, "g", STABLE, epoch=zombie.epoch, state="Stable")
    current = await claim(database, node_id=2)
    empty = GroupSnapshot(9)
    assert not await groups.save_classic(database, "g", empty, epoch=zombie.epoch, state="Empty")
    assert await commit(database, zombie.epoch, OffsetToCommit(PartitionKey(topic_id, 0), 7)) == set()
    assert not await offsets.delete(database, "g", [PartitionKey(topic_id, 0)], epoch=zombie.epoch)
    assert not await groups.delete(database, "g", epoch=zombie.epoch)
    await groups.show_states(database, [("g", zombie.epoch, "Dead")])
    assert await groups.load_classic(database, "g", current) == STABLE
    assert await offsets.fetch_all(database, "g") == []
    assert [one.state for one in await groups.list_all(database)] == ["Stable"]
    lost = await groups.find_lost(database, [("g", zombie.epoch), ("g", current.epoch), ("h", 1)])
    assert sorted(lost) == ["g", "h"]


async def test_claims_at_once_each_get_an_epoch_of_their_own(database: Database) -> None:
    claims = await asyncio.gather(*(claim(database, node_id=node_id) for node_id in range(10)))
    assert len({one.epoch for one in claims}) == 10
    last = max(claims)
    for one in claims:
        saved = await groups.save_classic(database, "g", GroupSnapshot(), epoch=one.epoch, state="Empty")
        assert saved == (one == last)


async def test_a_claim_waits_for_a_commit_in_flight_and_a_later_commit_is_refused(
    database: Database, topic_id: int, database_url: str
) -> None:
    key = PartitionKey(topic_id, 0)
    first = await claim(database, node_id=1)
    async with database.transaction() as transaction:
        assert await groups.hold_claim(transaction, "g", epoch=first.epoch)
        claiming = asyncio.create_task(claim(database, node_id=2))
        with psycopg.connect(database_url, autocommit=True) as watcher:
            await asyncio.to_thread(wait_for, lambda: waiting_for_a_lock(watcher), 1)
        assert not claiming.done()
        await offsets.upsert_offsets(transaction, "g", [OffsetToCommit(key, 5)])
    await claiming
    assert await commit(database, first.epoch, OffsetToCommit(key, 6)) == set()
    assert (await offsets.fetch(database, "g", [key]))[key].offset == 5


async def test_a_group_made_anew_does_not_know_its_old_coordinator(database: Database, topic_id: int) -> None:
    old = await claim(database, node_id=1)
    assert await groups.delete(database, "g", epoch=old.epoch)
    new = await claim(database, node_id=2)
    assert new.epoch > old.epoch
    assert await commit(database, old.epoch, OffsetToCommit(PartitionKey(topic_id, 0), 7)) == set()


async def test_offsets_come_back_as_they_were_committed(database: Database, topic_id: int) -> None:
    claimed = await claim(database, node_id=1)
    keys = [PartitionKey(topic_id, index) for index in range(3)]
    rows = [OffsetToCommit(keys[0], 5, 2, "näh"), OffsetToCommit(keys[1], 0)]
    assert await commit(database, claimed.epoch, *rows) == {"g"}
    expected = {keys[0]: CommittedOffset(5, 2, "näh"), keys[1]: CommittedOffset(0, -1, "")}
    assert await offsets.fetch(database, "g", keys) == expected
    assert [(one.topic, one.key, one.committed) for one in await offsets.fetch_all(database, "g")] == [
        ("t", key, committed) for key, committed in expected.items()
    ]
    await commit(database, claimed.epoch, OffsetToCommit(keys[0], 3))
    assert (await offsets.fetch(database, "g", keys))[keys[0]] == CommittedOffset(3, -1, "")


async def test_groups_commit_together_and_each_is_judged_alone(database: Database, topic_id: int) -> None:
    zombie, current = await claim(database, node_id=1), await claim(database, node_id=1, group_id="h")
    await claim(database, node_id=2)
    key = PartitionKey(topic_id, 0)
    written = await offsets.commit(
        database,
        {"g": zombie.epoch, "h": current.epoch},
        {("g", key): OffsetToCommit(key, 1), ("h", key): OffsetToCommit(key, 2)},
    )
    assert written == {"h"}
    assert (await offsets.fetch(database, "g", [key]), (await offsets.fetch(database, "h", [key]))[key].offset) == (
        {},
        2,
    )


async def test_offsets_go_with_their_topic_and_none_is_committed_after_that(
    database: Database, topic_id: int, database_url: str
) -> None:
    claimed, key = await claim(database, node_id=1), PartitionKey(topic_id, 0)
    await commit(database, claimed.epoch, OffsetToCommit(key, 1))
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM kafka.topics")
    assert await offsets.fetch_all(database, "g") == []
    assert await commit(database, claimed.epoch, OffsetToCommit(key, 1)) == {"g"}
    async with database.transaction() as transaction:
        await offsets.upsert_offsets(transaction, "new", [OffsetToCommit(key, 1)])
    assert await offsets.fetch_all(database, "g") == await offsets.fetch_all(database, "new") == []


class TestExpiry:
    """What housekeeping drops, an hour being the retention."""

    async def expire(self, database: Database) -> tuple[int, int]:
        async with database.transaction() as transaction:
            ((gone,),) = await transaction.rows("housekeeping/expire_offsets", retention_minutes=60)
            ((groups_gone,),) = await transaction.rows("housekeeping/drop_empty_groups", idle_ms=600_000)
        return gone, groups_gone

    async def prepare(self, database: Database, topic_id: int, database_url: str, *, state: str, **ages: str) -> None:
        """A group with one offset; `ages` say how long ago its columns were set."""
        claimed = await claim(database, node_id=1)
        members = STABLE.members if state == "Stable" else ()
        protocol = ages.pop("protocol", "consumer")
        snapshot = GroupSnapshot(1, protocol or None, "range", None, members)
        await groups.save_classic(database, "g", snapshot, epoch=claimed.epoch, state=state)
        await commit(database, claimed.epoch, OffsetToCommit(PartitionKey(topic_id, 0), 1))
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "UPDATE kafka.groups SET state_changed_at = now() - %s::interval", [ages.get("changed", "0")]
            )
            connection.execute(
                "UPDATE kafka.consumer_offsets SET committed_at = now() - %s::interval", [ages.get("committed", "0")]
            )

    @pytest.mark.parametrize(
        ("ages", "expected"),
        [
            ({"state": "Empty", "changed": "61 min", "committed": "10 days"}, (1, 1)),
            ({"state": "Empty", "changed": "59 min", "committed": "10 days"}, (0, 0)),
            ({"state": "Empty", "changed": "61 min", "committed": "61 min", "protocol": ""}, (1, 1)),
            ({"state": "Empty", "changed": "10 days", "committed": "59 min", "protocol": ""}, (0, 0)),
            ({"state": "Stable", "changed": "10 days", "committed": "10 days", "protocol": "connect"}, (0, 0)),
            ({"state": "PreparingRebalance", "changed": "10 days", "committed": "10 days"}, (0, 0)),
        ],
    )
    async def test_what_nobody_uses_goes(
        self, ages: dict[str, str], expected: tuple[int, int], database: Database, topic_id: int, database_url: str
    ) -> None:
        await self.prepare(database, topic_id, database_url, **ages)  # type: ignore[arg-type]
        assert await self.expire(database) == expected

    @pytest.mark.parametrize(("topic", "gone"), [(b"t", 0), (b"u", 1)])
    async def test_topics_that_a_stable_group_does_not_read_any_more_go(
        self, topic: bytes, gone: int, database: Database, topic_id: int, database_url: str
    ) -> None:
        await self.prepare(database, topic_id, database_url, state="Stable", committed="61 min")
        subscription = b"\x00\x00\x00\x00\x00\x01\x00\x01" + topic + b"\xff\xff\xff\xff"
        member = MemberSnapshot("m", None, "", "", 6_000, 6_000, (("range", subscription),), b"")
        claimed = await claim(database, node_id=1)
        snapshot = GroupSnapshot(2, "consumer", "range", "m", (member,))
        await groups.save_classic(database, "g", snapshot, epoch=claimed.epoch, state="Stable")
        assert await self.expire(database) == (gone, 0)

    async def test_nothing_goes_while_a_member_reads_by_pattern(
        self, database: Database, topic_id: int, database_url: str
    ) -> None:
        await self.prepare(database, topic_id, database_url, state="Stable", committed="61 min")
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE kafka.group_members SET subscribed_topics = '{}', subscribed_regex = 't.*'")
        assert await self.expire(database) == (0, 0)
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE kafka.group_members SET subscribed_regex = NULL")
        assert await self.expire(database) == (1, 0)

    async def test_an_old_clients_own_retention_comes_first(self, database: Database, topic_id: int) -> None:
        claimed, key = await claim(database, node_id=1), PartitionKey(topic_id, 0)
        await commit(database, claimed.epoch, OffsetToCommit(key, 1, retention_ms=0))
        assert await self.expire(database) == (1, 0)


async def test_lag_counts_to_both_ends(database: Database, topic_id: int, database_url: str) -> None:
    claimed = await claim(database, node_id=1)
    await commit(database, claimed.epoch, OffsetToCommit(PartitionKey(topic_id, 1), 30))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE kafka.partitions SET next_offset = 100, last_stable_offset = 90 WHERE partition = 1")
        rows = connection.execute(
            "SELECT group_id, topic, partition, committed_offset, end_offset, lag, stable_lag FROM kafka.consumer_lag"
        ).fetchall()
    assert rows == [("g", "t", 1, 30, 100, 70, 60)]
