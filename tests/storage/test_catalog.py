"""What the catalog keeps in memory: fresh, bounded, and nothing of topics that are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.broker import catalog as module
from gateway.broker.catalog import Catalog
from gateway.domain.configs import ConfigOp, OpType, apply_broker
from gateway.domain.topics import NewTopic
from gateway.storage.database import Database


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url, connections=2, timeout_ms=10_000, prepared_statements=True)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def catalog_of(database: Database, node_id: int = 1) -> Catalog:
    return Catalog(database, {}, node_id=node_id, on_deleted=lambda topic_id: None)


class Clock:
    now = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that passes only when a test says so."""
    clock = Clock()
    monkeypatch.setattr(module, "monotonic_seconds", lambda: clock.now)
    return clock


def set_limit(value: str) -> Callable[..., dict[str, str]]:
    return lambda values: apply_broker(values, [ConfigOp("message.max.bytes", OpType.SET, value)], replaces_all=False)


async def test_a_topic_deleted_elsewhere_is_gone_after_a_moment_and_leaves_nothing(
    database_url: str, clock: Clock
) -> None:
    async with opened(database_url) as database:
        here, elsewhere = catalog_of(database), catalog_of(database, node_id=2)
        topic = await here.create(NewTopic("gone", 1), {})
        await here.create(NewTopic("other", 1), {})
        await elsewhere.delete(topic)
        assert set(await here.find(["gone", "other"])) == {"gone", "other"}, "kept for a moment"
        clock.now += module.FRESH_SECONDS + 0.1
        assert set(await here.find(["gone", "other"])) == {"other"}
        assert await here.find_by_uuid([topic.uuid]) == {}
        assert list(here._uuids) == ["other"]
        assert len(here._kept) == 1


async def test_a_topic_created_anew_elsewhere_is_found_under_its_new_id(database_url: str, clock: Clock) -> None:
    async with opened(database_url) as database:
        here, elsewhere = catalog_of(database), catalog_of(database, node_id=2)
        old = await here.create(NewTopic("again", 1), {})
        await elsewhere.delete(old)
        new = await elsewhere.create(NewTopic("again", 2), {})
        assert (await here.find_now(["again"]))["again"].uuid == new.uuid
        assert (await here.find(["again"]))["again"].partition_count == 2
        clock.now += module.FRESH_SECONDS + 0.1
        assert await here.find_by_uuid([old.uuid, new.uuid]) == {new.uuid: (await here.find(["again"]))["again"]}
        assert list(here._kept) == [new.uuid]


async def test_memory_is_bounded(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    async with opened(database_url) as database:
        here = catalog_of(database)
        for number in range(5):
            await here.create(NewTopic(f"t{number}", 1), {})
        assert len(await here.list_all()) == 5
        assert list(here._uuids) == ["t2", "t3", "t4"]
        assert len(here._kept) == 3
        assert len(await here.find([f"t{number}" for number in range(5)])) == 5


async def test_an_altered_config_of_all_brokers_is_seen_at_once_here_and_after_a_moment_elsewhere(
    database_url: str, clock: Clock
) -> None:
    async with opened(database_url) as database:
        here, elsewhere = catalog_of(database), catalog_of(database, node_id=2)
        await here.create(NewTopic("t", 1), {})

        async def limit(catalog: Catalog) -> int:
            return (await catalog.find(["t"]))["t"].settings.max_message_bytes

        assert (await limit(here), await limit(elsewhere)) == (1_048_588, 1_048_588)
        await here.change_broker_configs(set_limit("2000"), for_all=True, validate_only=False)
        assert (await limit(here), await limit(elsewhere)) == (2_000, 1_048_588)
        clock.now += module.FRESH_SECONDS + 0.1
        assert await limit(elsewhere) == 2_000
        await here.change_broker_configs(set_limit("3000"), for_all=False, validate_only=False)
        clock.now += module.FRESH_SECONDS + 0.1
        assert (await limit(here), await limit(elsewhere)) == (3_000, 2_000)


async def test_what_was_read_before_a_change_is_not_kept_after_it(database_url: str) -> None:
    async with opened(database_url) as database:
        here = catalog_of(database)
        topic = await here.create(NewTopic("t", 1), {})
        before = here._moment()
        await here.change_configs(topic, lambda _: {"retention.ms": "7"}, validate_only=False)
        here._keep(topic.stored, before)
        assert (await here.find(["t"]))["t"].overrides == {"retention.ms": "7"}
