"""Statements and the COPY data of one of them, sent at once on a connection's own socket: a string of statements, or
messages that run prepared ones.

libpq hands over COPY data only after the server has asked for it, so a commit waits twice. The protocol does not
ask for that: the server takes the data out of its input when it comes to the COPY, and throws away what is left over
when a statement before it failed. Between two commits the connection is psycopg's as ever.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Self

import psycopg
from psycopg import AsyncConnection
from psycopg import errors as pg
from psycopg.pq import DiagnosticField, TransactionStatus

from gateway.storage.database import Row
from gateway.storage.failures import is_bug

__all__ = ["EXECUTE", "NO_RESULTS", "SYNC", "ScriptSocket", "begin_of_bind", "is_of_statements", "run_prepared"]

READ_BYTES = 16_384
HEADER = struct.Struct("!cI")
COPY_DONE = HEADER.pack(b"c", 4)
ROLLBACK = b"ROLLBACK"
MAX_PIECES = 512
"""Of one system call, of which Linux allows 1,024; each chunk is two."""

TIMER_SECONDS = 0.001
"""The loop's timers count milliseconds."""

EXECUTE = HEADER.pack(b"E", 9) + bytes(5)
"""Of what was bound last, to its end."""
SYNC = HEADER.pack(b"S", 4)
"""Where the server goes on after an error."""
NO_RESULTS = bytes(2)
"""What ends a Bind of parameters: formats of what it returns."""

BOUND = b"2\0\0\0\4"
READY = (
    (BOUND + b"C\0\0\0\nBEGIN\0")
    + (BOUND + b"C\0\0\0\tCALL\0")
    + (BOUND + struct.pack("!cIbh14h", b"G", 35, 1, 14, *([1] * 14)))
)
"""What the server says of prepared statements until it is ready for COPY data, of 14 columns in binary form. What it
says of a string is read message by message."""
COMMIT_TAG = b"COMMIT\0"
"""Of a transaction that failed the server would say that it was rolled back."""
COMMITTED = b"C\0\0\0\x0b" + COMMIT_TAG + b"Z\0\0\0\x05I"
"""What it sends at the very end."""

SHORTEST_REPLY_BYTES = len(READY) + 1
"""Nobody needs to hear that the server is ready. An error takes more, with the BEGIN before it and the end behind it:
severity and SQLSTATE alone are 26, and there are a text and the place in the server's source. Where there is no BEGIN
before it, the text says that the transaction is aborted, or that a statement does not exist, and is long."""

OnDone = Callable[[Exception | None], None]


class _Sent:
    """A commit under way."""

    __slots__ = ("deadline", "error", "has_committed", "has_ended", "on_done")

    def __init__(self, on_done: OnDone, deadline: float) -> None:
        self.on_done = on_done
        self.deadline = deadline
        self.error: Exception | None = None
        self.has_committed = False
        """What the server has completed last is COMMIT."""
        self.has_ended = False


class ScriptSocket:
    """Commits one behind the other: the server begins the next before anybody has heard of the last. Where one fails
    inside its transaction, all behind it are refused by the server. Not for use while psycopg waits for the same
    connection."""

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(fileno=socket.dup(connection.pgconn.socket))
        self._socket.setblocking(False)
        self._awaited_bytes = 0
        """How much must have arrived before anybody looks; 0 while nobody does."""
        self._unsent: deque[memoryview] = deque()
        self._unread = b""
        self._is_fresh = True
        """Nothing was read yet of the answer to the commit that is next to end."""
        self._status = TransactionStatus.IDLE
        """After the last commit whose end was read."""
        self._under_way: deque[_Sent] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.is_lost = False
        self.has_useless_statements = False
        """The server did not know a prepared one, or it means what is not there any more."""

    @property
    def is_between(self) -> bool:
        """False from the moment that a commit is sent until its end was read, and for good where that never comes:
        whoever leaves it so must close."""
        return not self._under_way and not self.is_lost

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
        """Whoever waits for a commit is not told any more."""
        self.is_lost = True
        self._under_way.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.release()
        self._socket.close()

    def release(self) -> None:
        """Let psycopg read the connection again."""
        if self._awaited_bytes:
            self._await_bytes(1)
            self._awaited_bytes = 0
            self._loop.remove_reader(self._socket)
        self._stop_sending()

    async def run(self, script: bytes, chunks: Iterable[bytes | bytearray], *, timeout_seconds: float) -> None:
        """Run statements, the last of which ends the transaction; raises the first error, the transaction undone."""
        pieces: list[bytes | bytearray] = [_query(script)]
        for chunk in chunks:
            pieces += (HEADER.pack(b"d", 4 + len(chunk)), chunk)
        pieces.append(COPY_DONE)
        done: asyncio.Future[Exception | None] = self._loop.create_future()
        self._begin(pieces, timeout_seconds, partial(_tell, done))
        if (error := await done) is not None:
            raise error

    def begin(self, message: bytes, *, timeout_seconds: float, on_done: OnDone) -> None:
        """The same of prepared statements, in messages that are there already, up to a Sync; nobody waits, but
        `on_done` is told, in the order of the calls."""
        self._begin([message], timeout_seconds, on_done)

    def _begin(self, pieces: list[bytes | bytearray], timeout_seconds: float, on_done: OnDone) -> None:
        if not self._under_way:
            self._await_bytes(SHORTEST_REPLY_BYTES)
        deadline = self._loop.time() + timeout_seconds
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look_at_time)
        self._send(pieces)
        self._under_way.append(_Sent(on_done, deadline))

    def _await_bytes(self, size_bytes: int) -> None:
        """Stay registered from one commit to the next: to come and go would cost two system calls each time. And nobody
        needs to wake up to hear that the server is ready for what was sent already."""
        if not self._awaited_bytes:
            self._loop.add_reader(self._socket, self._receive)
        if self._awaited_bytes != size_bytes:
            self._awaited_bytes = size_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    # --- sending -----------------------------------------------------------------------------

    def _send(self, pieces: list[bytes | bytearray]) -> None:
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.sendmsg(pieces[:MAX_PIECES])
            except BlockingIOError:
                pass
            except OSError as error:
                self._loop.call_soon(self._lose, error)
                return
        if sent < sum(map(len, pieces)):
            if not self._unsent:
                self._loop.add_writer(self._socket, self._send_rest)
            self._unsent.append(memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))[sent:])

    def _send_rest(self) -> None:
        try:
            sent = self._socket.send(self._unsent[0])
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if sent < len(self._unsent[0]):
            self._unsent[0] = self._unsent[0][sent:]
        elif len(self._unsent) > 1:
            self._unsent.popleft()
        else:
            self._stop_sending()
            self._conclude()

    def _stop_sending(self) -> None:
        if self._unsent:
            self._unsent.clear()
            self._loop.remove_writer(self._socket)

    # --- receiving ---------------------------------------------------------------------------

    def _receive(self) -> None:
        """Read what is there, and on while anything is awaited: after a reset uvloop tells only once."""
        while self._read_some() and self._under_way:
            pass
        if self._under_way:
            # An error comes by itself, before the end, which is short.
            self._await_bytes(SHORTEST_REPLY_BYTES if self._is_fresh else 1)

    def _read_some(self) -> bool:
        """Whether anything was there to be read."""
        try:
            received = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._lose(error)
            return False
        if not received:
            sent = self._awaited()
            said = None if sent is None else sent.error
            self._fail(said or psycopg.OperationalError("the server closed the connection"))
            return False
        if (
            self._is_fresh
            and received.endswith(COMMITTED)
            and received.startswith(READY)
            and len(received) < 2 * len(READY)  # of one commit
            and self._awaited()
        ):
            self._end(TransactionStatus.IDLE)
        else:
            self._read_messages(self._unread + received)
        self._conclude()
        return True

    def _read_messages(self, unread: bytes) -> None:
        position = 0
        while len(unread) - position >= HEADER.size:
            kind, length = HEADER.unpack_from(unread, position)
            if len(unread) - position <= length:
                break
            # What is said after the end, of a shutdown say, is not about what was sent.
            if (sent := self._awaited()) is not None:
                content = unread[position + HEADER.size : position + length + 1]
                self._is_fresh = False
                if kind == b"E" and sent.error is None:
                    sent.error = _error(content)
                    self.has_useless_statements = self.has_useless_statements or is_of_statements(sent.error)
                elif kind == b"C":
                    sent.has_committed = content == COMMIT_TAG
                elif kind == b"Z":
                    if sent.error is None and not sent.has_committed:
                        sent.error = psycopg.OperationalError("the server has not committed, and does not say why")
                    self._end(STATUSES[content])
            position += length + 1
        self._unread = unread[position:]
        self._is_fresh = self._is_fresh and not self._unread

    def _awaited(self) -> _Sent | None:
        """The first commit whose end was not read."""
        return next((sent for sent in self._under_way if not sent.has_ended), None)

    # --- the end -----------------------------------------------------------------------------

    def _end(self, status: TransactionStatus) -> None:
        sent = self._awaited()
        assert sent is not None
        sent.has_ended = True
        self._status = status
        self._is_fresh = True

    def _conclude(self) -> None:
        """Tell those whose commits have ended, in order. Nobody is told of a failure before all that was sent has been
        answered: the server throws away what it has not read then, but it must be sent."""
        while self._under_way and self._under_way[0].has_ended and self._under_way[0].error is None:
            self._under_way.popleft().on_done(None)
        if not self._under_way or self._unsent or not self._under_way[-1].has_ended:
            return
        if self._status != TransactionStatus.IDLE:
            # Its answer is that of one more commit, which nobody waits for.
            self._await_bytes(1)
            self._under_way.append(_Sent(_tell_nobody, self._under_way[-1].deadline))
            self._is_fresh = False
            self._send([_query(ROLLBACK)])
            return
        ended, self._under_way = self._under_way, deque()
        for sent in ended:
            sent.on_done(sent.error)

    def _look_at_time(self) -> None:
        """One timer for many commits, which all but never take so long."""
        self._timer = None
        if not self._under_way:
            return
        deadline = self._under_way[0].deadline
        if deadline - self._loop.time() > TIMER_SECONDS:
            self._timer = self._loop.call_at(deadline, self._look_at_time)
        else:
            self._fail(TimeoutError("the server did not answer in time"))

    def _lose(self, error: OSError) -> None:
        self._fail(psycopg.OperationalError(f"the connection to the server is lost: {error}"))

    def _fail(self, error: Exception) -> None:
        """Of what was under way nothing is known."""
        self.release()
        if self._under_way:
            self.is_lost = True
            failed, self._under_way = self._under_way, deque()
            for sent in failed:
                sent.on_done(sent.error or error)


STATUSES = {b"I": TransactionStatus.IDLE, b"T": TransactionStatus.INTRANS, b"E": TransactionStatus.INERROR}


def _tell_nobody(error: Exception | None) -> None:
    pass


def _tell(done: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not done.done():  # whoever waited may have been cancelled
        done.set_result(error)


def is_of_statements(error: Exception) -> bool:
    """Whether a prepared statement may be to blame: it is not there, or what it refers to was made anew. That the
    transaction has failed before says nothing of it."""
    is_internal = isinstance(error, psycopg.InternalError) and not isinstance(error, pg.InFailedSqlTransaction)
    return is_internal or is_bug(error)


def begin_of_bind(name: bytes, parameter_count: int, *, is_binary: bool) -> bytes:
    """What comes before the parameters of a prepared statement, to each of which its length and itself."""
    return b"\0" + name + b"\0" + struct.pack("!hhh", 1, is_binary, parameter_count)


def run_prepared(name: bytes) -> bytes:
    """The messages that run a prepared statement which takes nothing."""
    content = begin_of_bind(name, 0, is_binary=False) + NO_RESULTS
    return HEADER.pack(b"B", 4 + len(content)) + content + EXECUTE


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
