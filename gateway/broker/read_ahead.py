"""The next pieces of a scan, read while its consumer is still busy with the last one.

A consumer that begins where it was last given rows up to is scanning: what follows is read before it asks. Two pieces a
scan, one after the other, so that the database goes on while a piece is encoded and sent; all together under a byte
limit, and each for a moment only. What is kept are rows, which do not change; whether a consumer may have them is
judged when it asks, as for any other read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from gateway.errors import KafkaError
from gateway.storage.failures import DATABASE_ERRORS
from gateway.storage.keys import PartitionKey

__all__ = ["OnRows", "Piece", "Range", "ReadAhead"]

KEPT_SECONDS = 5.0
MAX_ENDS = 10_000
MAX_PIECES = 2
"""Of a scan, that its consumer has not asked for."""


class Range(NamedTuple):
    """Rows that somebody wants."""

    key: PartitionKey
    start_offset: int
    end_offset: int
    max_bytes: int
    leader_epoch: int


class Piece(NamedTuple):
    """Records as batches, and the offset after them."""

    records: bytes
    next_offset: int


OnRows = Callable[[int], None]
"""Told of the offset after the rows when they are there, before they are made into batches."""


@dataclass(slots=True)
class _Ahead:
    wanted: Range
    size_bytes: int
    """As many as may come, until they are there."""
    distance: int
    """1 for what the consumer will ask for next; 0 for what it has asked for and waits for."""
    next_offset: int | None = None
    """After its rows, when they are there."""
    task: asyncio.Task[Piece] = field(init=False)
    timer: asyncio.TimerHandle = field(init=False)


Place = tuple[PartitionKey, int]


class ReadAhead:
    """Pieces that nobody has asked for yet."""

    def __init__(
        self,
        load: Callable[[Range, OnRows], Coroutine[None, None, Piece]],
        *,
        is_held: Callable[[PartitionKey, int], bool],
        limit_bytes: int,
    ) -> None:
        """`is_held`: what begins at this offset need not be read."""
        self._load = load
        self._is_held = is_held
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._pieces: dict[Place, _Ahead] = {}
        self._ends: dict[Place, None] = {}  # where consumers were given rows up to, the oldest first

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def take(self, wanted: Range) -> Piece | None:
        """The piece that begins here, if one was read for a request like this; it is not kept any longer."""
        ahead = self._drop((wanted.key, wanted.start_offset))
        if ahead is None:
            return None
        if ahead.wanted.leader_epoch != wanted.leader_epoch or ahead.wanted.max_bytes > wanted.max_bytes:
            return None
        ahead.distance = 0
        try:
            piece = await ahead.task
        except (*DATABASE_ERRORS, KafkaError):
            return None  # whoever asks reads for himself, and is told if that fails too
        # It may have been read for a consumer that sees more: of open transactions, to the end of the log.
        return piece if piece.records and piece.next_offset <= wanted.end_offset else None

    def follow(self, wanted: Range, piece: Piece) -> None:
        """A consumer was given `piece`: read what follows if it scans, else remember where it will ask if it does."""
        is_scan = (wanted.key, wanted.start_offset) in self._ends
        self._ends.pop((wanted.key, wanted.start_offset), None)
        if piece.next_offset >= wanted.end_offset:
            return
        self._ends[(wanted.key, piece.next_offset)] = None
        if len(self._ends) > MAX_ENDS:
            del self._ends[next(iter(self._ends))]
        if is_scan:
            self._go_on(wanted, piece.next_offset, distance=1)

    def stop(self) -> None:
        for place in list(self._pieces):
            self._forget(place)

    def _go_on(self, wanted: Range, start_offset: int, *, distance: int) -> None:
        """Read the piece that begins here, or, where that is there already, the one behind it."""
        if distance > MAX_PIECES or start_offset >= wanted.end_offset or self._is_held(wanted.key, start_offset):
            return
        ahead = self._pieces.get((wanted.key, start_offset))
        if ahead is None:
            if self._size_bytes + wanted.max_bytes <= self._limit_bytes:
                self._begin(wanted._replace(start_offset=start_offset), distance)
            return
        ahead.distance = distance
        if ahead.next_offset is not None:
            self._go_on(wanted, ahead.next_offset, distance=distance + 1)

    def _begin(self, wanted: Range, distance: int) -> None:
        place = (wanted.key, wanted.start_offset)
        ahead = self._pieces[place] = _Ahead(wanted, wanted.max_bytes, distance)
        self._size_bytes += ahead.size_bytes
        ahead.task = asyncio.create_task(self._load(wanted, partial(self._arrive, ahead)))
        ahead.timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, place)
        ahead.task.add_done_callback(lambda done: self._measure(ahead, done))

    def _arrive(self, ahead: _Ahead, next_offset: int) -> None:
        ahead.next_offset = next_offset
        is_kept = self._pieces.get((ahead.wanted.key, ahead.wanted.start_offset)) is ahead
        if is_kept or ahead.distance == 0:
            self._go_on(ahead.wanted, next_offset, distance=ahead.distance + 1)

    def _measure(self, ahead: _Ahead, done: asyncio.Task[Piece]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if self._pieces.get((ahead.wanted.key, ahead.wanted.start_offset)) is ahead:
            size_bytes = 0 if failed else len(done.result().records)
            self._size_bytes += size_bytes - ahead.size_bytes
            ahead.size_bytes = size_bytes

    def _drop(self, place: Place) -> _Ahead | None:
        ahead = self._pieces.pop(place, None)
        if ahead is not None:
            self._size_bytes -= ahead.size_bytes
            ahead.timer.cancel()
        return ahead

    def _forget(self, place: Place) -> None:
        ahead = self._drop(place)
        if ahead is not None:
            ahead.task.cancel()
