"""Consumer groups (KIP-848) as rows: what is written is what is read, by the group's coordinator only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.consumer import ConsumerGroup
from gateway.domain.groups.reconciliation import ClassicProtocol, Member, MemberState
from gateway.storage import consumer_groups, groups
from gateway.storage.database import Database

TOPIC = UUID(int=7)
ONE, TWO, THREE = (Partition(TOPIC, number) for number in range(3))
GROUP = ConsumerGroup(
    group_id="group",
    epoch=9,
    target_epoch=8,
    members={
        "a": Member(
            member_id="a",
            instance_id="instance",
            rack_id="rack",
            client_id="client",
            client_host="host",
            rebalance_timeout_ms=5,
            assignor="range",
            topic_names=frozenset({"orders", "payments"}),
            epoch=7,
            previous_epoch=6,
            state=MemberState.UNREVOKED,
            assigned={ONE: 3},
            revoking={TWO: 4},
        ),
        "b": Member(
            member_id="b",
            topic_names=frozenset({"orders"}),
            rebalance_timeout_ms=5,
            classic=ClassicProtocol(1234, (("range", b"\0\x01"), ("sticky", b""))),
        ),
        "c": Member(member_id="c", topic_pattern="or.*", rebalance_timeout_ms=5),
    },
    target={"a": frozenset({ONE}), "b": frozenset({TWO, THREE}), "c": frozenset()},
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, connections=1, timeout_ms=10_000, prepared_statements=True)
    await database.open()
    yield database
    await database.close()


async def claim(database: Database) -> groups.Claim:
    claimed = await groups.claim(database, "group", node_id=1, create=True)
    assert claimed is not None
    return claimed


async def save(database: Database, group: ConsumerGroup, before: ConsumerGroup | None, *, epoch: int) -> bool:
    return await consumer_groups.save(
        database, group, before, epoch=epoch, assignor="uniform", session_timeout_ms=45_000
    )


async def test_a_group_is_read_as_it_was_written(database: Database) -> None:
    claimed = await claim(database)
    assert await save(database, GROUP, None, epoch=claimed.epoch)
    again = await claim(database)
    assert (again.group_type, again.state, again.generation) == ("consumer", "Assigning", 9)
    assert await consumer_groups.load(database, "group", group_epoch=again.generation) == GROUP


async def test_only_what_changed_is_written(database: Database) -> None:
    claimed = await claim(database)
    await save(database, GROUP, None, epoch=claimed.epoch)
    member = replace(GROUP.members["a"], epoch=9, revoking={}, state=MemberState.STABLE)
    changed = replace(
        GROUP,
        target_epoch=9,
        members={"a": member, "c": GROUP.members["c"]},
        target={"a": frozenset({ONE}), "c": frozenset({TWO, THREE})},
    )
    assert await save(database, changed, GROUP, epoch=claimed.epoch)
    assert await consumer_groups.load(database, "group", group_epoch=9) == changed


async def test_a_gateway_that_lost_the_group_writes_nothing(database: Database) -> None:
    zombie = await claim(database)
    current = await claim(database)
    assert not await save(database, GROUP, None, epoch=zombie.epoch)
    assert (await consumer_groups.load(database, "group", group_epoch=0)).members == {}
    assert await save(database, GROUP, None, epoch=current.epoch)
