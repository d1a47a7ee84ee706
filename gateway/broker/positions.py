"""What this gateway knows of where partitions start and end, and who waits for them to move.

Own commits are told at once. Other gateways' commits are found by one query for all waiting partitions,
which runs only while somebody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from gateway.clock import monotonic_seconds
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS
from gateway.storage.keys import PartitionKey
from gateway.storage.log import PartitionState, load_partitions
from gateway.tasks import end_task

__all__ = ["Positions"]

log = structlog.get_logger()

FRESH_SECONDS = 1.0
"""For how long a state is believed without asking again: another gateway may delete a topic or records."""


class Positions:
    """Known states of partitions, and long polls that wait for them to change."""

    def __init__(self, database: Database, *, poll_interval_ms: int) -> None:
        self._database = database
        self._poll_seconds = poll_interval_ms / 1000
        self._known: dict[PartitionKey, tuple[PartitionState, float]] = {}
        self._waiting: dict[PartitionKey, set[asyncio.Event]] = {}
        self._somebody_waits = asyncio.Event()
        self._is_closing = False
        self._poller: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._poller = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        await end_task(self._poller)

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def release(self) -> None:
        """The gateway drains: nobody waits any longer."""
        self._is_closing = True
        for key in self._waiting:
            self._wake(key)

    def known(self, key: PartitionKey) -> PartitionState | None:
        """The state last heard of, if it is fresh enough to be believed."""
        entry = self._known.get(key)
        return entry[0] if entry is not None and monotonic_seconds() - entry[1] < FRESH_SECONDS else None

    async def load(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """Ask the database. A partition that does not exist is left out."""
        states = await load_partitions(self._database, keys)
        asked_at = monotonic_seconds()
        for key in keys:
            if key in states:
                self._learn(key, states[key], asked_at)
            else:
                self._known.pop(key, None)
                self._wake(key)
        return {key: self._known[key][0] for key in states}

    def moved(self, key: PartitionKey, *, next_offset: int, last_stable_offset: int) -> None:
        """A commit of this gateway moved the end. It says nothing new of the log's start, so no freshness either."""
        entry = self._known.get(key)
        if entry is not None:
            state, asked_at = entry
            self._learn(key, state._replace(next_offset=next_offset, last_stable_offset=last_stable_offset), asked_at)
        else:
            self._wake(key)

    def clear(self) -> None:
        """What was heard of may not be true any more: ends may have gone back. Whoever waits asks anew."""
        self._known.clear()
        for key in self._waiting:
            self._wake(key)

    @contextmanager
    def watching(self, keys: Iterable[PartitionKey]) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of the partitions moves, from now on."""
        event = asyncio.Event()
        watched = set(keys)
        for key in watched:
            self._waiting.setdefault(key, set()).add(event)
        self._somebody_waits.set()
        try:
            yield event
        finally:
            for key in watched:
                events = self._waiting[key]
                events.discard(event)
                if not events:
                    del self._waiting[key]

    def _learn(self, key: PartitionKey, state: PartitionState, asked_at: float) -> None:
        old = self._known.get(key)
        if old is not None:  # answers may overtake each other; ends only grow
            state = PartitionState(*map(max, state, old[0]))
            asked_at = max(asked_at, old[1])
        self._known[key] = (state, asked_at)
        if old is None or old[0] != state:
            self._wake(key)

    def _wake(self, key: PartitionKey) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

    async def _poll(self) -> None:
        while True:
            await self._somebody_waits.wait()
            await asyncio.sleep(self._poll_seconds)
            keys = list(self._waiting)
            if not keys:
                self._somebody_waits.clear()
                continue
            try:
                await self.load(keys)
            except DATABASE_ERRORS as error:
                log.warning("cannot look for new records", error=str(error))
                await asyncio.sleep(1)
