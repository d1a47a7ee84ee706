"""Connections that wait in their own way end statements as psycopg's do."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable

import psycopg
import pytest
import uvloop
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


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("size_bytes", [10, 100_000])
def test_a_reset_right_behind_data_is_an_error_to_who_waits(
    run: Callable[..., None], size_bytes: int, database_url: str
) -> None:
    """As when the server is killed: uvloop tells of both at once, and of nothing afterwards."""
    notice = b"N" + struct.pack("!I", 4 + size_bytes) + b"M" + b"x" * (size_bytes - 3) + bytes(2)

    async def wait() -> None:
        async with await Connection.connect(database_url, autocommit=True) as connection:
            with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as ours:
                ours.connect(listener.getsockname())
                theirs, _ = listener.accept()
                ours.setblocking(False)
                os.dup2(ours.fileno(), connection.pgconn.socket)
            statement = asyncio.create_task(connection.execute("SELECT 1"))
            await _until_sent(connection)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with theirs:
                theirs.sendall(notice)
            async with asyncio.timeout(TIMEOUT_S):
                with pytest.raises(psycopg.OperationalError):
                    await statement

    run(wait())
