"""The next piece of a scan, read while its consumer is still busy with the last one.

A consumer that begins where it was last given rows up to is scanning: what follows is read before it asks. One piece a
scan, all together under a byte limit, and each for a moment only. What is kept are rows, which do not change; whether a
consumer may have them is judged when it asks, as for any other read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import KafkaError
from gateway.storage.failures import DATABASE_ERRORS
from gateway.storage.keys import PartitionKey

__all__ = ["Piece", "Range", "ReadAhead"]

KEPT_SECONDS = 5.0
MAX_ENDS = 10_000


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


@dataclass(slots=True)
class _Ahead:
    wanted: Range
    task: asyncio.Task[Piece]
    size_bytes: int
    """As many as may come, until they are there."""
    timer: asyncio.TimerHandle


Place = tuple[PartitionKey, int]


class ReadAhead:
    """Pieces that nobody has asked for yet."""

    def __init__(self, load: Callable[[Range], Coroutine[None, None, Piece]], *, limit_bytes: int) -> None:
        self._load = load
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
        if ahead is None or ahead.wanted.leader_epoch != wanted.leader_epoch:
            return None
        if ahead.wanted.max_bytes > wanted.max_bytes:
            return None
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
        following = (wanted.key, piece.next_offset)
        self._ends[following] = None
        if len(self._ends) > MAX_ENDS:
            del self._ends[next(iter(self._ends))]
        if is_scan and following not in self._pieces and self._size_bytes + wanted.max_bytes <= self._limit_bytes:
            self._begin(wanted._replace(start_offset=piece.next_offset))

    def stop(self) -> None:
        for place in list(self._pieces):
            self._forget(place)

    def _begin(self, wanted: Range) -> None:
        place = (wanted.key, wanted.start_offset)
        task = asyncio.create_task(self._load(wanted))
        timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, place)
        ahead = self._pieces[place] = _Ahead(wanted, task, wanted.max_bytes, timer)
        self._size_bytes += ahead.size_bytes
        task.add_done_callback(lambda done: self._measure(ahead, done))

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
