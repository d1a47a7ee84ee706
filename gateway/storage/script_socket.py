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


class ScriptSocket:
    """Not for use by two tasks at once, nor while psycopg waits for the same connection."""

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self._socket = socket.socket(fileno=socket.dup(connection.pgconn.socket))
        self._socket.setblocking(False)
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
        self._socket.close()

    async def run(self, script: bytes, chunks: Iterable[bytes | bytearray]) -> None:
        """Run statements, the last of which ends the transaction; raises the first error, the transaction undone."""
        pieces: list[bytes | bytearray] = [_query(script)]
        for chunk in chunks:
            pieces += (HEADER.pack(b"d", 4 + len(chunk)), chunk)
        pieces.append(COPY_DONE)
        self.is_between = False
        await self._send(pieces)
        status, error = await self._read()
        if status != TransactionStatus.IDLE:
            await self._send([_query(ROLLBACK)])
            await self._read()
        self.is_between = True
        if error is not None:
            raise error

    async def _send(self, pieces: list[bytes | bytearray]) -> None:
        for first in range(0, len(pieces), MAX_PIECES):
            some = pieces[first : first + MAX_PIECES]
            try:
                sent = self._socket.sendmsg(some)
            except BlockingIOError:
                sent = 0
            if sent < sum(map(len, some)):
                await asyncio.get_running_loop().sock_sendall(self._socket, b"".join(some)[sent:])

    async def _read(self) -> tuple[TransactionStatus, psycopg.Error | None]:
        """Read until the server is ready for the next string; also what it complained of first."""
        loop = asyncio.get_running_loop()
        error: psycopg.Error | None = None
        unread = b""
        while True:
            received = await loop.sock_recv(self._socket, READ_BYTES)
            if not received:
                raise error or psycopg.OperationalError("the server closed the connection")
            unread += received
            while len(unread) >= HEADER.size:
                kind, length = HEADER.unpack_from(unread)
                if len(unread) <= length:
                    break
                if kind == b"Z":
                    return STATUSES[unread[5:6]], error
                if kind == b"E" and error is None:
                    error = _error(unread[5 : length + 1])
                unread = unread[length + 1 :]


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
