"""What becomes of a connection's tasks when its client goes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config import Settings
from gateway.server import connection as module
from gateway.server.connection import Connection
from gateway.server.limits import Budget


class Abandoned:
    """A request that was begun for a client that had gone."""

    held_bytes = 0

    def __init__(self) -> None:
        self.was_abandoned = False

    async def response(self) -> bytes | None:
        raise AssertionError("nobody is there to be answered")

    def abandon(self) -> None:
        self.was_abandoned = True


async def test_tasks_end_with_their_connection_though_a_cancellation_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_begun = asyncio.Event()
    pending = Abandoned()

    async def begin(*_: Any, **__: Any) -> Abandoned:
        has_begun.set()
        # As wait_for of Python 3.11 does when what it waits for is there too.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return pending

    monkeypatch.setattr(module, "begin", begin)
    broker = cast(Any, SimpleNamespace(connections=SimpleNamespace(accept=lambda: 1)))
    made: list[Connection] = []

    def connect() -> Connection:
        made.append(Connection(broker, Settings(), Budget(1_000_000), set()))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(struct.pack("!i", 4) + b"body")
        await has_begun.wait()
        writer.transport.abort()
        tasks = made[0]._tasks
        await asyncio.wait_for(asyncio.wait(tasks), timeout=10)
    assert pending.was_abandoned
