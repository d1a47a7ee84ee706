"""A commit's socket, with a server that says what no real one can be made to say in time."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import errors as pg

from gateway.storage.script_socket import ScriptSocket

TIMEOUT_S = 30.0
READY = b"Z\0\0\0\5I"
READY_IN_FAILED = b"Z\0\0\0\5E"
ABORTED = "current transaction is aborted, commands ignored until end of transaction block"
MOVED = "5 of 6 partitions are where they were"


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!I", 4 + len(content)) + content


def error(state: str, said: str) -> bytes:
    """As short as they come: with the place in the server's source, which is always there."""
    return message(b"E", f"SERROR\0VERROR\0C{state}\0M{said}\0Fx.c\0L1\0Rf\0\0".encode())


COPY_IN = message(b"G", b"\1\0\16" + b"\0\1" * 14)
COPIED = message(b"C", b"COPY 5\0")
BOUND = message(b"2", b"")
BEGUN = BOUND + message(b"C", b"BEGIN\0")
BEFORE_COPY = BEGUN + BOUND + message(b"C", b"CALL\0") + BOUND + COPY_IN
DONE = BEFORE_COPY + COPIED + BOUND + message(b"C", b"COMMIT\0") + READY
DONE_BY_THREE = BEFORE_COPY + (COPIED + BOUND + COPY_IN) * 2 + COPIED + BOUND + message(b"C", b"COMMIT\0") + READY
"""Of as many COPYs."""
DONE_BY_A_STRING = DONE.replace(BOUND, b"")


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Over loopback, as to a server: ours and the server's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with connection() as both:
        yield both


def script_socket(ours: socket.socket) -> ScriptSocket:
    return ScriptSocket(cast(Any, SimpleNamespace(pgconn=SimpleNamespace(socket=ours.fileno()))))


async def send(script: ScriptSocket, content: bytes, *, timeout_seconds: float = TIMEOUT_S) -> None:
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    script.begin(content, timeout_seconds=timeout_seconds, on_done=done.set_result)
    if (said := await done) is not None:
        raise said


async def answer(theirs: socket.socket, *pieces: bytes) -> None:
    """Wait for what is sent, then say these, each in a segment of its own."""
    loop = asyncio.get_running_loop()
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await loop.sock_recv(theirs, 65_536)
    for piece in pieces:
        await loop.sock_sendall(theirs, piece)
        await asyncio.sleep(0.05)


async def run(ours: socket.socket, theirs: socket.socket, *pieces: bytes) -> None:
    script = script_socket(ours)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(answer(theirs, *pieces))
            await send(script, b"a commit")
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        script.close()


async def test_a_commit_is_answered_in_one_piece_or_in_many(ends: tuple[socket.socket, socket.socket]) -> None:
    await run(*ends, DONE)
    await run(*ends, BEFORE_COPY, DONE[len(BEFORE_COPY) :])
    await run(*ends, *(DONE[at : at + 9] for at in range(0, len(DONE), 9)))
    await run(*ends, DONE_BY_A_STRING)


@pytest.mark.parametrize("done", [DONE, DONE_BY_THREE, DONE_BY_A_STRING])
@pytest.mark.parametrize("said", [b"ROLLBACK\0", b"COPY 5\0", b""], ids=["rolled-back", "another", "nothing"])
async def test_what_does_not_end_with_a_commit_is_no_success(
    ends: tuple[socket.socket, socket.socket], done: bytes, said: bytes
) -> None:
    end = message(b"C", said) + READY if said else READY
    not_done = done.replace(message(b"C", b"COMMIT\0") + READY, end)
    for pieces in ([not_done], [not_done[:-6], not_done[-6:]]):
        with pytest.raises(psycopg.OperationalError, match="has not committed"):
            await run(*ends, *pieces)


async def test_an_error_is_told_though_the_end_comes_later(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(pg.UniqueViolation, match="there already"):
        await run(*ends, BEGUN + error("23505", "there already"), READY)


async def test_a_failed_transaction_is_left_before_the_error_is_told(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    loop = asyncio.get_running_loop()
    script = script_socket(ours)
    sending = asyncio.create_task(send(script, b"a commit"))
    await loop.sock_recv(theirs, 65_536)
    await loop.sock_sendall(theirs, BEGUN + error("23505", "there already") + READY_IN_FAILED)
    assert b"ROLLBACK" in await loop.sock_recv(theirs, 65_536)
    assert not script.is_between
    await loop.sock_sendall(theirs, message(b"C", b"ROLLBACK\0") + READY)
    with pytest.raises(pg.UniqueViolation):
        await sending
    assert script.is_between
    script.close()


async def test_what_is_said_after_the_end_is_not_about_the_commit(ends: tuple[socket.socket, socket.socket]) -> None:
    await run(*ends, DONE + error("57P01", "terminating connection due to administrator command"))


async def test_a_server_that_goes_is_told_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    script = script_socket(ours)
    sending = asyncio.create_task(send(script, b"x" * 100_000))
    await asyncio.sleep(0)
    # Unread data makes of a close a reset, which comes together with the last words.
    theirs.send(error("57P01", "terminating connection due to administrator command"))
    theirs.close()
    async with asyncio.timeout(TIMEOUT_S / 3):
        with pytest.raises(psycopg.OperationalError):
            await sending
    script.close()


@pytest.mark.parametrize("size_bytes", [10, 20_000_000])
async def test_a_silent_server_is_waited_for_no_longer_than_allowed(
    ends: tuple[socket.socket, socket.socket], size_bytes: int
) -> None:
    """However much of the commit it has taken."""
    ours, _ = ends
    script = script_socket(ours)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(TimeoutError):
            await send(script, b"x" * size_bytes, timeout_seconds=0.2)
    assert not script.is_between
    script.close()


async def test_a_commit_that_fails_early_is_sent_to_its_end_before_anybody_is_told(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """The server takes the rest out of its input and throws it away; what comes next must begin behind it."""
    ours, theirs = ends
    loop = asyncio.get_running_loop()
    script = script_socket(ours)
    sending = asyncio.create_task(send(script, b"x" * 20_000_000))
    await asyncio.sleep(0)
    await loop.sock_sendall(theirs, BEGUN + error("TW006", MOVED) + READY)
    await asyncio.sleep(0.1)
    assert not sending.done()
    assert not script.is_between
    received = 0
    async with asyncio.timeout(TIMEOUT_S):
        while received < 20_000_000:
            received += len(await loop.sock_recv(theirs, 1 << 20))
        with pytest.raises(psycopg.DatabaseError, match=MOVED):
            await sending
    assert script.is_between
    script.close()


async def test_one_timer_serves_many_commits_and_each_has_its_full_time(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    loop = asyncio.get_running_loop()
    script = script_socket(ours)
    for _ in range(4):  # the timer of the first one rings while another is under way
        sending = asyncio.create_task(send(script, b"a commit", timeout_seconds=0.3))
        await loop.sock_recv(theirs, 65_536)
        await asyncio.sleep(0.2)
        await loop.sock_sendall(theirs, DONE)
        await sending
    started = loop.time()
    with pytest.raises(TimeoutError):
        await send(script, b"a commit", timeout_seconds=0.3)
    assert 0.25 < loop.time() - started < TIMEOUT_S
    script.close()


# --- one behind the other --------------------------------------------------------------------


async def run_two(ours: socket.socket, theirs: socket.socket, *pieces: bytes) -> list[tuple[str, str | None]]:
    """What two strings are told, in order, by a server that says these."""
    script = script_socket(ours)
    told: list[tuple[str, str | None]] = []
    through = asyncio.Event()

    def tell(name: str, said: Exception | None) -> None:
        told.append((name, said.sqlstate if isinstance(said, psycopg.Error) else said and "lost"))
        if len(told) == 2:
            through.set()

    script.begin(b"one", timeout_seconds=TIMEOUT_S, on_done=lambda said: tell("one", said))
    script.begin(b"two", timeout_seconds=TIMEOUT_S, on_done=lambda said: tell("two", said))
    await answer(theirs, *pieces)
    async with asyncio.timeout(TIMEOUT_S / 3):
        await through.wait()
    assert script.is_between
    script.close()
    return told


async def roll_back(theirs: socket.socket) -> None:
    """As the server does when it is told to."""
    loop = asyncio.get_running_loop()
    received = b""
    async with asyncio.timeout(TIMEOUT_S / 3):
        while b"ROLLBACK" not in received:
            received += await loop.sock_recv(theirs, 65_536)
        await loop.sock_sendall(theirs, message(b"C", b"ROLLBACK\0") + READY)


@given(
    one=st.sampled_from([DONE, DONE_BY_THREE, DONE_BY_A_STRING]),
    other=st.sampled_from([DONE, DONE_BY_THREE, DONE_BY_A_STRING]),
    cuts=st.lists(st.integers(0, 2 * len(DONE_BY_THREE)), max_size=4),
)
@settings(deadline=None, max_examples=50)
def test_two_commits_are_answered_in_whatever_pieces(one: bytes, other: bytes, cuts: list[int]) -> None:
    said = one + other
    places = [0, *sorted(cut for cut in cuts if cut < len(said)), len(said)]
    pieces = [said[start:end] for start, end in pairwise(places) if start < end]

    async def play() -> None:
        with connection() as ends:
            assert await run_two(*ends, *pieces) == [("one", None), ("two", None)]

    asyncio.run(play())


async def test_the_second_of_two_is_told_after_the_first_that_failed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    refused = error("25P02", ABORTED)
    ours, theirs = ends
    running = asyncio.create_task(
        run_two(ours, theirs, BEGUN + error("TW006", MOVED) + READY_IN_FAILED, refused + READY_IN_FAILED)
    )
    await roll_back(theirs)
    async with asyncio.timeout(TIMEOUT_S / 3):
        assert await running == [("one", "TW006"), ("two", "25P02")]


async def test_both_are_told_where_a_later_copy_of_the_first_fails(ends: tuple[socket.socket, socket.socket]) -> None:
    failed = BEFORE_COPY + COPIED + BOUND + COPY_IN + error("23505", "there already") + READY_IN_FAILED
    refused = error("25P02", ABORTED)
    ours, theirs = ends
    running = asyncio.create_task(run_two(ours, theirs, failed, refused + READY_IN_FAILED))
    await roll_back(theirs)
    async with asyncio.timeout(TIMEOUT_S / 3):
        assert await running == [("one", "23505"), ("two", "25P02")]


async def test_the_first_of_two_may_fail_alone(ends: tuple[socket.socket, socket.socket]) -> None:
    """At its very end, when its transaction is over."""
    failed = BEFORE_COPY + COPIED + error("40P01", "deadlock") + READY
    assert await run_two(*ends, failed, DONE) == [("one", "40P01"), ("two", None)]


def test_the_second_of_two_is_told_of_a_reset_that_came_with_the_answer_to_the_first() -> None:
    """By uvloop too, which tells of it only once."""

    async def play() -> list[Exception | None]:
        with connection() as (ours, theirs):
            script = script_socket(ours)
            told: list[Exception | None] = []
            script.begin(b"one", timeout_seconds=TIMEOUT_S, on_done=told.append)
            script.begin(b"x" * 200_000, timeout_seconds=TIMEOUT_S, on_done=told.append)
            assert theirs.recv(3) == b"one"
            theirs.send(DONE)
            theirs.close()  # what it has not read makes a reset of it
            async with asyncio.timeout(TIMEOUT_S / 3):
                while len(told) < 2:  # noqa: ASYNC110 - nobody else is told
                    await asyncio.sleep(0.01)
            script.close()
            return told

    for make_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=make_loop) as runner:
            first, second = runner.run(play())
        assert first is None or isinstance(first, psycopg.OperationalError)  # the reset may take the answer with it
        assert isinstance(second, psycopg.OperationalError)


async def test_the_second_of_two_is_not_blamed_for_the_first(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    script = script_socket(ours)
    told: list[Exception | None] = []
    script.begin(b"one", timeout_seconds=TIMEOUT_S, on_done=told.append)
    script.begin(b"two", timeout_seconds=TIMEOUT_S, on_done=told.append)
    await answer(theirs, BEGUN + error("23514", "bad data") + READY)
    theirs.close()
    async with asyncio.timeout(TIMEOUT_S / 3):
        while len(told) < 2:  # noqa: ASYNC110 - nobody else is told
            await asyncio.sleep(0.01)
    assert isinstance(told[0], pg.CheckViolation)
    assert isinstance(told[1], psycopg.OperationalError)
    script.close()


async def test_both_are_told_that_the_server_has_gone(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    script = script_socket(ours)
    told: list[Exception | None] = []
    script.begin(b"one", timeout_seconds=TIMEOUT_S, on_done=told.append)
    script.begin(b"two", timeout_seconds=TIMEOUT_S, on_done=told.append)
    await answer(theirs)
    theirs.close()
    async with asyncio.timeout(TIMEOUT_S / 3):
        while len(told) < 2:  # noqa: ASYNC110 - nobody else is told
            await asyncio.sleep(0.01)
    assert all(isinstance(said, psycopg.OperationalError) for said in told)
    assert not script.is_between
    script.close()
