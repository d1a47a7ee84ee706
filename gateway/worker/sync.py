"""Workers on a blocking psycopg connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import tuple_row

from gateway.storage.statements import statement
from gateway.worker.errors import ConnectionLost, WorkerError, translate
from gateway.worker.model import Begun, Delivery, NewRecord, Work
from gateway.worker.script import Ask, Call, InTransaction, Pause, Row, Script, Scripts, unique_name

__all__ = ["Handler", "Worker", "run_worker"]

T = TypeVar("T")
Connection = psycopg.Connection[Any]
Handler = Callable[[Work[Connection]], object]

RECONNECT_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Worker:
    """Reads a topic for a group through the caller's own connection, which must be idle and is not shared.

    `work` and `run` let a handler write through that connection: its writes, the mark of the record's key, the records
    it produces and the group's offset become true in one commit. `begin`, `ack` and `nack` are for effects outside
    PostgreSQL, which no commit can include.
    """

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
        # What is read after a lock was waited for must be what its holder left.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        self.connection = connection
        self._handler: Handler | None = None
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

    def take(self, max_records: int = 1, *, wait_s: float = 0.0, idle_s: float = 0.05) -> list[Delivery]:
        """Records for this worker: some that were never tried, or one that was. Empty after `wait_s` without any."""
        deadline = time.monotonic() + wait_s
        while not (taken := self._drive(self._scripts.take(max_records))) and time.monotonic() < deadline:
            time.sleep(idle_s)
        return taken

    def work(self, deliveries: Sequence[Delivery], handler: Handler, *, take_next: int = 0) -> list[Delivery]:
        """Let the handler work on deliveries, all in one transaction. What it raises fails the record (`Reject`: for
        good). Returns up to `take_next` new deliveries, taken in the same commit."""
        self._handler = handler
        return self._drive(self._scripts.work(deliveries, take_next=take_next))

    def run(
        self,
        handler: Handler,
        *,
        batch: int = 1,
        must_stop: Callable[[], bool] = lambda: False,
        idle_s: float = 0.2,
        until_idle: bool = False,
    ) -> None:
        """Take and work, `batch` records to a commit, until `must_stop` says so."""
        self._handler = handler
        self._drive(self._scripts.run(batch=batch, must_stop=must_stop, idle_seconds=idle_s, until_idle=until_idle))

    def begin(self, delivery: Delivery) -> Begun:
        """Before an effect outside PostgreSQL: begin the record's key, in a commit of its own. Anything but STARTED
        means that there is nothing to do."""
        return self._drive(self._scripts.begin(delivery))

    def ack(self, delivery: Delivery, *, result: str | None = None, produced: Sequence[NewRecord] = ()) -> None:
        """The effect happened. DeliveryLost: it took too long, and somebody else may have done it too."""
        self._drive(self._scripts.ack(delivery, result=result, produced=produced))

    def nack(self, delivery: Delivery, reason: str, *, retryable: bool = True) -> None:
        """The effect failed: the record is delivered again later, or becomes a dead letter."""
        self._drive(self._scripts.nack(delivery, reason, is_retryable=retryable))

    def extend(self, delivery: Delivery) -> None:
        """Take as much time again as the ack timeout. DeliveryLost if it is too late."""
        self._drive(self._scripts.extend(delivery))

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries that were not worked on: they go to the next worker, and do not count as attempts."""
        self._drive(self._scripts.give_back(deliveries))

    # --- carrying out -------------------------------------------------------------------------

    def _drive(self, script: Script[T]) -> T:
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
                        value = self._ask(command)
                    case Call(work):
                        work.connection = self.connection
                        assert self._handler is not None
                        self._handler(work)
                    case Pause(seconds):
                        time.sleep(seconds)
                    case InTransaction(nested):
                        with self.connection.transaction():
                            value = self._drive(nested)
            except Exception as raised:  # noqa: BLE001 - the script decides
                error = translate(raised, is_broken=self.connection.closed)

    def _ask(self, ask: Ask) -> list[Row]:
        with self.connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            cursor.execute(statement(ask.name), ask.parameters)
            return cursor.fetchall() if cursor.description else []


def run_worker(
    connect: Callable[[], Connection],
    topic: str,
    group_id: str,
    handler: Handler,
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
            with connect() as connection:
                worker = Worker(
                    connection, topic, group_id, name=own_name, from_latest=from_latest, uses_keys=uses_keys
                )
                worker.take(0)
                failures = 0
                worker.run(handler, batch=batch, must_stop=must_stop, idle_s=idle_s, until_idle=until_idle)
                return
        except (ConnectionLost, psycopg.OperationalError):
            time.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])
            failures += 1
