"""Those who would ask the database for the same at once: one asks, the others find its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

__all__ = ["Turns"]


class Turns:
    """One at a time for each thing. Whoever's turn it is looks again at what is known before asking."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}

    @asynccontextmanager
    async def of(self, what: Hashable) -> AsyncIterator[None]:
        lock = self._locks.setdefault(what, asyncio.Lock())
        async with lock:
            try:
                yield
            finally:
                # Who waits holds on to the lock, who comes now gets a new one: what is known by then is fresh.
                self._locks.pop(what, None)
