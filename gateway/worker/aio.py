"""Workers on an asyncio psycopg connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import tuple_row

from gateway.storage.statements import statement
from gateway.worker.errors import ConnectionLost, WorkerError, translate
from gateway.worker.model import Begun, Delivery, NewRecord, Work
from gateway.worker.script import Ask, Call, InTransaction, Pause, Row, Script, Scripts, unique_name

__all__ = ["AsyncHandler", "AsyncWorker", "run_async_worker"]

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]
AsyncHandler = Callable[[Work[Connection]], Awaitable[object]]

RECONNECT_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class AsyncWorker:
    """`Worker` for asyncio: the same methods, each awaited."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        group_id: str,
        *,
        name: str | None = None,
        from_latest: bool = False,
        uses_keys: bool = True,
    ) -> None:
        """`name`: for people; it must not be another live worker's. `from_latest`: where a group that is new to the
        topic begins. `uses_keys`: whether idempotency keys of records are begun and marked."""
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise WorkerError("the connection has a transaction open")
        self.connection = connection
        self._is_prepared = False
        self._handler: AsyncHandler | None = None
        self._scripts = Scripts(
            topic=topic,
            group_id=group_id,
            name=name or unique_name(),
            from_latest=from_latest,
            uses_keys=uses_keys,
        )

    @property
    def name(self) -> str:
        return self._scripts.name

    async def take(self, max_records: int = 1, *, wait_s: float = 0.0, idle_s: float = 0.05) -> list[Delivery]:
        """Records for this worker: some that were never tried, or one that was. Empty after `wait_s` without any."""
        deadline = time.monotonic() + wait_s
        while True:
            taken = await self._drive(self._scripts.take(max_records))
            if taken or time.monotonic() >= deadline:
                return taken
            await asyncio.sleep(idle_s)

    async def work(
        self, deliveries: Sequence[Delivery], handler: AsyncHandler, *, take_next: int = 0
    ) -> list[Delivery]:
        """Let the handler work on deliveries, all in one transaction. What it raises fails the record (`Reject`: for
        good). Returns up to `take_next` new deliveries, taken in the same commit."""
        self._handler = handler
        return await self._drive(self._scripts.work(deliveries, take_next=take_next))

    async def run(
        self,
        handler: AsyncHandler,
        *,
        batch: int = 1,
        must_stop: Callable[[], bool] = lambda: False,
        idle_s: float = 0.2,
        until_idle: bool = False,
    ) -> None:
        """Take and work, `batch` records to a commit, until `must_stop` says so."""
        self._handler = handler
        await self._drive(
            self._scripts.run(batch=batch, must_stop=must_stop, idle_seconds=idle_s, until_idle=until_idle)
        )

    async def begin(self, delivery: Delivery) -> Begun:
        """Before an effect outside PostgreSQL: begin the record's key, in a commit of its own. Anything but STARTED
        means that there is nothing to do."""
        return await self._drive(self._scripts.begin(delivery))

    async def ack(self, delivery: Delivery, *, result: str | None = None, produced: Sequence[NewRecord] = ()) -> None:
        """The effect happened. DeliveryLost: it took too long, and somebody else may have done it too."""
        await self._drive(self._scripts.ack(delivery, result=result, produced=produced))

    async def nack(self, delivery: Delivery, reason: str, *, retryable: bool = True) -> None:
        """The effect failed: the record is delivered again later, or becomes a dead letter."""
        await self._drive(self._scripts.nack(delivery, reason, is_retryable=retryable))

    async def extend(self, delivery: Delivery) -> None:
        """Take as much time again as the ack timeout. DeliveryLost if it is too late."""
        await self._drive(self._scripts.extend(delivery))

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries that were not worked on: they go to the next worker, and do not count as attempts."""
        await self._drive(self._scripts.give_back(deliveries))

    # --- carrying out -------------------------------------------------------------------------

    async def _drive(self, script: Script[T]) -> T:
        value: object = None
        error: Exception | None = None
        while True:
            try:
                command = script.send(value) if error is None else script.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            value, error = None, None
            try:
                match command:
                    case Ask():
                        value = await self._ask(command)
                    case Call(work):
                        work.connection = self.connection
                        assert self._handler is not None
                        await self._handler(work)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case InTransaction(nested):
                        await self._prepare()
                        async with self.connection.transaction():
                            value = await self._drive(nested)
            except Exception as raised:  # noqa: BLE001 - the script decides
                error = translate(raised, is_broken=self.connection.closed)

    async def _prepare(self) -> None:
        if not self._is_prepared:
            # What is read after a lock was waited for must be what its holder left.
            await self.connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            self._is_prepared = True

    async def _ask(self, ask: Ask) -> list[Row]:
        async with self.connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            await cursor.execute(statement(ask.name), ask.parameters)
            return await cursor.fetchall() if cursor.description else []


async def run_async_worker(
    connect: Callable[[], Awaitable[Connection]],
    topic: str,
    group_id: str,
    handler: AsyncHandler,
    *,
    batch: int = 1,
    name: str | None = None,
    from_latest: bool = False,
    uses_keys: bool = True,
    must_stop: Callable[[], bool] = lambda: False,
    idle_s: float = 0.2,
    until_idle: bool = False,
) -> None:
    """Run a worker for as long as it takes: whenever its connection breaks, it gets a new one from `connect`."""
    own_name = name or unique_name()
    failures = 0
    while not must_stop():
        try:
            async with await connect() as connection:
                worker = AsyncWorker(
                    connection, topic, group_id, name=own_name, from_latest=from_latest, uses_keys=uses_keys
                )
                await worker.take(0)
                failures = 0
                await worker.run(handler, batch=batch, must_stop=must_stop, idle_s=idle_s, until_idle=until_idle)
                return
        except (ConnectionLost, psycopg.OperationalError):
            await asyncio.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])
            failures += 1
