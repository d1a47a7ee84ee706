"""Batches that wait to be written, and which of them a writer takes next.

A partition's batches are with one writer at a time, so they keep their order. A commit by itself costs as much as
dozens of records, so a second writer begins beside the first only when there is enough for it to do, or when the first
takes long; until then batches gather. A writer whose commit is in flight may take one more group of its own
partitions, when as much waits as was answered last: clients with a limit of what they have in flight will send no more
until the next answer. Where all that they have in flight is little, it is not divided: the next group waits for what
they send when they are answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from gateway.broker.key_gate import Keys
from gateway.domain.sequences import BatchIdentity
from gateway.protocol.batches import ProducedBatch
from gateway.storage.keys import PartitionKey, ProducerKey

__all__ = ["Append", "AppendQueue", "Appended", "Writer"]

OVERLAP_BYTES = 512 * 1024
"""So much is worth a commit of its own while others are in flight."""

SMALL_BYTES = range(32 * 1024, 128 * 1024)
"""Of all that is in flight: a commit of a part of it would cost nearly as much as one of all of it. What is less than
that is no load, and committed as it comes."""

GATHER_SECONDS = 0.002
"""So long the rest is waited for, at most; the loop's timers count milliseconds."""

OVERLAP_SECONDS = 0.02
"""So long a commit in flight is waited for: another session may hold what it needs."""


class Appended(NamedTuple):
    """A batch is durable."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


class Append:
    """A batch on its way into a partition; `on_done` is called after COMMIT, or when it was refused."""

    __slots__ = (
        "_on_done",
        "batch",
        "identity",
        "key",
        "keys",
        "knows_abortable",
        "outcome",
        "producer_key",
        "uses_log_append_time",
    )

    def __init__(
        self,
        key: PartitionKey,
        batch: ProducedBatch,
        *,
        on_done: Callable[[], None],
        uses_log_append_time: bool,
        knows_abortable: bool = False,
        keys: Keys | None = None,
    ) -> None:
        self.key = key
        self.batch = batch
        self.keys = keys
        """The business keys of its records, if the topic asks for them and there are any."""
        self.uses_log_append_time = uses_log_append_time
        self.knows_abortable = knows_abortable
        """Whether the client understands TRANSACTION_ABORTABLE (KIP-890)."""
        self.producer_key = ProducerKey(*key, batch.producer_id)
        self.identity = BatchIdentity(batch.producer_epoch, batch.base_sequence, batch.record_count)
        self.outcome: Appended | BaseException | None = None
        """None until it is known."""
        self._on_done = on_done

    @property
    def transaction_of(self) -> int | None:
        """Whose open transaction the batch is part of."""
        return self.batch.producer_id if self.batch.is_transactional else None

    def settle(self, outcome: Appended | BaseException) -> None:
        """It is durable, or it is not going to be; what was said first holds."""
        if self.outcome is None:
            self.outcome = outcome
            self._on_done()


Writer = Callable[[list["Append"]], None]
"""Begins to write a group; it raises nothing."""


class AppendQueue:
    """What arrived for each partition, in order. For the event loop that it is made in."""

    def __init__(self, *, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_bytes = max_bytes
        # In the order of the first batch that waits in each.
        self._waiting: dict[PartitionKey, deque[Append]] = {}
        self._taken: dict[PartitionKey, Writer] = {}
        self._groups: Counter[PartitionKey] = Counter()  # how many groups of the one who has taken it
        self._ready_bytes = 0  # of what waits in partitions that nobody has taken
        self._held_bytes = 0  # in those that somebody has
        self._answered_bytes = 0  # of the last group that was given back
        self._flying_bytes = 0  # of groups that were not given back
        self._expected_bytes = 0  # what is gathered before the next group is taken
        self._gathering: asyncio.TimerHandle | None = None
        self._is_overdue = False
        self._timer: asyncio.TimerHandle | None = None
        self._writers: list[Writer] = []  # those that wait for work
        self._followers: list[Writer] = []  # those that have work, and may take more
        self._is_calling = False  # one of them is called in a moment
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def put(self, append: Append) -> None:
        waiting = self._waiting.get(append.key)
        if waiting is None:
            waiting = self._waiting[append.key] = deque()
        waiting.append(append)
        self._is_empty.clear()
        if append.key in self._taken:
            self._held_bytes += len(append.batch.data)
        else:
            self._ready_bytes += len(append.batch.data)
        self._wake()

    def wait(self, writer: Writer) -> None:
        """Call `writer`, once, with batches of partitions that nobody else has, as soon as they are worth a commit;
        `give_back` when it is done with them."""
        self._writers.append(writer)
        self._wake()

    def follow(self, writer: Writer) -> None:
        """The same for a writer that has a group, but of its own partitions only: others need not wait for its commit,
        which may be held up."""
        self._followers.append(writer)
        self._wake()

    def leave(self, writer: Writer) -> None:
        """It does not wait any more."""
        for waiting in (self._writers, self._followers):
            if writer in waiting:
                waiting.remove(writer)

    def give_back(self, group: Iterable[Append]) -> None:
        """The group is written or given up: what came for its partitions meanwhile may be taken."""
        self._answered_bytes = _size_bytes(group)
        self._flying_bytes -= self._answered_bytes
        for key in {append.key for append in group}:
            self._groups[key] -= 1
            if self._groups[key] == 0:
                del self._groups[key], self._taken[key]
                waiting_bytes = _size_bytes(self._waiting.get(key, ()))
                self._ready_bytes += waiting_bytes
                self._held_bytes -= waiting_bytes
        if not self._waiting and not self._taken:
            self._is_empty.set()
        if not self._taken:
            self._gather()
        self._wake()

    def withdraw(self, producers: Collection[ProducerKey]) -> list[Append]:
        """Take out what waits of these producers in these partitions."""
        withdrawn: list[Append] = []
        for key in {producer.partition_key for producer in producers} & self._waiting.keys():
            waiting = self._waiting[key]
            gone = [append for append in waiting if append.producer_key in producers]
            withdrawn += gone
            if key in self._taken:
                self._held_bytes -= _size_bytes(gone)
            else:
                self._ready_bytes -= _size_bytes(gone)
            if left := deque(append for append in waiting if append.producer_key not in producers):
                self._waiting[key] = left
            else:
                del self._waiting[key]
        return withdrawn

    async def drained(self) -> None:
        """Return when everything that was put has been given back."""
        await self._is_empty.wait()

    def remaining(self) -> list[Append]:
        """What nobody will take any more."""
        return [append for waiting in self._waiting.values() for append in waiting]

    def _gather(self) -> None:
        """Whoever is answered now has room for as much again: together with what waits, one commit."""
        in_flight_bytes = self._answered_bytes + self._ready_bytes
        if in_flight_bytes in SMALL_BYTES:
            self._expected_bytes = in_flight_bytes
            self._gathering = self._loop.call_later(GATHER_SECONDS, self._give_up_gathering)

    def _give_up_gathering(self) -> None:
        self._end_gathering()
        self._wake()

    def _end_gathering(self) -> None:
        self._expected_bytes = 0
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _is_worth_a_commit(self) -> bool:
        if not self._taken:
            return self._ready_bytes >= max(1, self._expected_bytes)
        return self._ready_bytes > 0 and (self._ready_bytes >= OVERLAP_BYTES or self._is_overdue)

    def _is_worth_following(self) -> bool:
        return (
            self._held_bytes >= max(1, self._answered_bytes)
            and self._flying_bytes + self._held_bytes not in SMALL_BYTES
        )

    def _wake(self) -> None:
        """Call a writer, or, where too little is ready, in a while. Not at once: what has arrived already, of this
        request and of others, is to be in its group."""
        if self._is_calling:
            return
        if (self._writers and self._is_worth_a_commit()) or (self._followers and self._is_worth_following()):
            self._is_calling = True
            self._loop.call_soon(self._call_writer)
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._ready_bytes and self._timer is None and not self._is_overdue:
            self._timer = self._loop.call_later(OVERLAP_SECONDS, self._grow_overdue)

    def _call_writer(self) -> None:
        self._is_calling = False
        # The one that wrote last: its session in the database has at hand what the next commit needs.
        if self._writers and self._is_worth_a_commit():
            writer = self._writers.pop()
            self._is_overdue = False
            self._end_gathering()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            writer(self._take((key for key in self._waiting if key not in self._taken), writer))
            self._wake()  # for what is left
            return
        for writer in reversed(self._followers if self._is_worth_following() else ()):
            if group := self._take((key for key in self._waiting if self._taken.get(key) == writer), writer):
                self._followers.remove(writer)
                writer(group)
                self._wake()
                return
        self._set_timer()

    def _take(self, keys: Iterable[PartitionKey], writer: Writer) -> list[Append]:
        """What waits in these partitions, which are the writer's or nobody's, up to the limit."""
        group: list[Append] = []
        size_bytes = 0
        for key in list(keys):
            waiting = self._waiting[key]
            of_key_bytes = 0
            while waiting and (not group or size_bytes + len(waiting[0].batch.data) <= self._max_bytes):
                append = waiting.popleft()
                size_bytes += len(append.batch.data)
                of_key_bytes += len(append.batch.data)
                group.append(append)
            self._flying_bytes += of_key_bytes
            if not of_key_bytes:
                break
            if key in self._taken:
                self._held_bytes -= of_key_bytes
            else:
                left_bytes = _size_bytes(waiting)
                self._ready_bytes -= of_key_bytes + left_bytes
                self._held_bytes += left_bytes
            self._taken[key] = writer
            self._groups[key] += 1
            if waiting:
                break  # the group is full
            del self._waiting[key]
        return group

    def _grow_overdue(self) -> None:
        self._timer = None
        self._is_overdue = self._ready_bytes > 0
        self._wake()


def _size_bytes(appends: Iterable[Append]) -> int:
    return sum(len(append.batch.data) for append in appends)


with suppress(ImportError):  # it is not there where nothing could be compiled
    from gateway.broker._usual_appends import Append
