"""A string of statements and the COPY data in it, sent at once on a connection's own socket.

libpq hands over COPY data only after the server has asked for it, so a commit waits twice. The protocol does not
ask for that: the server takes the data out of its input when it comes to the COPY, and throws away what is left over
when a statement before it failed. Between two strings the connection is psycopg's as ever.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable
from typing import Self

import psycopg
from psycopg import AsyncConnection
from psycopg import errors as pg
from psycopg.pq import DiagnosticField, TransactionStatus

from gateway.storage.database import Row

__all__ = ["ScriptSocket"]

READ_BYTES = 16_384
HEADER = struct.Struct("!cI")
COPY_DONE = HEADER.pack(b"c", 4)
ROLLBACK = b"ROLLBACK"
MAX_PIECES = 512
"""Of one system call, of which Linux allows 1,024; each chunk is two."""

SHORTEST_REPLY_BYTES = 58
"""One more than the server sends until it is ready for COPY data: BEGIN (11), CALL (10), the COPY's 14 columns (36).
An error takes more: severity and SQLSTATE alone are 26, and there are a text and the place in the server's source."""


class ScriptSocket:
    """Not for use by two tasks at once, nor while psycopg waits for the same connection."""

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(fileno=socket.dup(connection.pgconn.socket))
        self._socket.setblocking(False)
        self._awaited_bytes = 0
        """How much must have arrived before anybody looks; 0 while nobody does."""
        self._unread = b""
        self._error: psycopg.Error | None = None
        self._done: asyncio.Future[TransactionStatus] | None = None
        self.is_between = True
        """False from the moment that a string is sent until its end was read: whoever leaves it so must close."""

    @classmethod
    async def of(cls, connection: AsyncConnection[Row]) -> Self | None:
        """None where the socket carries something else than the plain protocol, or does not lead to the server."""
        pgconn = connection.pgconn
        if pgconn.ssl_in_use or pgconn.used_gssapi:
            return None
        row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
        # A pooler has processes of its own to tell of, and follows the protocol's turns.
        return cls(connection) if row == (pgconn.backend_pid,) else None

    def close(self) -> None:
        self.release()
        self._socket.close()

    def release(self) -> None:
        """Let psycopg read the connection again."""
        if self._awaited_bytes:
            self._await_bytes(1)
            self._awaited_bytes = 0
            self._loop.remove_reader(self._socket)

    async def run(self, script: bytes, chunks: Iterable[bytes | bytearray], *, timeout_seconds: float) -> None:
        """Run statements, the last of which ends the transaction; raises the first error, the transaction undone."""
        pieces: list[bytes | bytearray] = [_query(script)]
        for chunk in chunks:
            pieces += (HEADER.pack(b"d", 4 + len(chunk)), chunk)
        pieces.append(COPY_DONE)
        await self._run(pieces, timeout_seconds=timeout_seconds)

    async def send(self, message: bytes, *, timeout_seconds: float) -> None:
        """The same where the string and its data are one message already."""
        await self._run([message], timeout_seconds=timeout_seconds)

    async def _run(self, pieces: list[bytes | bytearray], *, timeout_seconds: float) -> None:
        self.is_between = False
        self._await_bytes(SHORTEST_REPLY_BYTES)
        deadline = self._loop.time() + timeout_seconds
        timer = self._loop.call_at(deadline, self._expire)
        try:
            status = await self._exchange(pieces, deadline)
            error = self._error
            if status != TransactionStatus.IDLE:
                self._await_bytes(1)
                await self._exchange([_query(ROLLBACK)], deadline)
        finally:
            timer.cancel()
        self.is_between = True
        if error is not None:
            raise error

    def _await_bytes(self, size_bytes: int) -> None:
        """Stay registered from one string to the next: to come and go would cost two system calls each time. And nobody
        needs to wake up to hear that the server is ready for what was sent already."""
        if not self._awaited_bytes:
            self._loop.add_reader(self._socket, self._receive)
        if self._awaited_bytes != size_bytes:
            self._awaited_bytes = size_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    async def _exchange(self, pieces: list[bytes | bytearray], deadline: float) -> TransactionStatus:
        """Send, and wait until the server is ready for the next string; `_error` is what it complained of first."""
        self._error = None
        self._done = self._loop.create_future()
        for first in range(0, len(pieces), MAX_PIECES):
            some = pieces[first : first + MAX_PIECES]
            try:
                sent = self._socket.sendmsg(some)
            except BlockingIOError:
                sent = 0
            if sent < sum(map(len, some)):
                unsent = memoryview(some[0] if len(some) == 1 else b"".join(some))[sent:]
                async with asyncio.timeout_at(deadline):
                    await self._loop.sock_sendall(self._socket, unsent)
        return await self._done

    def _receive(self) -> None:
        """Read what is there, and on until the server is ready: after a reset uvloop tells only once."""
        while self._read_some() and self._done is not None and not self._done.done():
            self._await_bytes(1)  # an error comes by itself, before the end, which is short

    def _read_some(self) -> bool:
        """Whether anything was there to be read."""
        try:
            received = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(psycopg.OperationalError(f"the connection to the server is lost: {error}"))
            return False
        if not received:
            self._fail(self._error or psycopg.OperationalError("the server closed the connection"))
            return False
        unread = self._unread + received
        position = 0
        while len(unread) - position >= HEADER.size:
            kind, length = HEADER.unpack_from(unread, position)
            if len(unread) - position <= length:
                break
            # What is said after the end, of a shutdown say, is not about what was sent.
            if self._done is not None and not self._done.done():
                content = unread[position + HEADER.size : position + length + 1]
                if kind == b"E" and self._error is None:
                    self._error = _error(content)
                elif kind == b"Z":
                    self._done.set_result(STATUSES[content])
            position += length + 1
        self._unread = unread[position:]
        return True

    def _expire(self) -> None:
        self._fail(TimeoutError("the server did not answer in time"))

    def _fail(self, error: Exception) -> None:
        self.release()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # whoever still sends is told by its own time


STATUSES = {b"I": TransactionStatus.IDLE, b"T": TransactionStatus.INTRANS, b"E": TransactionStatus.INERROR}


def _query(script: bytes) -> bytes:
    return HEADER.pack(b"Q", len(script) + 5) + script + b"\0"


def _error(sent: bytes) -> psycopg.Error:
    """The exception of an ErrorResponse: fields of a letter, which is the number that libpq gives them, and a text."""
    fields = {field[0]: field[1:] for field in sent.split(b"\0") if field}
    info: dict[int, bytes | None] = {number: fields.get(number) for number in DiagnosticField}
    state = (info[DiagnosticField.SQLSTATE] or b"").decode()
    said = (info[DiagnosticField.MESSAGE_PRIMARY] or b"an error without words").decode("utf-8", "replace")
    try:
        return pg.lookup(state)(said, info=info)
    except KeyError:
        error = psycopg.DatabaseError(said, info=info)
        error.sqlstate = state
        return error
