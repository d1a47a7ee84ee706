"""Transactions: begun, extended and ended, each step one database transaction under the transaction's row lock.

EndTxn makes markers, aborted ranges, last stable offsets, consumer offsets, state and epoch true at one instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence

import structlog

from gateway import failpoints
from gateway.clock import monotonic_seconds
from gateway.domain.connections import NewestConnections, RequestKind, Spoken, StaleConnection
from gateway.domain.producers import Producer
from gateway.domain.transactions import (
    AlreadyEnded,
    Create,
    Ending,
    KeepEpoch,
    Rotate,
    Transaction,
    decide_add,
    decide_end,
    decide_fence,
    decide_init,
)
from gateway.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    NotCoordinator,
    PolicyViolation,
)
from gateway.protocol.row_batches import RowRange, encode_rows
from gateway.storage import transactions as storage
from gateway.storage.database import Database
from gateway.storage.database import Transaction as DatabaseTransaction
from gateway.storage.failures import DATABASE_ERRORS, HELD_ERRORS, until_undisturbed
from gateway.storage.groups import hold_claim
from gateway.storage.keys import PartitionKey
from gateway.storage.transactions import Marked, PendingOffset
from gateway.tasks import end_task
from gateway.telemetry import metrics

__all__ = ["Transactions", "control_batch"]

log = structlog.get_logger()

SPEAKERS_READ_AT_START = 10_000
EXPECT_SECONDS = 1.0
SWEEP_SECONDS = 1.0
SWEEP_STEP = 100
SWEEP_WAIT_MS = 500
MAX_REMEMBERED = 100_000
COMMIT_KEY, ABORT_KEY, MARKER_VALUE = b"\0\0\0\1", b"\0\0\0\0", bytes(6)


class _Every(Container[PartitionKey]):
    """All partitions there are."""

    def __contains__(self, key: object) -> bool:
        return True


EVERY = _Every()
NONE: frozenset[PartitionKey] = frozenset()


class Transactions:
    """The transactional side of producers. Every gateway may serve every transactional id."""

    def __init__(
        self,
        database: Database,
        *,
        max_timeout_ms: int,
        max_open_per_client: int,
        on_marked: Callable[[Marked, bytes], None],
        connections: NewestConnections,
    ) -> None:
        self._database = database
        self._max_timeout_ms = max_timeout_ms
        self._max_open_per_client = max_open_per_client
        self._on_marked = on_marked
        self._connections = connections
        self._added: dict[tuple[str, Producer], set[PartitionKey]] = {}
        self._names: dict[int, str] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Before the first connection is accepted: all of them are newer than what is read now."""
        for spoken in await storage.list_speakers(self._database, limit=SPEAKERS_READ_AT_START):
            self._connections.read(spoken)
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        await end_task(self._sweeper)

    async def expect(self, transactional_ids: Sequence[str]) -> None:
        """Clients were told to come here with these ids: the connections they open now are listened to at once.

        Without it, a client that comes from another gateway has its first connection closed, which is safe but costs it
        the pause it makes before it connects again: up to ten seconds in librdkafka after a gateway was killed.
        """
        try:
            async with asyncio.timeout(EXPECT_SECONDS):
                for spoken in await storage.find_speakers(self._database, transactional_ids):
                    self._connections.read(spoken)
        except DATABASE_ERRORS as error:
            log.info("the connections of producers that move here may be closed once", error=str(error))

    # --- InitProducerId -----------------------------------------------------------------------

    async def init(self, transactional_id: str, asked: Producer, *, timeout_ms: int, client_id: str | None) -> Producer:
        """The id and epoch of this instance: what is open is aborted, older instances are fenced."""
        _require_name(transactional_id)
        return await until_undisturbed(
            lambda: self._init(transactional_id, asked, timeout_ms=timeout_ms, client_id=client_id)
        )

    async def _init(
        self, transactional_id: str, asked: Producer, *, timeout_ms: int, client_id: str | None
    ) -> Producer:
        marked: list[Marked] = []
        is_open = False
        async with self._database.transaction() as source:
            transaction = await storage.lock(source, transactional_id)
            decision = decide_init(transaction, asked, timeout_ms=timeout_ms, max_timeout_ms=self._max_timeout_ms)
            if transaction is None or isinstance(decision, Create):
                producer = await storage.create(source, transactional_id, timeout_ms=timeout_ms, client_id=client_id)
                if producer is None:
                    raise ConcurrentTransactions("another instance began with this transactional id at the same time")
            elif isinstance(decision, KeepEpoch):
                producer = transaction.producer
            else:
                is_open = transaction.is_open
                if is_open:
                    ending = decide_fence(transaction)
                    marked = await self._end(source, transaction, ending, commit=False, cause="init")
                if isinstance(decision, Rotate):
                    producer = await storage.rotate(
                        source,
                        transactional_id,
                        old_producer_id=transaction.producer.id,
                        previous_epoch=decision.previous_epoch,
                    )
                else:
                    producer = Producer(transaction.producer.id, decision.epoch)
                await storage.raise_epoch(
                    source,
                    transactional_id,
                    epoch=producer.epoch,
                    previous_epoch=decision.previous_epoch,
                    timeout_ms=timeout_ms,
                    client_id=client_id,
                )
        if transaction is not None and is_open:
            self._tell(transaction, marked, commit=False)
        return producer

    # --- within a transaction -----------------------------------------------------------------

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        keys: Sequence[PartitionKey],
        *,
        client_id: str | None,
        classic_connection: int | None = None,
    ) -> None:
        """These partitions are part of the producer's transaction, which begins with them if none is open.

        `classic_connection`: over which it came, from a client that keeps its epoch; StaleConnection if too late.
        """
        _require_name(transactional_id)
        speaker = None if classic_connection is None else self._connections.speaker(classic_connection)
        # What `decide_add` nearly always says, without reading first; where it might not, nothing is done.
        if await storage.join(self._database, transactional_id, producer, keys, speaker=speaker) or await storage.begin(
            self._database,
            transactional_id,
            producer,
            keys,
            client_id=client_id,
            max_open_per_client=self._max_open_per_client,
            speaker=speaker,
        ):
            return
        async with self._database.transaction() as source:
            await self._require_open(source, transactional_id, producer, client_id, classic_connection, keys)

    async def find_partitions(self, transactional_id: str, producer: Producer) -> frozenset[PartitionKey]:
        """The partitions that are in the producer's open transaction; none if it has none open."""
        async with self._database.transaction() as source:
            transaction = await storage.lock(source, transactional_id)
            if decide_add(transaction, producer) is not None:
                return frozenset()
            return (await storage.load_for_append(source, [producer.id]))[producer.id].partitions

    async def add_implicitly(
        self,
        transactional_id: str,
        producer: Producer,
        key: PartitionKey,
        find_others: Callable[[], Iterable[PartitionKey]],
        *,
        client_id: str | None,
    ) -> None:
        """The same for a client that just produces (KIP-890). Its epoch stands for one transaction only, so what
        was added in it once need not be asked again; the append itself proves it.

        `find_others`: what else the same request writes to, to be added with it.
        """
        added = self._added.get((transactional_id, producer), set())
        if key in added:
            return
        new = list({key, *find_others()} - added)
        await self.add_partitions(transactional_id, producer, new, client_id=client_id)
        if len(self._added) > MAX_REMEMBERED:
            self._added.clear()
        self._added.setdefault((transactional_id, producer), set()).update(new)

    def find_joined(
        self, transactional_id: str, producer_id: int, epoch: int, *, adds_by_producing: bool, connection: int
    ) -> Container[PartitionKey]:
        """Where the producer may append without anything being asked first: what `add_implicitly` or, for clients that
        add partitions by themselves, `hear` and `require_name` let pass at once. The append itself proves it. A client
        that adds them by itself is heard over this connection by asking."""
        if adds_by_producing:
            return self._added.get((transactional_id, Producer(producer_id, epoch)), NONE)
        if self._names.get(producer_id) != transactional_id:
            return NONE
        try:
            self._connections.hear(RequestKind.PRODUCE, producer_id=producer_id, connection=connection)
        except StaleConnection:
            return NONE  # the long way tells it so
        return EVERY

    async def require_name(self, transactional_id: str, producer_id: int) -> None:
        """Refuse a producer that writes under a transactional id which is not its own."""
        known = self._names.get(producer_id)
        if known is None:
            known = await storage.find_name(self._database, producer_id)
            if known is not None:
                # A producer id never gets another transactional id, so this stays true for as long as it is used.
                if len(self._names) > MAX_REMEMBERED:
                    self._names.clear()
                self._names[producer_id] = known
        if known != transactional_id:
            raise InvalidProducerIdMapping("the transactional id has another producer id")

    async def add_group(
        self, transactional_id: str, producer: Producer, *, client_id: str | None, classic_connection: int | None
    ) -> None:
        """Offsets of a group will be part of the producer's transaction."""
        _require_name(transactional_id)
        async with self._database.transaction() as source:
            await self._require_open(source, transactional_id, producer, client_id, classic_connection)

    async def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group_id: str,
        offsets: Sequence[PendingOffset],
        *,
        may_begin: bool,
        client_id: str | None,
        claim_epoch: int,
    ) -> None:
        """Offsets that become true with the producer's transaction.

        `may_begin`: they may be the first thing in it. `claim_epoch`: what the group's member was judged by; nothing
        is written when another gateway has become the group's coordinator meanwhile.
        """
        _require_name(transactional_id)
        async with self._database.transaction() as source:
            if may_begin:
                await self._require_open(source, transactional_id, producer, client_id)
            elif decide_add(await storage.lock(source, transactional_id), producer) is not None:
                raise InvalidTxnState("the producer has no open transaction that the group was added to")
            if not await hold_claim(source, group_id, epoch=claim_epoch):
                raise NotCoordinator("another gateway coordinates this group")
            await storage.add_offsets(source, producer.id, group_id, offsets)

    async def _require_open(
        self,
        source: DatabaseTransaction,
        transactional_id: str,
        producer: Producer,
        client_id: str | None,
        classic_connection: int | None = None,
        keys: Sequence[PartitionKey] = (),
    ) -> None:
        """The producer's transaction is open, with these partitions in it."""
        transaction = await storage.lock(source, transactional_id)
        decision = decide_add(transaction, producer)
        await self._listen(source, transactional_id, transaction, classic_connection)
        if decision is None:
            if keys:
                await storage.join(source, transactional_id, producer, keys)
        elif not await storage.begin(
            source,
            transactional_id,
            producer,
            keys,
            client_id=client_id,
            max_open_per_client=self._max_open_per_client,
        ):
            raise PolicyViolation(
                f"client {client_id} has {self._max_open_per_client} open transactions"
                " (max.open.transactions.per.client); end some first"
            )

    async def _listen(
        self,
        source: DatabaseTransaction,
        transactional_id: str,
        transaction: Transaction | None,
        classic_connection: int | None,
    ) -> None:
        """Refuse what a classic client said over a connection that it has given up since."""
        if transaction is None or classic_connection is None:
            return
        spoken = Spoken(transaction.producer.id, transaction.speaker, transaction.updated_at_us)
        speaker = self._connections.decide_speaker(spoken, connection=classic_connection)
        if speaker != transaction.speaker:
            await storage.change_speaker(source, transactional_id, speaker)

    # --- the end ------------------------------------------------------------------------------

    async def end(
        self,
        transactional_id: str,
        producer: Producer,
        *,
        commit: bool,
        bump_epoch: bool,
        classic_connection: int | None = None,
    ) -> Producer:
        """Commit or abort; returns what the producer goes on with. A retry is answered as the first try."""
        _require_name(transactional_id)
        begun_at = monotonic_seconds()
        failpoints.reach(failpoints.END_BEFORE)
        self._added.pop((transactional_id, producer), None)
        ended = await until_undisturbed(
            lambda: self._try_to_end(
                transactional_id, producer, commit=commit, bump_epoch=bump_epoch, classic_connection=classic_connection
            )
        )
        metrics.TRANSACTION_END_SECONDS.observe(monotonic_seconds() - begun_at)
        return ended

    async def _try_to_end(
        self,
        transactional_id: str,
        producer: Producer,
        *,
        commit: bool,
        bump_epoch: bool,
        classic_connection: int | None,
    ) -> Producer:
        async with self._database.transaction() as source:
            transaction = await storage.lock(source, transactional_id)
            decision = decide_end(transaction, producer, commit=commit, bump_epoch=bump_epoch)
            assert transaction is not None
            await self._listen(source, transactional_id, transaction, classic_connection)
            if isinstance(decision, AlreadyEnded):
                return transaction.producer
            marked = await self._end(source, transaction, decision, commit=commit, cause="client")
            if decision.rotates:
                producer = await storage.rotate(
                    source, transactional_id, old_producer_id=producer.id, previous_epoch=producer.epoch
                )
            else:
                producer = Producer(producer.id, decision.next_epoch)
            failpoints.reach(failpoints.END_WRITTEN)
        failpoints.reach(failpoints.END_COMMITTED)
        self._tell(transaction, marked, commit=commit)
        return producer

    async def abort_partition_of(self, producer: Producer, key: PartitionKey) -> None:
        """An operator's abort (WriteTxnMarkers): the whole transaction that holds the partition goes."""
        async with self._database.transaction() as source:
            transaction = await storage.lock_by_producer(source, producer.id)
            if transaction is None or not transaction.is_open:
                raise InvalidTxnState("the producer has no open transaction")
            if transaction.producer.epoch != producer.epoch:
                raise InvalidProducerEpoch(current=transaction.producer.epoch, received=producer.epoch)
            held = (await storage.load_for_append(source, [producer.id]))[producer.id].partitions
            if key not in held:
                raise InvalidTxnState("the partition is not in the producer's transaction")
            marked = await self._end(source, transaction, decide_fence(transaction), commit=False, cause="operator")
        self._tell(transaction, marked, commit=False)

    async def _end(
        self, source: DatabaseTransaction, transaction: Transaction, ending: Ending, *, commit: bool, cause: str
    ) -> list[Marked]:
        return await storage.end(
            source, transaction.producer.id, commit=commit, next_epoch=ending.next_epoch, cause=cause
        )

    def _tell(self, transaction: Transaction, marked: Sequence[Marked], *, commit: bool) -> None:
        """The transaction has ended: tell consumers and writers of this gateway."""
        if transaction.age_seconds is not None:
            metrics.TRANSACTION_SECONDS.labels("committed" if commit else "aborted").observe(transaction.age_seconds)
        if marked:
            metrics.IDEMPOTENCY_KEYS.labels("committed" if commit else "failed").inc(marked[0].settled_keys)
        for one in marked:
            self._on_marked(one, control_batch(one, commit=commit))

    # --- time ---------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Abort what is past its time, whichever gateway began it."""
        while True:
            try:
                while await self.sweep_once() == SWEEP_STEP:
                    pass
                await self._count()
            except DATABASE_ERRORS as error:
                log.warning("open transactions are not looked after", error=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep_once(self) -> int:
        """One small step; returns how many transactions were aborted."""
        late = await storage.find_timed_out(self._database, step=SWEEP_STEP)
        # Each in a database transaction of its own: together they would take partitions in any order.
        return sum([await self._time_out(transactional_id) for transactional_id in late])

    async def _time_out(self, transactional_id: str) -> bool:
        """Abort a transaction if its time is still over once we hold it; false if not, or if others hold it."""
        try:
            async with self._database.transaction() as source:
                transaction = await storage.lock_timed_out(source, transactional_id, wait_ms=SWEEP_WAIT_MS)
                if transaction is None:
                    return False
                marked = await self._end(source, transaction, decide_fence(transaction), commit=False, cause="timeout")
        except HELD_ERRORS as error:
            log.info("a transaction past its time is held by others", error=str(error).splitlines()[0])
            return False
        log.warning(
            "transaction timed out",
            transactional_id=transactional_id,
            producer_id=transaction.producer.id,
            timeout_ms=transaction.timeout_ms,
        )
        self._tell(transaction, marked, commit=False)
        return True

    async def _count(self) -> None:
        started, committed, aborted, timed_out, active, oldest_seconds = await storage.load_stats(self._database)
        for outcome, count in (
            ("started", started),
            ("committed", committed),
            ("aborted", aborted),
            ("timed_out", timed_out),
        ):
            metrics.TRANSACTIONS.labels(outcome).set(count)
        metrics.OPEN_TRANSACTIONS.set(active)
        metrics.OLDEST_OPEN_TRANSACTION_SECONDS.set(oldest_seconds)


def control_batch(marked: Marked, *, commit: bool) -> bytes:
    """The marker as consumers read it."""
    return encode_rows(
        RowRange(
            offsets=[marked.next_offset - 1],
            timestamps_ms=[marked.marked_at_ms],
            timestamp_types=[0],
            keys=[COMMIT_KEY if commit else ABORT_KEY],
            values=[MARKER_VALUE],
            header_names=[None],
            header_values=[None],
            producer_ids=[marked.producer_id],
            producer_epochs=[marked.producer_epoch],
            sequences=[None],
            is_transactional=[True],
            control_types=[int(commit)],
        ),
        leader_epoch=marked.leader_epoch,
    )


def _require_name(name: str) -> None:
    if not name or "\0" in name:
        raise InvalidRequest("a transactional id or group id must have at least one character, and no NUL")
