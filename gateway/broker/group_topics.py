"""The topics as consumer groups see them: a snapshot of the catalog that is renewed now and then."""

from __future__ import annotations

import asyncio

from gateway.broker.catalog import Catalog
from gateway.clock import monotonic_seconds
from gateway.domain.groups.subscriptions import KnownTopic, Topics

__all__ = ["GroupTopics"]

FRESH_SECONDS = 2.0
"""How soon a group notices a topic that came, grew or went, through whichever gateway."""


class GroupTopics:
    """One snapshot for all groups; its version grows when something has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._topics = Topics({}, version=0)
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def current(self, *, is_fresh: bool) -> Topics:
        """The topics: as of now, or as of a moment ago."""
        asked_at = monotonic_seconds()
        oldest = asked_at if is_fresh else asked_at - FRESH_SECONDS
        while self._read_at < oldest:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return self._topics

    async def _read(self) -> None:
        began_at = monotonic_seconds()
        by_name = {
            topic.name: KnownTopic(topic.uuid, topic.partition_count) for topic in await self._catalog.list_all()
        }
        if by_name != self._topics.by_name:
            self._topics = Topics(by_name, self._topics.version + 1)
        self._read_at = began_at
