"""A node id is held in an epoch, by the database's clock; a gateway that is cut off knows it by its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from gateway.broker.cluster import Cluster
from gateway.domain.placement import Node
from gateway.errors import CoordinatorNotAvailable, StartupError
from gateway.storage.brokers import BrokerConnection
from gateway.storage.database import Database

SESSION_MS = 60_000
ONE, TWO = Node(1, "one.example", 9092), Node(2, "two.example", 9093)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, connections=1, timeout_ms=10_000, prepared_statements=True)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def connect(database: Database) -> AsyncIterator[Callable[[], asyncio.Future[BrokerConnection]]]:
    """Connections of several gateways."""
    opened: list[BrokerConnection] = []

    async def connect() -> BrokerConnection:
        opened.append(await BrokerConnection.open(database, session_timeout_ms=SESSION_MS))
        return opened[-1]

    yield connect  # type: ignore[misc]
    for connection in opened:
        await connection.close()


async def register(connection: BrokerConnection, node: Node) -> int | None:
    return await connection.register(node, http_address="127.0.0.1:9180")


def silence(database_url: str) -> None:
    """Let everybody's last sign of life be long ago."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE kafka.brokers SET heartbeat_at = now() - interval '1 hour'")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_live_gateway_keeps_its_id(connect: Callable[[], asyncio.Future[BrokerConnection]]) -> None:
    first, second = await connect(), await connect()
    epoch = await register(first, ONE)
    assert epoch is not None
    assert await register(second, ONE._replace(host="other.example")) is None
    assert await first.beat(1, epoch=epoch)
    assert await second.list_live() == [ONE]
    holder = await second.find(1)
    assert holder is not None
    assert holder[:3] == ("one.example", 9092, epoch)


async def test_an_epoch_that_was_silent_for_too_long_is_over(
    connect: Callable[[], asyncio.Future[BrokerConnection]], database_url: str
) -> None:
    first, second = await connect(), await connect()
    old = await register(first, ONE)
    assert old is not None
    silence(database_url)
    assert await second.list_live() == []
    assert not await first.beat(1, epoch=old), "not even if nobody has taken the id"
    new = await register(second, ONE)
    assert new is not None
    assert new > old
    assert not await first.beat(1, epoch=old)
    await first.deregister(1, epoch=old)
    assert await first.list_live() == [ONE], "who lost the id cannot take it away either"


async def test_the_id_of_a_gateway_whose_session_ended_can_be_taken_at_once(
    connect: Callable[[], asyncio.Future[BrokerConnection]],
) -> None:
    first, second = await connect(), await connect()
    old = await register(first, ONE)
    await first.close()
    new = None
    async with asyncio.timeout(15):
        while new is None:
            new = await register(second, ONE)
    assert old is not None
    assert new > old


async def test_epochs_are_never_given_twice(connect: Callable[[], asyncio.Future[BrokerConnection]]) -> None:
    connection = await connect()
    epochs = []
    for _ in range(3):
        epoch = await register(connection, ONE)
        assert epoch is not None
        epochs.append(epoch)
        await connection.deregister(1, epoch=epoch)
        assert await connection.list_live() == []
    assert epochs == sorted(set(epochs))


def make_cluster(database: Database, node: Node, *, session_timeout_ms: int, lost: list[str]) -> Cluster:
    return Cluster(
        database,
        node,
        http_address="127.0.0.1:9180",
        heartbeat_interval_ms=20,
        session_timeout_ms=session_timeout_ms,
        on_lost=lost.append,
    )


async def test_gateways_find_each_other(database: Database) -> None:
    lost: list[str] = []
    one = make_cluster(database, ONE, session_timeout_ms=SESSION_MS, lost=lost)
    two = make_cluster(database, TWO, session_timeout_ms=SESSION_MS, lost=lost)
    changes: list[tuple[int, ...]] = []
    one.call_on_change(lambda: changes.append(one.node_ids))
    await one.join()
    await two.join()
    await until(lambda: one.node_ids == (1, 2))
    assert two.nodes == [ONE, TWO]
    assert two.controller_id == 1
    for key in map(str, range(50)):
        assert one.coordinator_of(key) == two.coordinator_of(key)
        assert one.is_coordinator_of(key) != two.is_coordinator_of(key)
    await one.leave()
    assert one.node_ids == (2,), "who goes sends its clients to the others"
    assert not one.is_member
    assert not any(one.is_coordinator_of(str(key)) for key in range(50))
    await until(lambda: two.node_ids == (2,))
    assert changes == [(1, 2), (2,)]
    await two.leave()
    assert two.nodes == [TWO], "clients are always told of somebody"
    assert lost == []


async def test_a_second_gateway_with_the_same_id_is_refused(database: Database) -> None:
    lost: list[str] = []
    first = make_cluster(database, ONE, session_timeout_ms=SESSION_MS, lost=lost)
    second = make_cluster(database, ONE._replace(port=1), session_timeout_ms=SESSION_MS, lost=lost)
    await first.join()
    with pytest.raises(StartupError, match=r"^Node id 1 is in use by the gateway at one\.example:9092: give .*$"):
        await second.join()
    await first.leave()
    await second.join()
    await second.leave()


async def test_a_gateway_that_cannot_beat_is_no_member_and_comes_back_in_a_new_epoch(
    database: Database, database_url: str
) -> None:
    lost: list[str] = []
    cluster = make_cluster(database, ONE, session_timeout_ms=400, lost=lost)
    await cluster.join()
    epoch = cluster.epoch
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM kafka.brokers FOR UPDATE")  # heartbeats wait for this transaction's end
        await until(lambda: not cluster.is_member)
        with pytest.raises(CoordinatorNotAvailable):
            cluster.coordinator_of("group")
        assert not cluster.is_coordinator_of("group")
        assert cluster.nodes == [ONE]
    await until(lambda: cluster.is_member)
    assert cluster.epoch > epoch
    assert cluster.is_coordinator_of("group")
    await cluster.leave()
    assert lost == []


async def test_a_gateway_whose_id_was_taken_says_so_and_stops_beating(database: Database, database_url: str) -> None:
    lost: list[str] = []
    cluster = make_cluster(database, ONE, session_timeout_ms=SESSION_MS, lost=lost)
    await cluster.join()
    taker = await BrokerConnection.open(database, session_timeout_ms=SESSION_MS)
    epoch = None
    async with asyncio.timeout(15):
        while epoch is None:  # the gateway beats in between
            silence(database_url)
            epoch = await register(taker, ONE._replace(host="taker.example"))
    await until(lambda: lost != [])
    assert lost[0].startswith("Another gateway has taken node id 1 while this one was silent:")
    assert not cluster.is_member
    await cluster.leave()
    assert await taker.beat(1, epoch=epoch), "the one that lost has not disturbed the other"
    await taker.close()
