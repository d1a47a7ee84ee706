"""What monitoring wants to know: where partitions end, how far groups are behind, whether this gateway can work.

Read from the database when asked, for the whole cluster, in bounded queries and not more often than it changes much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from gateway.broker.cluster import Cluster
from gateway.clock import monotonic_seconds
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS

__all__ = ["GroupLag", "Overview", "PartitionEnds", "Snapshot"]

log = structlog.get_logger()

FRESH_SECONDS = 3.0
MAX_ROWS = 50_000
ANSWER_SECONDS = 3.0


class PartitionEnds(NamedTuple):
    topic: str
    partition: int
    log_start_offset: int
    next_offset: int


class GroupLag(NamedTuple):
    group: str
    topic: str
    partition: int
    committed_offset: int
    lag: int


class WorkerGroup(NamedTuple):
    """The workers of a group on a topic."""

    group: str
    topic: str
    in_flight: int
    waiting: int
    dead_letters: int


class DeliveryTotals(NamedTuple):
    retried: int = 0
    timed_out: int = 0
    dead_lettered: int = 0
    redriven: int = 0


class Snapshot(NamedTuple):
    partitions: list[PartitionEnds]
    lags: list[GroupLag]
    members: dict[str, int]
    workers: Sequence[WorkerGroup] = ()
    deliveries: DeliveryTotals = DeliveryTotals()


class Overview:
    """The cluster as people watch it."""

    def __init__(self, database: Database, cluster: Cluster, *, schema_version: str) -> None:
        self._database = database
        self._cluster = cluster
        self._schema_version = schema_version
        self._is_draining = False
        self._loading = asyncio.Lock()
        self._kept: tuple[Snapshot, float] | None = None

    def drain(self) -> None:
        """From now on the gateway is not ready for anybody."""
        self._is_draining = True

    async def load(self) -> Snapshot:
        """Partitions, lags and members; what was read a moment ago is good enough, and who asks meanwhile waits."""
        async with self._loading:
            if self._kept is None or monotonic_seconds() - self._kept[1] > FRESH_SECONDS:
                self._kept = (await self._load(), monotonic_seconds())
            return self._kept[0]

    async def _load(self) -> Snapshot:
        partitions = await self._database.rows("overview/load_partitions", limit=MAX_ROWS)
        lags = await self._database.rows("overview/load_lag", limit=MAX_ROWS)
        members = await self._database.rows("overview/count_members", limit=MAX_ROWS)
        workers = await self._database.rows("overview/load_deliveries", limit=MAX_ROWS)
        (totals,) = await self._database.rows("overview/load_delivery_totals")
        if MAX_ROWS in (len(partitions), len(lags), len(members), len(workers)):
            log.warning("there is more than metrics can show", max_rows=MAX_ROWS)
        return Snapshot(
            [PartitionEnds(*row) for row in partitions],
            [GroupLag(*row) for row in lags],
            dict(members),
            [WorkerGroup(*row) for row in workers],
            DeliveryTotals(*totals),
        )

    async def why_not_ready(self) -> str | None:
        """What keeps this gateway from serving, in one sentence; None when nothing does."""
        if self._is_draining:
            return "The gateway is stopping."
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                ((is_writable, version),) = await self._database.rows("overview/check_database")
        except DATABASE_ERRORS as error:
            return f"The database does not answer: {(str(error).splitlines() or ['it took too long'])[0]}."
        if not is_writable:
            return "The database is read-only."
        if version != self._schema_version:
            return f"The database's schema is at {version}, this version needs {self._schema_version}."
        if not self._cluster.is_member:
            return "The gateway has not told the others yet that it lives."
        return None
