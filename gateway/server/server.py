"""The gateway as a process: open the database, listen, serve until told to stop, drain."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from gateway.broker.broker import Broker, Node, load_cluster_id
from gateway.config import Settings
from gateway.domain.configs import broker_values_of
from gateway.errors import StartupError
from gateway.handlers import HANDLERS
from gateway.protocol import transcoder
from gateway.protocol.messages import ApiKey, preload
from gateway.server.connection import Connection
from gateway.server.http import HttpListener
from gateway.server.limits import Budget
from gateway.storage.database import Database
from gateway.storage.schema import head_version
from gateway.telemetry.logs import configure_logs

__all__ = ["run_gateway"]

log = structlog.get_logger()

FIRST_REQUESTS = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH)
"""What every client begins with; other APIs are loaded when they are first used."""

COLLECTOR_THRESHOLDS = (10_000, 20, 50)
"""A commit makes thousands of tuples that are gone after it; Python's own 700 would look at them in between."""


async def run_gateway(settings: Settings, database_url: str, *, announce: Callable[[str, int], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. `announce` is called once clients can connect."""
    configure_logs(json=settings.log_format == "json", level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    lost: list[str] = []

    def lose(why: str) -> None:
        lost.append(why)
        stop.set()

    database = await _open_database(settings, database_url)
    try:
        connections: set[Connection] = set()
        budget = Budget(settings.queued_max_request_bytes)
        listen = settings.listen_address
        brokers: list[Broker] = []
        try:
            server = await loop.create_server(
                lambda: Connection(brokers[0], settings, budget, connections),
                listen.host,
                listen.port,
                backlog=1024,
                start_serving=False,
            )
        except OSError as error:
            raise StartupError(
                # uvloop's own words name the address once more.
                f"Cannot listen on {listen}: {os.strerror(error.errno) if error.errno else error}."
                " Choose another address with TABLEWIRE_LISTEN."
            ) from error
        port = server.sockets[0].getsockname()[1]
        address = settings.advertised_address
        node = Node(
            settings.node_id,
            address.host if address else _reachable(listen.host),
            address.port if address else port,
        )
        broker = Broker(
            settings,
            database,
            node=node,
            cluster_id=await load_cluster_id(database),
            broker_values=broker_values_of(
                settings.model_dump(), listen=str(listen), advertised=f"{node.host}:{node.port}"
            ),
            schema_version=head_version(),
            on_lost=lose,
        )
        brokers.append(broker)
        http = HttpListener(settings.http_address, broker)
        for api_key in FIRST_REQUESTS:
            preload(api_key, HANDLERS[api_key].versions)
        if not transcoder.implementation.IS_COMPILED:
            log.warning("the compiled transcoder was not built; Python does its work, slowly: see docs/operations.md")
        await broker.start()
        _spare_the_collector()
        await server.start_serving()
        announce(node.host, node.port)
        await stop.wait()
        log.info("draining", connections=len(connections))
        server.close()
        await broker.leave()
        await _drain(connections, settings.drain_timeout_ms / 1000)
        await broker.stop()
        await http.stop()
        if lost:
            raise StartupError(lost[0])
    finally:
        await database.close()


def _spare_the_collector() -> None:
    """What was loaded stays for ever: without this, each full collection walks all of it while requests wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


async def _open_database(settings: Settings, url: str) -> Database:
    database = Database(
        url,
        connections=settings.read_connections,
        timeout_ms=settings.database_timeout_ms,
        prepared_statements=settings.prepared_statements,
    )
    try:
        await database.open()
    except (psycopg.OperationalError, PoolTimeout, TimeoutError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["it did not answer in time"])[0]
        raise StartupError(
            f"Cannot reach the database: {reason}. Check TABLEWIRE_DATABASE_URL and that PostgreSQL runs."
        ) from error
    return database


async def _drain(connections: set[Connection], timeout_seconds: float) -> None:
    if not connections:
        return
    tasks = [asyncio.create_task(connection.drain()) for connection in list(connections)]
    _, late = await asyncio.wait(tasks, timeout=timeout_seconds)
    for task in late:
        task.cancel()
    for connection in list(connections):
        connection.abort()


def _reachable(host: str) -> str:
    """Clients cannot connect to a wildcard; without `advertised` they are told of loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
