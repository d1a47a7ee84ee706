"""Fetch: records from memory or from rows, in bounded pieces, waiting for more where there is too little."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from gateway.broker.aborted import AbortedTransactions
from gateway.broker.positions import Positions
from gateway.broker.read_ahead import OnRows, Piece, Range, ReadAhead
from gateway.broker.tail import Tail
from gateway.broker.turns import Turns
from gateway.clock import monotonic_seconds
from gateway.errors import (
    FencedLeaderEpoch,
    KafkaError,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from gateway.protocol import transcoder
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS, translate
from gateway.storage.keys import PartitionKey
from gateway.storage.log import PartitionState, read_messages
from gateway.storage.transactions import AbortedRange

__all__ = ["Fetched", "Reads", "Wanted", "check_leader_epoch"]

MIN_ROWS, MAX_ROWS = 32, 20_000
FIRST_GUESS_ROW_BYTES = 500
NO_EPOCH = -1
NO_STATE = PartitionState(-1, -1, -1, -1)


class Wanted(NamedTuple):
    """What a consumer asks of one partition."""

    key: PartitionKey
    offset: int
    max_bytes: int
    leader_epoch: int = -1


class Fetched(NamedTuple):
    """What one partition has to give."""

    state: PartitionState
    records: bytes = b""
    aborted: Sequence[AbortedRange] = ()
    """Transactions that a read_committed consumer skips in `records`."""
    error: KafkaError | None = None
    is_cut: bool = False
    """Whether there are records that did not fit."""


def check_leader_epoch(received: int, *, current: int) -> None:
    """KIP-320: refuse a client that knows an older or a newer leader. -1 knows none; below it is older than any."""
    if received != NO_EPOCH and received < current:
        raise FencedLeaderEpoch(f"the partition's leader epoch is {current}, received {received}")
    if received > current:
        raise UnknownLeaderEpoch(f"the partition's leader epoch is {current}, received {received}")


class Reads:
    """The read side of the log."""

    def __init__(self, database: Database, positions: Positions, tail: Tail, *, read_ahead_bytes: int) -> None:
        self._database = database
        self._aborted = AbortedTransactions(database)
        self._positions = positions
        self._tail = tail
        self._ahead = ReadAhead(self._load, is_held=tail.holds, limit_bytes=read_ahead_bytes)
        self._row_bytes: dict[PartitionKey, int] = {}
        self._turn = 0
        self._turns = Turns()

    def stop(self) -> None:
        """Nobody asks any longer."""
        self._ahead.stop()

    def forget(self) -> None:
        """What was read may not be there any more."""
        self._ahead.stop()
        self._aborted.clear()

    async def fetch(
        self,
        wanted: Sequence[Wanted],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        read_committed: bool,
    ) -> list[Fetched]:
        """Read each partition, in the order of `wanted`. Returns as soon as `min_bytes` are there, a partition is
        refused, or the time is over."""
        deadline = monotonic_seconds() + max_wait_ms / 1000
        must_ask = max_wait_ms <= 0
        with self._positions.watching(one.key for one in wanted) as moved:
            while True:
                moved.clear()
                found = await self._read_all(
                    wanted, max_bytes=max_bytes, read_committed=read_committed, must_ask=must_ask
                )
                if (
                    sum(len(one.records) for one in found) >= min_bytes
                    or any(one.error for one in found)
                    or self._positions.is_closing
                ):
                    return found
                try:
                    async with asyncio.timeout(deadline - monotonic_seconds()):
                        await moved.wait()
                except TimeoutError:
                    return found

    async def _read_all(
        self, wanted: Sequence[Wanted], *, max_bytes: int, read_committed: bool, must_ask: bool
    ) -> list[Fetched]:
        try:
            states = await self._states(wanted, must_ask=must_ask, read_committed=read_committed)
        except DATABASE_ERRORS as error:
            refusal = translate(error)
            return [Fetched(NO_STATE, error=refusal) for _ in wanted]
        found = [Fetched(NO_STATE)] * len(wanted)
        budget = max_bytes
        # Another partition comes first each time: under a small max_bytes none starves behind the others.
        self._turn += 1
        for step in range(len(wanted)):
            index = (self._turn + step) % len(wanted)
            one, state = wanted[index], states.get(wanted[index].key)
            try:
                if state is None:
                    raise UnknownTopicOrPartition("the partition does not exist")
                found[index] = await self._read(
                    one, state, budget=budget, is_first=budget == max_bytes, read_committed=read_committed
                )
                # What did not fit would not fit after the next partitions either: they need not be read.
                budget = 0 if found[index].is_cut else budget - len(found[index].records)
            except KafkaError as error:
                found[index] = Fetched(state or NO_STATE, error=error)
            except DATABASE_ERRORS as error:
                found[index] = Fetched(NO_STATE, error=translate(error))
        return found

    async def _states(
        self, wanted: Sequence[Wanted], *, must_ask: bool, read_committed: bool
    ) -> dict[PartitionKey, PartitionState]:
        """Where the partitions are; the database is asked where memory cannot be believed."""
        states, unsure = self._known_states(wanted, must_ask=must_ask, read_committed=read_committed)
        if unsure and must_ask:
            states |= await self._positions.load(unsure)
        elif unsure:
            async with self._turns.of(frozenset(unsure)):
                states, unsure = self._known_states(wanted, must_ask=False, read_committed=read_committed)
                if unsure:
                    states |= await self._positions.load(unsure)
        return states

    def _known_states(
        self, wanted: Sequence[Wanted], *, must_ask: bool, read_committed: bool
    ) -> tuple[dict[PartitionKey, PartitionState], list[PartitionKey]]:
        """What is known of the partitions, and those that have to be asked for."""
        states: dict[PartitionKey, PartitionState] = {}
        unsure: list[PartitionKey] = []
        for one in wanted:
            state = self._positions.known(one.key)
            if (
                state is None
                or not state.log_start_offset <= one.offset <= state.next_offset
                or (must_ask and one.offset >= (state.last_stable_offset if read_committed else state.next_offset))
            ):
                unsure.append(one.key)
            else:
                states[one.key] = state
        return states, unsure

    async def _read(
        self, one: Wanted, state: PartitionState, *, budget: int, is_first: bool, read_committed: bool
    ) -> Fetched:
        # Fetch alone takes every negative epoch for none, as Kafka does.
        check_leader_epoch(max(one.leader_epoch, NO_EPOCH), current=state.leader_epoch)
        if not state.log_start_offset <= one.offset <= state.next_offset:
            raise OffsetOutOfRange(f"offset {one.offset} is outside {state.log_start_offset}..{state.next_offset}")
        end_offset = state.last_stable_offset if read_committed else state.next_offset
        max_bytes = min(one.max_bytes, budget)
        if one.offset >= end_offset or (max_bytes <= 0 and not is_first):
            return Fetched(state)
        held = self._tail.read(one.key, start_offset=one.offset, end_offset=end_offset, max_bytes=max_bytes)
        if held is not None:
            records, next_offset = b"".join(held[0]), held[1]
        else:
            records, next_offset = await self._read_rows(
                Range(one.key, one.offset, end_offset, max_bytes, state.leader_epoch)
            )
        # Kafka's rule: the response's first record comes whatever its size; others only where they fit.
        if not records:
            return Fetched(state)
        if len(records) > max_bytes and not is_first:
            return Fetched(state, is_cut=True)
        if not read_committed:
            return Fetched(state, records)
        aborted = await self._aborted.find(
            one.key,
            start_offset=one.offset,
            end_offset=next_offset,
            last_stable_offset=state.last_stable_offset,
        )
        return Fetched(state, records, aborted)

    async def _read_rows(self, wanted: Range) -> Piece:
        piece = await self._ahead.take(wanted)
        if piece is None:
            piece = await self._load(wanted)
        self._ahead.follow(wanted, piece)
        return piece

    async def _load(self, wanted: Range, on_rows: OnRows | None = None) -> Piece:
        key, start_offset, end_offset, max_bytes, leader_epoch = wanted
        row_bytes = self._row_bytes.get(key, FIRST_GUESS_ROW_BYTES)
        max_rows = max(MIN_ROWS, min(MAX_ROWS, max_bytes * 5 // (row_bytes * 4)))
        rows = await read_messages(
            self._database,
            key,
            start_offset=start_offset,
            end_offset=end_offset,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )
        if rows is None:
            return Piece(b"", start_offset)
        if on_rows is not None:
            on_rows(rows.next_offset)
        await asyncio.sleep(0)  # others get their turn between large pieces, and the next piece is asked for
        records = transcoder.implementation.encode_rows(rows, leader_epoch=leader_epoch)
        self._row_bytes[key] = max(1, len(records) // rows.count)
        return Piece(records, rows.next_offset)
