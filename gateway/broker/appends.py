"""Group commit: whatever arrived while the last database transaction was in flight goes into the next one.

A writer owns a connection; all of them take from one queue, a partition's batches one writer at a time.
The states of a partition and its producers are kept in memory and proven inside the transaction: whoever writes a
partition moves its next offset, so if that is where we left it, nothing else has changed either. If another gateway
wrote it meanwhile, nothing is written, and the writer starts over holding the partitions' locks. Business keys are
taken for new in the same way, and the commit that begins them proves it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

import structlog

from gateway import clock, failpoints
from gateway.broker.append_queue import Append, Appended, AppendQueue
from gateway.broker.key_gate import KeyGate
from gateway.broker.plans import Plan, Written
from gateway.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    KeysHeldByTransactions,
    NotLeaderOrFollower,
    OutOfOrderSequence,
)
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS, UNDONE_ERRORS, is_bad_data, is_bug, translate
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import (
    CommitNotTried,
    KeysTaken,
    LogConnection,
    PartitionMoved,
    PartitionState,
    TransactionNotOpen,
)
from gateway.storage.producers import KnownProducer
from gateway.storage.transactions import AppendableTransaction
from gateway.tasks import end_task
from gateway.telemetry import metrics

__all__ = ["Append", "Appended", "Appends"]

log = structlog.get_logger()

try:
    from gateway.broker._usual_appends import UsualPlan, plan_usual
except ImportError:  # nothing could be compiled: every group goes the long way
    plan_usual = None  # type: ignore[assignment]


CONTENDED_SECONDS = 1.0
"""After meeting another gateway's write, take the locks before reading for this long."""

REPEATED_SECONDS = 1.0
"""After meeting a business key that was there before, look keys up for this long."""

MAX_UNDER_WAY = 2
"""Commits of a writer: one that the database is at work on, and one that it finds when it is done with it."""

MAX_ATTEMPTS = 3
MAX_ATTEMPTS_WITH_KEYS = 10
"""Each attempt waits for those who began the same business keys first, and finds them done."""
MAX_PRODUCERS_IN_MEMORY = 10_000
"""Per partition; beyond it the partition's states are read again as they are needed."""


class Left(Enum):
    """What there is to do with a group that the short way did not commit."""

    NOTHING = auto()
    TO_JUDGE = auto()
    TO_LOCK = auto()
    """To judge by what is read holding the locks: what is remembered was wrong."""


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
    """One connection, one database transaction at a time, of usual groups one more that is sent ahead."""

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
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[tuple[list[Append], UsualPlan]] = deque()
        self._number = 0  # of the commit that was begun last
        self._left: deque[tuple[list[Append], Exception | None]] = deque()
        """What the task is to do when nothing is under way: groups, in order, and what went wrong with each."""
        self._behind: tuple[list[Append], Exception | None] | None = None
        """The same of a group that came while others are under way, which may still fail."""
        self._has_left = asyncio.Event()
        self._is_stopped = False
        self._task = asyncio.create_task(self._run())
        self._queue.wait(self._begin)

    async def stop(self) -> None:
        self._is_stopped = True
        self._queue.leave(self._begin)
        await end_task(self._task)
        if self._connection is not None:
            await self._connection.close()
        unanswered = [group for group, _ in (*self._under_way, *self._left)]
        if self._behind is not None:
            unanswered.append(self._behind[0])
        for append in (append for group in unanswered for append in group):
            append.settle(NotLeaderOrFollower("the gateway is stopping"))

    # --- the short way: compiled code and callbacks, no task ------------------------------------

    def _begin(self, group: list[Append]) -> None:
        """Commit a group in which nothing is unusual; any other is left to the task, nothing of it written."""
        connection, known = self._connection, self._known
        try:
            if (
                plan_usual is None
                or connection is None
                or not connection.takes_messages
                or clock.monotonic_seconds() < known.contended_until
            ):
                plan = None
            else:
                plan = plan_usual(
                    group,
                    known.states,
                    known.producers,
                    commit=connection.usual_commit,
                    max_producers=MAX_PRODUCERS_IN_MEMORY,
                    follows=self._number if self._under_way else 0,
                    number=self._number + 1,
                )
            if plan is None or connection is None:
                self._leave(group, None)
                return
            connection.begin(plan.message, self._end)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            self._leave(group, error)
            return
        self._number += 1
        self._under_way.append((group, plan))
        # Believed until it is proven: the next group is judged as if this one were committed, and where it is not,
        # that one cannot be either.
        plan.conclude(known.states)
        self._wait()

    def _end(self, error: Exception | None) -> None:
        group, plan = self._under_way.popleft()
        if error is not None:
            self._known.forget({append.key for append in group})
            self._left.append((group, error))
            self._wait()
            return
        failpoints.reach(failpoints.PRODUCE_COMMITTED)
        self._queue.give_back(group)
        self._wait()
        # Behind the next commit, if there is one to begin.
        self._loop.call_soon(self._tell_usual, plan)

    def _leave(self, group: list[Append], error: Exception | None) -> None:
        """To the task, which has the connection to itself: nothing is begun before it is done."""
        self._behind = (group, error)
        self._wait()

    def _wait(self) -> None:
        """For the next group: at most one is sent behind the one that is under way."""
        self._queue.leave(self._begin)
        if not self._under_way and self._behind is not None:
            self._left.append(self._behind)
            self._behind = None
        if self._is_stopped or self._behind is not None:
            return
        if not self._left:
            if not self._under_way:
                self._queue.wait(self._begin)
            elif len(self._under_way) < MAX_UNDER_WAY:
                self._queue.follow(self._begin)
        elif not self._under_way:
            self._has_left.set()

    def _tell_usual(self, plan: UsualPlan) -> None:
        try:
            # The tail and the waiting consumers first: who got an answer may read at once.
            plan.tell(self._on_written, Written)
        except Exception:
            log.exception("consumers were not told of what was written")
        plan.settle()
        metrics.PRODUCED_RECORDS.inc(plan.record_count)
        metrics.PRODUCED_BYTES.inc(plan.size_bytes)

    # --- the long way ---------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._has_left.wait()
            while self._left:
                group, error = self._left[0]
                try:
                    await self._take_up(group, error)
                except Exception as unexpected:
                    # It must not end here: everything that comes later would wait for ever.
                    log.exception("a group of batches was given up for an unexpected reason")
                    self._known.forget({append.key for append in group})
                    for append in group:
                        append.settle(unexpected)
                self._left.popleft()
                self._queue.give_back(group)
            self._has_left.clear()
            self._wait()

    async def _take_up(self, group: list[Append], error: Exception | None) -> None:
        left = Left.TO_JUDGE if error is None else await self._undo(group, error)
        unanswered = [append for append in group if append.outcome is None]
        if left is not Left.NOTHING and unanswered:
            await self._settle(unanswered, locked=left is Left.TO_LOCK)

    async def _undo(self, group: list[Append], error: Exception) -> Left:
        """The short way went wrong: tell whoever waits, or say what is to be done with the group."""
        try:
            assert self._connection is not None
            await self._connection.undo(error)
        except PartitionMoved:
            self._known.contended_until = clock.monotonic_seconds() + CONTENDED_SECONDS
            return Left.TO_LOCK
        except TransactionNotOpen:
            return Left.TO_LOCK  # a late batch, which is refused; others go on as they did
        except CommitNotTried:
            return Left.TO_JUDGE
        except UNDONE_ERRORS as undone:
            log.info("a group of batches is written once more", error=str(undone).splitlines()[0])
            return Left.TO_JUDGE
        except Exception as failed:  # noqa: BLE001 - whoever waits is told, whatever it is
            await self._fail(group, failed)
        return Left.NOTHING

    async def _settle(self, group: list[Append], *, locked: bool = False) -> None:
        """Commit the group or tell why not; raises nothing, because a writer must outlive any failure."""
        for part in _split(group):
            try:
                await self._commit(part, locked=locked)
            except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
                await self._fail(part, error)

    async def _commit(self, group: list[Append], *, locked: bool) -> None:
        """`locked`: what is known is not believed, but read again holding the locks."""
        keys = list(dict.fromkeys(append.key for append in group))
        has_keys = any(append.keys is not None for append in group)
        now = clock.monotonic_seconds()
        locked = (
            locked
            or now < self._known.contended_until
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

    async def _attempt(self, group: list[Append], keys: Sequence[PartitionKey], *, locked: bool) -> bool:
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
            except TransactionNotOpen:
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
        group: list[Append],
        keys: Sequence[PartitionKey],
        *,
        locked: bool,
    ) -> Plan:
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
        plan = Plan(states, producers, transactions, gate)
        now_ms = clock.now_ms()
        for append in group:
            plan.add(append, now_ms=now_ms)
        return plan

    def _conclude(self, plan: Plan) -> None:
        """What was planned is true now. The next group is judged by it before others are told."""
        self._known.states.update(plan.after)
        for key, state in plan.producers_after.items():
            producers = plan.producers[key.partition_key]
            producers[key] = KnownProducer(
                state, may_be_forgotten=False, is_transactional=producers[key].is_transactional
            )
        asyncio.get_running_loop().call_soon(self._tell, plan)

    def _tell(self, plan: Plan) -> None:
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

    async def _fail(self, group: list[Append], error: Exception) -> None:
        if not isinstance(error, DATABASE_ERRORS):
            log.error("a commit failed for an unexpected reason", exc_info=error)
        await self._give_up(group, error)

    async def _give_up(self, group: list[Append], error: BaseException) -> None:
        """Answer the group; whether it was committed is unknown, so its partitions are looked at again."""
        self._known.forget({append.key for append in group})
        await self._recover()
        unanswered = [append for append in group if append.outcome is None]
        is_expected = isinstance(error, DATABASE_ERRORS) and not is_bug(error)
        if is_bad_data(error):
            if len(unanswered) > 1:
                # Nothing was written: find the batch that is to blame, so that the others do not suffer.
                for append in unanswered:
                    if append.outcome is None:  # it may have followed one that could not be written
                        await self._settle([append])
                return
            error = InvalidRecord(f"the database refused the batch: {error}")
        elif is_expected:
            error = translate(error)
            log.warning("a group of batches was not written", batches=len(unanswered), error=str(error))
        if not isinstance(error, InvalidRecord):
            unanswered += self._followers(unanswered)
        for append in unanswered:
            append.settle(error)

    def _followers(self, failed: list[Append]) -> list[Append]:
        """What came from the same producers for the same partitions behind these. Judged by itself it would leave a
        gap, though its client sends what is missing; some clients then begin a new epoch, in which they repeat whatever
        they have no answer to."""
        producers = {append.producer_key for append in failed if append.batch.has_producer}
        groups = [group for group, _ in self._left]
        if self._behind is not None:
            groups.append(self._behind[0])
        begun = [
            append
            for group in groups
            for append in group
            if append.outcome is None and append.producer_key in producers and append not in failed
        ]
        return begun + self._queue.withdraw(producers)

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


def _split(group: list[Append]) -> list[list[Append]]:
    """Partitions that get batches with business keys go apart, so that the others keep the shorter way."""
    keyed = {append.key for append in group if append.keys is not None}
    if not keyed:
        return [group]
    plain = [append for append in group if append.key not in keyed]
    with_keys = [append for append in group if append.key in keyed]
    return [plain, with_keys] if plain else [with_keys]


def _count(plan: Plan) -> None:
    metrics.PRODUCED_RECORDS.inc(sum(accepted.record_count for accepted in plan.accepted))
    metrics.PRODUCED_BYTES.inc(sum(len(accepted.append.batch.data) for accepted in plan.accepted))
    metrics.DUPLICATES.inc(len(plan.duplicates))
    if plan.gate is not None:
        plan.gate.count()
    for append, error in plan.refused:
        if isinstance(error, (OutOfOrderSequence, DuplicateSequence, InvalidProducerEpoch)):
            metrics.SEQUENCE_REFUSALS.labels(error.code.name).inc()
        if isinstance(error, InvalidProducerEpoch):
            metrics.PRODUCERS_FENCED.inc()
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

    def forget(self) -> None:
        """What is believed of partitions may not be true any more."""
        self._known.forget([*self._known.states, *self._known.producers])

    async def drain(self) -> None:
        """Return when everything submitted has been answered."""
        await self._queue.drained()
        await asyncio.sleep(0)  # whoever waits for the last commit is told in the loop's next turn

    async def stop(self) -> None:
        for writer in self._writers:
            await writer.stop()
        for append in self._queue.remaining():
            append.settle(NotLeaderOrFollower("the gateway is stopping"))
