"""Connections that wait in their own way end statements as psycopg's do."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from gateway.storage.connections import Connection

TIMEOUT_S = 60


async def _until_sent(connection: Connection) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while connection.pgconn.transaction_status != TransactionStatus.ACTIVE:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def test_a_cancelled_statement_leaves_its_connection_usable(database_url: str) -> None:
    async with await Connection.connect(database_url, autocommit=True) as connection:
        statement = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
        await _until_sent(connection)
        statement.cancel()
        with pytest.raises(asyncio.CancelledError):
            await statement
        found = await (await connection.execute("SELECT 1")).fetchall()
        assert found == [(1,)]


async def test_large_statements_and_results_pass(database_url: str) -> None:
    """More than sockets hold, in both directions: it waits for reading and for writing."""
    sent = "x" * 20_000_000
    async with await Connection.connect(database_url, autocommit=True) as connection:
        cursor = await connection.execute("SELECT %s::text, n FROM generate_series(1, 3) AS n", [sent])
        assert await cursor.fetchall() == [(sent, 1), (sent, 2), (sent, 3)]


async def test_an_ended_backend_is_an_error_to_who_waits(database_url: str) -> None:
    async with (
        await Connection.connect(database_url, autocommit=True) as connection,
        await Connection.connect(database_url, autocommit=True) as other,
    ):
        statement = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
        await _until_sent(connection)
        await other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            await statement
        assert connection.closed
        assert await (await other.execute("SELECT 1")).fetchone() == (1,)
