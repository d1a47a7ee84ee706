"""What must be done now and then, in small steps, by whichever gateway comes first."""

from __future__ import annotations

import asyncio

import structlog

from gateway.clock import monotonic_seconds
from gateway.storage.database import Database, Transaction
from gateway.storage.failures import DATABASE_ERRORS
from gateway.storage.idempotency import count_unsettled
from gateway.storage.locks import HOUSEKEEPING
from gateway.tasks import end_task
from gateway.telemetry import metrics

__all__ = ["Housekeeping"]

log = structlog.get_logger()

INTERVAL_SECONDS = 5.0
DELETE_STEP_ROWS = 5_000
STEP_PRODUCERS = 1_000
DROP_STEP_TRANSACTIONS = 1_000
DROP_STEP_KEYS = 2_000
PAUSE_SECONDS = 0.01
"""Between small steps: clients come first."""


class Housekeeping:
    """Drops tables of deleted topics, rows below a log's start, and whatever is too old: transactional ids, producers,
    offsets, keys."""

    def __init__(
        self,
        database: Database,
        *,
        transactional_id_expiry_ms: int,
        producer_expiry_ms: int,
        producers_per_partition: int,
        offsets_retention_minutes: int,
        offsets_check_interval_ms: int,
    ) -> None:
        self._database = database
        self._transactional_id_expiry_ms = transactional_id_expiry_ms
        self._producer_expiry_ms = producer_expiry_ms
        self._producers_per_partition = producers_per_partition
        self._offsets_retention_minutes = offsets_retention_minutes
        self._offsets_check_interval_ms = offsets_check_interval_ms
        self._offsets_checked_at = monotonic_seconds()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        await end_task(self._task)

    def wake(self) -> None:
        """There is something to do: do not wait for the next round."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                await self.run_once()
            except DATABASE_ERRORS as error:
                log.warning("housekeeping is put off", error=str(error))
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def run_once(self) -> None:
        for (topic_id,) in await self._database.rows("housekeeping/find_orphaned_storage"):
            ((is_dropped,),) = await self._database.rows("housekeeping/drop_storage", topic_id=topic_id)
            log.info("storage of a deleted topic", topic_id=topic_id, dropped=is_dropped)
        for topic_id, partition, _, _ in await self._database.rows("housekeeping/find_deletable"):
            await self._delete_rows(topic_id, partition)
        await self._in_steps(
            "housekeeping/drop_expired_transactions",
            step=DROP_STEP_TRANSACTIONS,
            expiry_ms=self._transactional_id_expiry_ms,
        )
        await self._keep_producers()
        await self._keep_keys()
        if monotonic_seconds() - self._offsets_checked_at >= self._offsets_check_interval_ms / 1000:
            self._offsets_checked_at = monotonic_seconds()
            await self._expire_offsets()

    async def _delete_rows(self, topic_id: int, partition: int) -> None:
        while rows := await self._database.rows(
            "housekeeping/delete_messages", topic_id=topic_id, partition=partition, step=DELETE_STEP_ROWS
        ):
            deleted_before, log_start = rows[0]
            if deleted_before >= log_start:
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _expire_offsets(self) -> None:
        async with self._database.transaction() as transaction:
            if not await self._is_ours(transaction):
                return
            ((offsets,),) = await transaction.rows(
                "housekeeping/expire_offsets", retention_minutes=self._offsets_retention_minutes
            )
            ((groups,),) = await transaction.rows(
                "housekeeping/drop_empty_groups", idle_ms=self._offsets_check_interval_ms
            )
        if offsets or groups:
            log.info("offsets expired", offsets=offsets, groups=groups)

    async def _keep_producers(self) -> None:
        ((active,),) = await self._database.rows("housekeeping/count_producers")
        metrics.ACTIVE_PRODUCERS.set(active)
        while True:
            if await self._drop_idle_sequences() < STEP_PRODUCERS:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        await self._in_steps("housekeeping/touch_producers", step=STEP_PRODUCERS)
        for statement in ("housekeeping/drop_deleted_names", "housekeeping/drop_idle_producers"):
            await self._in_steps(statement, step=STEP_PRODUCERS, expiry_ms=self._producer_expiry_ms)

    async def _keep_keys(self) -> None:
        in_flight, failing = await count_unsettled(self._database)
        metrics.IDEMPOTENCY_KEYS_IN_FLIGHT.set(in_flight)
        metrics.IDEMPOTENCY_KEYS_FAILING.set(failing)
        for statement in ("housekeeping/drop_expired_keys", "housekeeping/drop_orphaned_keys"):
            await self._in_steps(statement, step=DROP_STEP_KEYS)

    async def _in_steps(self, statement: str, *, step: int, **parameters: int) -> None:
        """One small step after the other while there is more, each in a transaction of its own."""
        while True:
            if await self._step(statement, step=step, **parameters) < step:
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _step(self, statement: str, *, step: int, **parameters: int) -> int:
        """By one gateway at a time; returns how many rows went or changed."""
        async with self._database.transaction() as transaction:
            if not await self._is_ours(transaction):
                return 0
            ((count,),) = await transaction.rows(statement, step=step, **parameters)
        return int(count)

    async def _drop_idle_sequences(self) -> int:
        """One small step, by one gateway at a time; returns how many states were looked at."""
        async with self._database.transaction() as transaction:
            if not await self._is_ours(transaction):
                return 0  # who keeps house looks through them
            idle = await transaction.rows(
                "housekeeping/find_idle_sequences",
                expiry_ms=self._producer_expiry_ms,
                limit=self._producers_per_partition,
                step=STEP_PRODUCERS,
            )
        for topic_id, partition, producer_ids, updated_at in idle:
            # A partition at a time: its writers wait for this transaction, and it for none of theirs but the one.
            async with self._database.transaction() as transaction:
                if not await self._is_ours(transaction):
                    return 0
                await transaction.rows("housekeeping/mark_dropped", topic_id=topic_id, partition=partition)
                await transaction.rows(
                    "housekeeping/drop_sequences",
                    topic_id=topic_id,
                    partition=partition,
                    producer_ids=producer_ids,
                    updated_at=updated_at,
                )
        return sum(len(producer_ids) for _, _, producer_ids, _ in idle)

    async def _is_ours(self, transaction: Transaction) -> bool:
        """Whether this gateway keeps house until the transaction ends."""
        ((is_ours,),) = await transaction.rows("housekeeping/try_lock", **HOUSEKEEPING._asdict())
        return bool(is_ours)
