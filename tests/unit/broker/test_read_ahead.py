"""What a scan will ask for is read before it asks, and nobody gets what he may not have."""

from __future__ import annotations

import asyncio

from gateway.broker.read_ahead import OnRows, Piece, Range, ReadAhead
from gateway.errors import CoordinatorNotAvailable
from gateway.storage.keys import PartitionKey

KEY = PartitionKey(1, 0)
END = 1_000
STEP = 10


class Log:
    """Records of one byte each, given in pieces of ten; remembers what was read."""

    def __init__(self, *, limit_bytes: int = 1 << 20) -> None:
        self.read: list[int] = []
        self.error: Exception | None = None
        self.held_from = END
        self.may_arrive = asyncio.Event()
        self.may_arrive.set()
        self.may_be_encoded = asyncio.Event()
        self.may_be_encoded.set()
        self.ahead = ReadAhead(self.load, is_held=lambda key, offset: offset >= self.held_from, limit_bytes=limit_bytes)

    async def load(self, wanted: Range, on_rows: OnRows = lambda next_offset: None) -> Piece:
        self.read.append(wanted.start_offset)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        await self.may_arrive.wait()
        next_offset = min(wanted.start_offset + STEP, wanted.end_offset)
        on_rows(next_offset)
        await self.may_be_encoded.wait()
        return Piece(b"r" * (next_offset - wanted.start_offset), next_offset)

    async def fetch(self, start_offset: int, *, end_offset: int = END, max_bytes: int = 100, epoch: int = 0) -> Piece:
        wanted = Range(KEY, start_offset, end_offset, max_bytes, epoch)
        piece = await self.ahead.take(wanted) or await self.load(wanted)
        self.ahead.follow(wanted, piece)
        return piece


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_scan_finds_its_next_two_pieces_already_read() -> None:
    log = Log()
    await log.fetch(0)
    await settle()
    assert log.read == [0]  # one read is no scan
    await log.fetch(10)
    await settle()
    assert log.read == [0, 10, 20, 30]
    assert await log.fetch(20) == Piece(b"r" * STEP, 30)
    await settle()
    assert log.read == [0, 10, 20, 30, 40]
    log.ahead.stop()


async def test_the_second_piece_is_read_when_the_rows_of_the_first_are_there_and_not_sooner() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    log.may_arrive.clear()
    log.may_be_encoded.clear()
    await settle()
    assert log.read == [0, 10, 20]
    log.may_arrive.set()
    await settle()
    assert log.read == [0, 10, 20, 30]
    log.ahead.stop()


async def test_while_a_consumer_waits_for_a_piece_the_two_behind_it_are_read() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    log.may_arrive.clear()
    waiting = asyncio.create_task(log.fetch(20))
    await settle()
    log.may_arrive.set()
    log.may_be_encoded.clear()
    await settle()
    assert not waiting.done()
    assert log.read == [0, 10, 20, 30, 40]
    log.may_be_encoded.set()
    assert await waiting == Piece(b"r" * STEP, 30)
    await settle()
    assert log.read == [0, 10, 20, 30, 40]
    log.ahead.stop()


async def test_a_piece_that_is_still_being_read_is_waited_for() -> None:
    log = Log()
    for start_offset in range(0, 100, STEP):
        assert (await log.fetch(start_offset)).next_offset == start_offset + STEP
    await settle()
    assert log.read == list(range(0, 120, STEP))
    log.ahead.stop()


async def test_what_is_in_memory_is_not_read_ahead() -> None:
    log = Log()
    log.held_from = 30
    await log.fetch(0)
    await log.fetch(10)
    await settle()
    assert log.read == [0, 10, 20]
    await log.fetch(20)
    await settle()
    assert log.read == [0, 10, 20]
    log.ahead.stop()


async def test_nothing_is_read_beyond_the_end() -> None:
    log = Log()
    for start_offset in (0, 10, 20):
        await log.fetch(start_offset, end_offset=30)
    await settle()
    assert log.read == [0, 10, 20]
    assert log.ahead.size_bytes == 0


async def test_whoever_sees_less_of_the_log_reads_for_himself() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    await settle()
    assert await log.fetch(20, end_offset=25) == Piece(b"r" * 5, 25)
    log.ahead.stop()


async def test_a_piece_of_another_leader_epoch_is_not_given_away() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    await settle()
    await log.fetch(20, epoch=1)
    assert log.read[:5] == [0, 10, 20, 30, 20]
    log.ahead.stop()


async def test_a_piece_for_a_larger_request_is_not_given_to_a_smaller_one() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    await settle()
    await log.fetch(20, max_bytes=99)
    assert log.read[:5] == [0, 10, 20, 30, 20]
    log.ahead.stop()


async def test_behind_a_piece_that_was_not_given_away_nothing_is_read() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    log.may_arrive.clear()
    await settle()
    assert log.read == [0, 10, 20]
    fetched = asyncio.create_task(log.fetch(20, max_bytes=99))
    await settle()
    log.may_arrive.set()
    await fetched
    await settle()
    assert log.read == [0, 10, 20, 20, 30, 40]  # for the smaller request alone
    log.ahead.stop()


async def test_behind_a_piece_that_was_forgotten_nothing_is_read() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    log.may_arrive.clear()
    await settle()
    log.ahead.stop()
    log.may_arrive.set()
    await settle()
    assert log.read == [0, 10, 20]
    assert log.ahead.size_bytes == 0


async def test_no_more_is_read_ahead_than_the_limit_has_room_for() -> None:
    log = Log(limit_bytes=250)
    await log.fetch(0)
    await log.fetch(10)
    assert log.ahead.size_bytes == 100  # as much as may come
    await settle()
    assert log.read == [0, 10, 20, 30]
    assert log.ahead.size_bytes == 2 * STEP  # as much as came
    one = Log(limit_bytes=150)
    await one.fetch(0)
    await one.fetch(10)
    one.may_be_encoded.clear()
    await settle()
    assert one.read == [0, 10, 20]  # while it may still be as large as was asked for
    one.ahead.stop()
    none = Log(limit_bytes=99)
    await none.fetch(0)
    await none.fetch(10)
    await settle()
    assert none.read == [0, 10]
    log.ahead.stop()
    assert log.ahead.size_bytes == 0


async def test_who_meets_a_failed_piece_reads_for_himself() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    log.error = CoordinatorNotAvailable("the database is away")
    await settle()
    log.error = None
    assert (await log.fetch(20)).next_offset == 30
    log.ahead.stop()


async def test_what_nobody_asked_for_is_forgotten() -> None:
    log = Log()
    await log.fetch(0)
    await log.fetch(10)
    await settle()
    assert log.ahead.size_bytes == 2 * STEP
    log.ahead.stop()
    assert log.ahead.size_bytes == 0
    await log.fetch(20)
    assert log.read == [0, 10, 20, 30, 20]
    log.ahead.stop()
