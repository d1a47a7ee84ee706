"""Group commit: whatever arrived while the last database transaction was in flight goes into the next one.

A writer owns a connection; all of them take from one queue, a partition's batches one writer at a time.
The states of a partition and its producers are kept in memory and proven inside the transaction: whoever writes a
partition moves its next offset, so if that is where we left it, nothing else has changed either. If another gateway
wrote it meanwhile, nothing is written, and the writer starts over holding the partitions' locks. Business keys are
taken for new in the same way, and the commit that begins them proves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from gateway import clock, failpoints
from gateway.broker.append_queue import Append, Appended, AppendQueue
from gateway.broker.key_gate import KeyGate
from gateway.domain.idempotency import Sifted
from gateway.domain.sequences import Duplicate, ProducerState, decide_append, state_after
from gateway.domain.transactions import decide_append_in_transaction
from gateway.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    KafkaError,
    KeysHeldByTransactions,
    NotLeaderOrFollower,
    OutOfOrderSequence,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from gateway.protocol.batches import StoredBatch, select_records
from gateway.protocol.copy_rows import copy_rows
from gateway.protocol.layout import NO_TIMESTAMP
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS, UNDONE_ERRORS, is_bad_data, is_bug, translate
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import Advance, KeysTaken, LogConnection, PartitionMoved, PartitionState
from gateway.storage.producers import KnownProducer
from gateway.storage.transactions import AppendableTransaction, Extent
from gateway.telemetry import metrics

__all__ = ["Append", "Appended", "Appends"]

log = structlog.get_logger()

CONTENDED_SECONDS = 1.0
"""After meeting another gateway's write, take the locks before reading for this long."""

REPEATED_SECONDS = 1.0
"""After meeting a business key that was there before, look keys up for this long."""

MAX_ATTEMPTS = 3
MAX_ATTEMPTS_WITH_KEYS = 10
"""Each attempt waits for those who began the same business keys first, and finds them done."""
MAX_PRODUCERS_IN_MEMORY = 10_000
"""Per partition; beyond it the partition's states are read again as they are needed."""


class Written(NamedTuple):
    """What the rest of the gateway is told after a commit."""

    key: PartitionKey
    state: PartitionState
    batches: list[tuple[int, int, bytes | StoredBatch]]  # base offset, next offset, as stored


class Accepted(NamedTuple):
    """A batch that a commit appends, whole or without the records that were there before."""

    append: Append
    appended: Appended
    record_count: int

    @property
    def is_whole(self) -> bool:
        return self.record_count == self.append.batch.record_count


class _Plan:
    """One group of appends judged against the partitions' and producers' states, in order of arrival."""

    def __init__(
        self,
        states: dict[PartitionKey, PartitionState],
        producers: Mapping[PartitionKey, dict[ProducerKey, KnownProducer]],
        transactions: Mapping[int, AppendableTransaction] | None,
        gate: KeyGate | None,
    ) -> None:
        """`transactions`: of the producers of transactional batches; None: not read, the commit will prove them.
        `gate`: None if no batch has business keys."""
        self.gate = gate
        self.transactions = transactions
        self.extents: dict[ProducerKey, Extent] = {}
        self.before = states
        self.after = dict(states)
        self.producers = producers
        self.producers_after: dict[ProducerKey, ProducerState] = {}
        self.rows: list[bytes | bytearray] = []
        self.accepted: list[Accepted] = []
        self.repeated: list[tuple[Append, Appended]] = []
        """Batches of which every record has a business key that was there before."""
        self.duplicates: list[tuple[Append, Appended]] = []
        self.refused: list[tuple[Append, KafkaError]] = []
        self.max_timestamps: dict[PartitionKey, int] = {}

    def add(self, append: Append, *, now_ms: int) -> None:
        state = self.after.get(append.key)
        if state is None:
            self.refused.append((append, UnknownTopicOrPartition("the partition does not exist (any more)")))
            return
        batch = append.batch
        before: ProducerState | None = None
        duplicate: Duplicate | None = None
        try:
            if batch.is_transactional:
                self._require_transaction(append)
            if batch.has_producer:
                before = self._producer_before(append)
                duplicate = self._find_duplicate(append, before)
            sifted = self._sift(append) if duplicate is None else None
        except KafkaError as error:
            self.refused.append((append, error))
            if self.gate is not None and append.keys is not None:
                self.gate.refuse(append.key, append.keys, error)
            return
        if duplicate is not None:
            timestamp_ms = duplicate.timestamp_ms if append.uses_log_append_time else -1
            self.duplicates.append((append, Appended(duplicate.base_offset, timestamp_ms, state.log_start_offset)))
        elif sifted is not None and sifted.first is not None:
            self._skip(append, state, before, first_offset=sifted.first.offset)
        else:
            append_time_ms = now_ms if append.uses_log_append_time else None
            self._accept(append, state, before, sifted, append_time_ms=append_time_ms)

    def _require_transaction(self, append: Append) -> None:
        """Refuse a transactional batch that does not belong to its producer's open transaction."""
        batch = append.batch
        if self.transactions is None:
            return
        found = self.transactions.get(batch.producer_id)
        try:
            decide_append_in_transaction(
                None if found is None else found.transaction,
                epoch=batch.producer_epoch,
                is_partition_added=found is not None and append.key in found.partitions,
            )
        except InvalidTxnState as error:
            if append.knows_abortable:
                raise TransactionAbortable(error.message) from error
            raise

    def _producer_before(self, append: Append) -> ProducerState | None:
        """What the batch's producer wrote before it, as far as anything is known; a refusal is raised."""
        known = self.producers[append.key].get(append.producer_key)
        if known is None:
            raise UnknownTopicOrPartition("the partition was deleted meanwhile")
        if known.is_transactional and not append.batch.is_transactional:
            raise InvalidTxnState("a producer with a transactional id writes inside transactions only")
        return self.producers_after.get(append.producer_key, known.state)

    def _find_duplicate(self, append: Append, before: ProducerState | None) -> Duplicate | None:
        """Judge the batch by its producer's sequences; a refusal is raised."""
        may_be_forgotten = before is None and self.producers[append.key][append.producer_key].may_be_forgotten
        decision = decide_append(before, append.identity, may_be_forgotten=may_be_forgotten)
        return decision if isinstance(decision, Duplicate) else None

    def _sift(self, append: Append) -> Sifted | None:
        """Judge the records by their business keys; None if they have none. A refusal is raised."""
        if self.gate is None or append.keys is None:
            return None
        return self.gate.sift(append.key, append.keys, transaction_of=append.transaction_of)

    def _accept(
        self,
        append: Append,
        state: PartitionState,
        before: ProducerState | None,
        sifted: Sifted | None,
        *,
        append_time_ms: int | None,
    ) -> None:
        key, batch, base_offset = append.key, append.batch, state.next_offset
        next_offset = base_offset
        newest_ms = NO_TIMESTAMP
        is_whole = sifted is None or len(sifted.kept) == batch.record_count
        for part in (batch,) if sifted is None or is_whole else select_records(batch, sifted.kept):
            self.rows.append(
                copy_rows(
                    part,
                    topic_id=key.topic_id,
                    partition=key.partition,
                    base_offset=next_offset,
                    log_append_time_ms=append_time_ms,
                )
            )
            next_offset += part.record_count
            newest_ms = max(newest_ms, part.max_timestamp if append_time_ms is None else append_time_ms)
        self.max_timestamps[key] = max(newest_ms, self.max_timestamps.get(key, newest_ms))
        self._remember(append, before, base_offset=base_offset, timestamp_ms=newest_ms)
        if self.gate is not None and append.keys is not None and sifted is not None:
            self.gate.begin(key, append.keys, sifted, base_offset=base_offset, transaction_of=append.transaction_of)
        # While no transaction is open the last stable offset is the end; the UPDATE applies the same rule.
        is_stable = state.last_stable_offset == state.next_offset and not batch.is_transactional
        self.after[key] = PartitionState(
            state.log_start_offset,
            next_offset if is_stable else state.last_stable_offset,
            next_offset,
            state.leader_epoch,
        )
        if batch.is_transactional:
            self._extend(append, base_offset=base_offset, last_offset=next_offset - 1)
        log_append_time_ms = -1 if append_time_ms is None else append_time_ms
        appended = Appended(base_offset, log_append_time_ms, state.log_start_offset)
        self.accepted.append(Accepted(append, appended, next_offset - base_offset))

    def _skip(self, append: Append, state: PartitionState, before: ProducerState | None, *, first_offset: int) -> None:
        """Nothing of the batch is new. Its producer goes on counting behind it all the same."""
        self._remember(append, before, base_offset=first_offset, timestamp_ms=append.batch.max_timestamp)
        self.repeated.append((append, Appended(first_offset, -1, state.log_start_offset)))

    def _remember(self, append: Append, before: ProducerState | None, *, base_offset: int, timestamp_ms: int) -> None:
        """A retry of the batch is recognised by its sequences."""
        if append.batch.has_producer:
            self.producers_after[append.producer_key] = state_after(
                before, append.identity, base_offset=base_offset, timestamp_ms=timestamp_ms
            )

    def _extend(self, append: Append, *, base_offset: int, last_offset: int) -> None:
        key = append.producer_key
        begun = self.extents.get(key)
        first_offset = base_offset if begun is None else begun.first_offset
        self.extents[key] = Extent(key, append.batch.producer_epoch, first_offset, last_offset)

    @property
    def has_unproven_duplicates(self) -> bool:
        """Whether a duplicate was found, or must be remembered, in a partition that this commit does not move."""
        if not self.duplicates and not self.repeated:
            return False
        remembered = (append for append, _ in self.repeated if append.batch.has_producer)
        found = (append for append, _ in self.duplicates)
        return any(append.key not in self.max_timestamps for append in (*found, *remembered))

    def advances(self) -> list[Advance]:
        return [
            Advance(
                key,
                self.before[key].next_offset,
                self.after[key].next_offset,
                self.after[key].last_stable_offset,
                newest_ms,
            )
            for key, newest_ms in self.max_timestamps.items()
        ]

    @property
    def must_commit(self) -> bool:
        """Whether there is anything to write down, though no record."""
        return bool(self.repeated and self.producers_after) or (self.gate is not None and self.gate.has_failed)

    def written(self) -> list[Written]:
        by_key: dict[PartitionKey, Written] = {}
        for each in self.accepted:
            append, appended = each.append, each.appended
            written = by_key.setdefault(append.key, Written(append.key, self.after[append.key], []))
            if not each.is_whole:
                continue  # what arrived is not what is stored: consumers read the rows
            stored = StoredBatch(
                append.batch,
                base_offset=appended.base_offset,
                leader_epoch=written.state.leader_epoch,
                log_append_time_ms=None if appended.log_append_time_ms < 0 else appended.log_append_time_ms,
            )
            next_offset = appended.base_offset + each.record_count
            written.batches.append((appended.base_offset, next_offset, stored))
        return list(by_key.values())


class _Known:
    """What is believed of partitions and their producers, until a commit proves it."""

    def __init__(self) -> None:
        self.states: dict[PartitionKey, PartitionState] = {}
        self.producers: dict[PartitionKey, dict[ProducerKey, KnownProducer]] = {}
        self.contended_until = 0.0
        self.repeated_until = 0.0

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self.states.pop(key, None)
            self.producers.pop(key, None)

    def marked(self, key: PartitionKey, state: PartitionState) -> None:
        """A transaction of this gateway put a marker there: go on behind it if nobody else wrote in between."""
        known = self.states.get(key)
        if known is not None and known.next_offset == state.next_offset - 1:
            self.states[key] = state._replace(log_start_offset=known.log_start_offset)
        else:
            self.forget([key])


class _Writer:
    """One connection, one database transaction at a time."""

    def __init__(
        self,
        database: Database,
        queue: AppendQueue,
        known: _Known,
        *,
        timeout_ms: int,
        on_written: Callable[[Written], None],
    ) -> None:
        self._database = database
        self._queue = queue
        self._known = known
        self._timeout_ms = timeout_ms
        self._on_written = on_written
        self._connection: LogConnection | None = None
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    async def _run(self) -> None:
        while True:
            group = await self._queue.take()
            await self._settle(group)
            self._queue.give_back(group)

    async def _settle(self, group: Sequence[Append]) -> None:
        """Commit the group or tell why not; raises nothing, because a writer must outlive any failure."""
        for part in _split(group):
            try:
                await self._commit(part)
            except DATABASE_ERRORS as error:
                await self._give_up(part, error)
            except Exception as error:
                log.exception("a commit failed for an unexpected reason")
                await self._give_up(part, error)

    async def _commit(self, group: Sequence[Append]) -> None:
        keys = list(dict.fromkeys(append.key for append in group))
        has_keys = any(append.keys is not None for append in group)
        now = clock.monotonic_seconds()
        locked = (
            now < self._known.contended_until
            or any(key not in self._known.states for key in keys)
            # What an open transaction holds is only known for certain while it cannot end.
            or (
                now < self._known.repeated_until and has_keys and any(append.batch.is_transactional for append in group)
            )
        )
        for _ in range(MAX_ATTEMPTS_WITH_KEYS if has_keys else MAX_ATTEMPTS):
            try:
                if await self._attempt(group, keys, locked=locked):
                    return
            except UNDONE_ERRORS as error:
                log.info("a group of batches is written once more", error=str(error).splitlines()[0])
                await self._recover()
            locked = True
        raise TimeoutError("other writers were always quicker")

    async def _attempt(self, group: Sequence[Append], keys: Sequence[PartitionKey], *, locked: bool) -> bool:
        """Judge, write and answer the group; false, nothing written, when it must be judged holding the locks."""
        connection = await self._connected()
        plan = await self._judge(connection, group, keys, locked=locked)
        key_script = "" if plan.gate is None else plan.gate.script()
        if not locked and (plan.refused or plan.has_unproven_duplicates or key_script is None):
            # A refusal is final for many clients: it is only given on what the locks prove. So is a
            # duplicate, unless this commit proves that nobody else (a newer epoch, say) wrote there.
            return False
        if (
            locked
            and plan.gate is not None
            and not await self._save(plan.gate, connection, is_scripted=key_script is not None)
        ):
            return False
        if plan.accepted:
            try:
                await connection.append(
                    plan.advances(),
                    plan.rows,
                    list(plan.producers_after.items()),
                    list(plan.extents.values()),
                    key_script=key_script or "",
                    locked=locked,
                )
            except PartitionMoved:
                self._known.contended_until = clock.monotonic_seconds() + CONTENDED_SECONDS
                return False
            except KeysTaken:
                self._known.repeated_until = clock.monotonic_seconds() + REPEATED_SECONDS
                return False
            failpoints.reach(failpoints.PRODUCE_COMMITTED)
        elif locked and plan.must_commit:
            await connection.commit_without_rows(list(plan.producers_after.items()))
            failpoints.reach(failpoints.PRODUCE_COMMITTED)
        elif locked:
            await connection.roll_back()
        self._conclude(plan)
        return True

    async def _save(self, gate: KeyGate, connection: LogConnection, *, is_scripted: bool) -> bool:
        """Write down what the commit's script does not say of business keys; false, all undone, when others began one
        of them since they were read."""
        async with connection.begun() as source:
            if await gate.save(source, is_scripted=is_scripted):
                return True
        await connection.roll_back()
        return False

    async def _judge(
        self,
        connection: LogConnection,
        group: Sequence[Append],
        keys: Sequence[PartitionKey],
        *,
        locked: bool,
    ) -> _Plan:
        """Judge the group: by what is in memory, or, holding the partitions' locks, by what is in the database."""
        known = self._known
        for key in keys:
            if len(known.producers.get(key, ())) > MAX_PRODUCERS_IN_MEMORY:
                known.producers[key].clear()
        transactions: dict[int, AppendableTransaction] | None = None
        if locked:
            known.forget(keys)
            writing = {append.batch.producer_id for append in group if append.batch.is_transactional}
            locked_states, transactions = await connection.lock_and_load(keys, sorted(writing))
            known.states.update(locked_states)
        # Kept by the plan: whatever `marked` forgets while we wait for the database, the group is judged as a whole.
        states = {key: known.states[key] for key in keys if key in known.states}
        producers = {key: known.producers.setdefault(key, {}) for key in states}
        unknown = [
            append.producer_key
            for append in group
            if append.batch.has_producer and append.key in states and append.producer_key not in producers[append.key]
        ]
        if unknown:
            for producer, loaded in (await connection.load_producers(list(dict.fromkeys(unknown)))).items():
                producers[producer.partition_key][producer] = loaded
        gate = None
        if with_keys := [(append.key, append.keys) for append in group if append.keys is not None]:
            gate = KeyGate({})
            if locked or clock.monotonic_seconds() < self._known.repeated_until:
                async with connection.begun() as source:
                    gate = await KeyGate.open(source, with_keys)
                if gate.knows_any:
                    self._known.repeated_until = clock.monotonic_seconds() + REPEATED_SECONDS
        plan = _Plan(states, producers, transactions, gate)
        now_ms = clock.now_ms()
        for append in group:
            plan.add(append, now_ms=now_ms)
        return plan

    def _conclude(self, plan: _Plan) -> None:
        """What was planned is true now. The next group is judged by it before others are told."""
        self._known.states.update(plan.after)
        for key, state in plan.producers_after.items():
            producers = plan.producers[key.partition_key]
            producers[key] = KnownProducer(
                state, may_be_forgotten=False, is_transactional=producers[key].is_transactional
            )
        asyncio.get_running_loop().call_soon(self._tell, plan)

    def _tell(self, plan: _Plan) -> None:
        """Tell consumers, answer producers."""
        try:
            # The tail and the waiting consumers first: who got an answer may read at once.
            for written in plan.written():
                self._on_written(written)
        except Exception:
            log.exception("consumers were not told of what was written")
        for accepted in plan.accepted:
            accepted.append.settle(accepted.appended)
        for append, appended in (*plan.duplicates, *plan.repeated):
            append.settle(appended)
        for append, error in plan.refused:
            append.settle(error)
        _count(plan)

    async def _give_up(self, group: Sequence[Append], error: BaseException) -> None:
        """Answer the group; whether it was committed is unknown, so its partitions are looked at again."""
        self._known.forget({append.key for append in group})
        await self._recover()
        unanswered = [append for append in group if append.outcome is None]
        is_expected = isinstance(error, DATABASE_ERRORS) and not is_bug(error)
        if is_bad_data(error):
            if len(unanswered) > 1:
                # Nothing was written: find the batch that is to blame, so that the others do not suffer.
                for append in unanswered:
                    await self._settle([append])
                return
            error = InvalidRecord(f"the database refused the batch: {error}")
        elif is_expected:
            error = translate(error)
            log.warning("a group of batches was not written", batches=len(unanswered), error=str(error))
        for append in unanswered:
            append.settle(error)

    async def _connected(self) -> LogConnection:
        if self._connection is None or not self._connection.is_usable:
            self._connection = await LogConnection.open(self._database, timeout_ms=self._timeout_ms)
        return self._connection

    async def _recover(self) -> None:
        if self._connection is not None:
            try:
                await self._connection.roll_back()
            except DATABASE_ERRORS:
                await self._connection.close()


def _split(group: Sequence[Append]) -> list[Sequence[Append]]:
    """Partitions that get batches with business keys go apart, so that the others keep the shorter way."""
    keyed = {append.key for append in group if append.keys is not None}
    if not keyed:
        return [group]
    plain = [append for append in group if append.key not in keyed]
    with_keys = [append for append in group if append.key in keyed]
    return [plain, with_keys] if plain else [with_keys]


def _count(plan: _Plan) -> None:
    metrics.PRODUCED_RECORDS.inc(sum(accepted.record_count for accepted in plan.accepted))
    metrics.PRODUCED_BYTES.inc(sum(len(accepted.append.batch.data) for accepted in plan.accepted))
    metrics.DUPLICATES.inc(len(plan.duplicates))
    if plan.gate is not None:
        plan.gate.count()
    for append, error in plan.refused:
        if isinstance(error, (OutOfOrderSequence, DuplicateSequence, InvalidProducerEpoch)):
            metrics.SEQUENCE_REFUSALS.labels(error.code.name).inc()
        # Who waits for another's transaction comes back every moment: that is no news.
        (log.debug if isinstance(error, KeysHeldByTransactions) else log.warning)(
            "batch refused",
            topic_id=append.key.topic_id,
            partition=append.key.partition,
            producer_id=append.batch.producer_id,
            producer_epoch=append.batch.producer_epoch,
            error=error.code.name,
            reason=error.message,
        )


class Appends:
    """All writers of this gateway."""

    def __init__(
        self,
        database: Database,
        *,
        writers: int,
        max_bytes: int,
        timeout_ms: int,
        on_written: Callable[[Written], None],
    ) -> None:
        self._queue = AppendQueue(max_bytes=max_bytes)
        self._known = _Known()
        self._writers = [
            _Writer(database, self._queue, self._known, timeout_ms=timeout_ms, on_written=on_written)
            for _ in range(writers)
        ]

    def submit(self, append: Append) -> None:
        """Queue a batch. Order of calls is order of offsets within a partition."""
        self._queue.put(append)

    def marked(self, key: PartitionKey, state: PartitionState) -> None:
        """A transaction of this gateway put a marker there."""
        self._known.marked(key, state)

    async def drain(self) -> None:
        """Return when everything submitted has been answered."""
        await self._queue.drained()

    async def stop(self) -> None:
        for writer in self._writers:
            await writer.stop()
        for append in self._queue.remaining():
            append.settle(NotLeaderOrFollower("the gateway is stopping"))
