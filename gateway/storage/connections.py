"""A connection that waits for PostgreSQL with less work than psycopg's own.

A range of records arrives in dozens of pieces. psycopg registers the socket, makes a future and a timer, and
switches tasks for each; here the socket stays registered, and the event loop's callback itself takes the piece.
"""

from __future__ import annotations

import asyncio
import select
from typing import Any, Generic, TypeVar

from psycopg import AsyncConnection
from psycopg import errors as pg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

__all__ = ["Connection"]

Row = tuple[Any, ...]
Value = TypeVar("Value")

CANCEL_SECONDS = 5.0
INTERVAL_SECONDS = 0.1


class Connection(AsyncConnection[Row]):
    """psycopg's connection but for how it waits."""

    async def wait(
        self,
        gen: PQGen[Value],
        interval: float = INTERVAL_SECONDS,
        timeout: float | None = None,  # noqa: ASYNC109 - psycopg's signature
    ) -> Value:
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        try:
            return await _Waiting(gen, self.pgconn.socket).finish()
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._end_statement(gen)
            raise

    async def _end_statement(self, gen: PQGen[Value]) -> None:
        """Tell the server that nobody waits any longer, as psycopg does, so that the connection can be used again."""
        try:
            await self.cancel_safe(timeout=CANCEL_SECONDS)
            await super().wait(gen, timeout=CANCEL_SECONDS)
        except pg.QueryCanceled:
            pass  # as it was told
        except pg.Error:
            self.pgconn.finish()  # in which state it is nobody knows


class _Waiting(Generic[Value]):
    """A generator of psycopg's that goes on whenever the socket is ready for what it waits for."""

    def __init__(self, gen: PQGen[Value], socket: int) -> None:
        self._gen = gen
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._wanted = 0
        self._poll: select.poll | None = None

    async def finish(self) -> Value:
        try:
            wanted = next(self._gen)
        except StopIteration as end:
            value: Value = end.value
            return value
        self._finished: asyncio.Future[Value] = self._loop.create_future()
        try:
            self._watch(wanted)
            return await self._finished
        except OSError as error:
            raise pg.OperationalError("the connection's socket is closed") from error
        finally:
            self._watch(0)

    def _is_broken(self) -> bool:
        """As after a reset."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket, 0)  # for errors, which nobody has to ask for
        return bool(self._poll.poll(0))

    def _watch(self, wanted: int) -> None:
        added, dropped = wanted & ~self._wanted, self._wanted & ~wanted
        self._wanted = wanted
        if dropped & Wait.R:
            self._loop.remove_reader(self._socket)
        if dropped & Wait.W:
            self._loop.remove_writer(self._socket)
        if added & Wait.R:
            self._loop.add_reader(self._socket, self._go_on, Ready.R)
        if added & Wait.W:
            self._loop.add_writer(self._socket, self._go_on, Ready.W)

    def _go_on(self, ready: Ready) -> None:
        if self._finished.done():  # cancelled meanwhile
            return
        try:
            wanted = self._gen.send(ready)
            if self._is_broken():
                # uvloop does not tell of it again, and libpq hears of it only behind all that was received before.
                while True:
                    self._gen.send(Ready.RW)
            if wanted != self._wanted:
                self._watch(wanted)
        except StopIteration as end:
            self._watch(0)
            self._finished.set_result(end.value)
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it, whatever it is
            self._watch(0)
            self._finished.set_exception(error)
