"""The coordinator of groups: their rules in memory, driven by timers, every durable fact written before it is told.

A gateway claims a group before it looks after it, which raises the group's coordinator epoch; all writes are guarded by
that epoch. One that was paused or cut off finds that its writes hit nothing, answers NOT_COORDINATOR and forgets the
group. Heartbeats live in memory alone. Whatever cannot be written is forgotten too and loaded anew, so that memory is
never ahead of the database for longer than one statement takes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import structlog

from gateway.broker.cluster import Cluster
from gateway.broker.group_topics import GroupTopics
from gateway.broker.offset_commits import OffsetCommits
from gateway.clock import monotonic_seconds
from gateway.domain.groups import interop
from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.classic import (
    ClassicGroup,
    GroupSnapshot,
    GroupState,
    Identity,
    Joined,
    JoinRequest,
    Limits,
    Member,
    Step,
    Synced,
    Ticket,
)
from gateway.domain.groups.consumer import JOINING, ConsumerGroup, Heartbeat, Reply, Rules, check_request
from gateway.domain.groups.served import ServedConsumerGroup
from gateway.domain.groups.subscriptions import Topics
from gateway.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidGroupId,
    InvalidRequest,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from gateway.protocol.consumer_protocol import CONSUMER, subscribed_topics
from gateway.storage import consumer_groups as consumer_storage
from gateway.storage import groups as storage
from gateway.storage import offsets as offset_storage
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS
from gateway.storage.groups import ListedGroup
from gateway.storage.keys import PartitionKey
from gateway.storage.offsets import CommittedOffset, NamedOffset, OffsetToCommit
from gateway.tasks import end_task

__all__ = ["ConsumerDescription", "Description", "Groups", "new_member_id"]

log = structlog.get_logger()

T = TypeVar("T")
Answer = Joined | Synced
Group = ClassicGroup | ServedConsumerGroup

TICK_SECONDS = 1.0
LOOK_AROUND_TICKS = 5
"""Every so many ticks the claims are proven and groups that nobody looks after are looked for."""

LATE_SECONDS = 0.5
FORGET_EMPTY_SECONDS = 600.0
"""An empty group that nobody asks about is dropped from memory."""


@dataclass(frozen=True, slots=True)
class Description:
    """A group as people are shown it."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A group of the consumer protocol as people are shown it."""

    group: ConsumerGroup
    assignor: str
    topic_names: dict[UUID, str]


@dataclass(slots=True, eq=False)
class _Held:
    """A group that this gateway looks after."""

    group_id: str
    epoch: int
    group: Group
    shown_state: str
    used_at: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: dict[Ticket, asyncio.Future[Answer]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


def new_member_id(client_id: str | None, instance_id: str | None) -> str:
    """As Kafka makes them: readable, and never the same twice."""
    return f"{_readable(client_id or '') if instance_id is None else instance_id}-{uuid4()}"


class Groups:
    """The groups of this database, as far as this gateway coordinates them."""

    def __init__(
        self,
        database: Database,
        cluster: Cluster,
        topics: GroupTopics,
        *,
        node_id: int,
        limits: Limits,
        rules: Rules,
    ) -> None:
        """`limits` are for classic groups, `rules` for those of the consumer protocol."""
        self._database = database
        self._cluster = cluster
        self._topics = topics
        self._node_id = node_id
        self._limits = limits
        self._rules = rules
        self._held: dict[str, _Held] = {}
        self._claiming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._commits = OffsetCommits(database, on_lost=self._lost)
        self._numbers = count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tick_task: asyncio.Task[None] | None = None
        self._must_look_around = asyncio.Event()
        self._is_closing = False

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._cluster.call_on_change(self._must_look_around.set)
        self._tick_task = asyncio.create_task(self._run())

    def release(self) -> None:
        """The gateway drains: members that wait are sent to the next coordinator."""
        self._is_closing = True
        for held in list(self._held.values()):
            self._forget(held, NotCoordinator("this gateway stops; ask who coordinates the group"))

    async def stop(self) -> None:
        self.release()
        await end_task(self._tick_task)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._commits.stop()

    # --- members ------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> asyncio.Future[Answer]:
        """JoinGroup: refused at once, or a future that becomes a `Joined`."""
        held = await self._hold(group_id, create=not request.member_id)
        if held is None:
            raise UnknownMemberId(f"there is no group {group_id}")
        topics = await self._topics_for(held, is_fresh=True)
        ticket, answer = self._new_ticket(held)

        def join(group: Group) -> None:
            if isinstance(group, ServedConsumerGroup) and not group.is_waited_for:
                # An empty group is of whichever protocol its next member speaks.
                held.group = group = ClassicGroup(self._limits, GroupSnapshot(group.generation), now_ms=_now_ms())
            elif isinstance(group, ServedConsumerGroup):
                group.topics = topics
            group.join(request, ticket, now_ms=_now_ms())

        await self._change(held, join, ticket)
        return answer

    async def sync(
        self,
        group_id: str,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Sequence[tuple[str, bytes]],
    ) -> asyncio.Future[Answer]:
        """SyncGroup: refused at once, or a future that becomes a `Synced`."""
        held = await self._require(group_id)
        topics = await self._topics_for(held, is_fresh=False)
        ticket, answer = self._new_ticket(held)

        def sync(group: Group) -> None:
            if isinstance(group, ServedConsumerGroup):
                group.topics = topics
            group.sync(
                ticket,
                member_id=member_id,
                instance_id=instance_id,
                generation=generation,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=assignments,
                now_ms=_now_ms(),
            )

        await self._change(held, sync, ticket)
        return answer

    async def heartbeat(self, group_id: str, *, member_id: str, instance_id: str | None, generation: int) -> None:
        """Heartbeat: memory alone, whatever the database does."""
        held = await self._require(group_id)
        held.group.heartbeat(member_id, instance_id, generation, now_ms=_now_ms())

    async def leave(self, group_id: str, identities: Sequence[Identity]) -> list[KafkaError | None]:
        """LeaveGroup: what becomes of each, None where it left."""
        held = await self._require(group_id)
        return await self._change(held, lambda group: group.leave(identities, now_ms=_now_ms()))

    async def consumer_heartbeat(self, group_id: str, said: Heartbeat, *, new_member_id: str, version: int) -> Reply:
        """ConsumerGroupHeartbeat: a member joins, goes on or leaves. A classic group becomes one of this protocol."""
        if not group_id:
            raise InvalidRequest("GroupId can't be empty.")
        check_request(said, rules=self._rules, version=version)
        if not said.member_id:
            said = replace(said, member_id=new_member_id)
        held = await self._hold(group_id, create=said.epoch == JOINING)
        if held is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        subscribes = said.topic_names is not None or said.topic_pattern is not None
        topics = await self._topics.current(is_fresh=subscribes)

        def beat(group: Group) -> Reply:
            served = self._served(held, topics, may_upgrade=said.epoch == JOINING)
            reply = served.consumer_heartbeat(said, now_ms=_now_ms())
            if group is not served:
                group.kill(RebalanceInProgress("the group changes its protocol; join again"))
                self._answer(held, group.take_step())
                held.group = served
            return reply

        return await self._change(held, beat)

    async def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """May this member of a consumer group read offsets? Others need not say who they are."""
        held = await self._hold(group_id, create=False) if member_id is not None or epoch >= 0 else None
        if held is not None and isinstance(held.group, ServedConsumerGroup):
            held.group.check_fetch(member_id, epoch)

    async def require_member(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        is_transactional: bool = True,
        unknown: type[KafkaError] = IllegalGeneration,
        partitions: Collection[Partition] | None = None,
    ) -> int:
        """May this member commit? Returns the epoch that guards the commit (`storage.groups.hold_claim`).

        With a generation below 0 a group that does not exist is made; else `unknown` is raised.
        """
        held = await self._hold(group_id, create=generation < 0)
        if held is None:
            raise unknown(f"there is no group {group_id}")
        group = held.group
        if isinstance(group, ServedConsumerGroup):
            group.check_commit(
                member_id, instance_id, generation, is_transactional=is_transactional, partitions=partitions
            )
        else:
            group.check_commit(member_id, instance_id, generation, is_transactional=is_transactional, now_ms=_now_ms())
        return held.epoch

    # --- offsets ------------------------------------------------------------------------------

    def commit_offsets(self, group_id: str, offsets: Sequence[OffsetToCommit], *, epoch: int) -> asyncio.Future[None]:
        """Write offsets that `require_member` allowed with this epoch."""
        return self._commits.commit(group_id, offsets, epoch=epoch)

    async def fetch_offsets(self, group_id: str, keys: Sequence[PartitionKey]) -> dict[PartitionKey, CommittedOffset]:
        self._require_coordinator(group_id)
        return await offset_storage.fetch(self._database, group_id, keys) if keys else {}

    async def fetch_all_offsets(self, group_id: str) -> list[NamedOffset]:
        self._require_coordinator(group_id)
        return await offset_storage.fetch_all(self._database, group_id)

    async def find_unstable(self, group_id: str) -> set[PartitionKey]:
        """Partitions whose offsets an open transaction may yet change."""
        return await offset_storage.find_unstable(self._database, group_id)

    async def subscribed_topics(self, group_id: str) -> set[str] | None:
        """The topics that the group's members read; None if that cannot be known. Refused when nobody may tell:
        there is no such group, or it has members that are no consumers."""
        held = await self._hold(group_id, create=False)
        if held is None:
            raise GroupIdNotFound(f"there is no group {group_id}")
        group = held.group
        if isinstance(group, ServedConsumerGroup):
            return group.subscribed_topics
        if not group.members:
            return set()
        if group.protocol_type != CONSUMER:
            raise NonEmptyGroup(f"group {group_id} has members")
        topics: set[str] = set()
        for member in group.members.values():
            names = subscribed_topics(member.metadata(group.protocol_name))
            if names is None:
                return None
            topics.update(names)
        return topics

    async def delete_offsets(self, group_id: str, keys: Sequence[PartitionKey]) -> None:
        held = await self._hold(group_id, create=False)
        if held is None:
            raise GroupIdNotFound(f"there is no group {group_id}")
        if keys and not await offset_storage.delete(self._database, group_id, keys, epoch=held.epoch):
            self._lost(group_id, held.epoch)
            raise NotCoordinator("another gateway coordinates this group")

    # --- administration -----------------------------------------------------------------------

    async def list_all(self) -> list[ListedGroup]:
        """The groups that this gateway coordinates, or would if somebody asked."""
        stored = await storage.list_all(self._database)
        return [self._newest(one) for one in stored if self._cluster.is_coordinator_of(one.group_id)]

    def _newest(self, listed: ListedGroup) -> ListedGroup:
        held = self._held.get(listed.group_id)
        if held is None:
            return listed
        return listed._replace(
            state=str(held.group.state),
            protocol_type=held.group.protocol_type or "",
            group_type="consumer" if isinstance(held.group, ServedConsumerGroup) else "classic",
        )

    async def describe(self, group_id: str) -> Description:
        held = await self._hold(group_id, create=False)
        if held is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        group = held.group
        if isinstance(group, ServedConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a classic group.")
        is_stable = group.state is GroupState.STABLE
        return Description(
            group_id,
            str(group.state),
            group.protocol_type or "",
            (group.protocol_name or "") if is_stable else "",
            tuple(group.members.values()),
        )

    async def describe_consumer(self, group_id: str) -> ConsumerDescription:
        held = await self._hold(group_id, create=False)
        if held is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        if not isinstance(group := held.group, ServedConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        topics = await self._topics.current(is_fresh=False)
        names = {topic.uuid: name for name, topic in topics.by_name.items()}
        return ConsumerDescription(group.value, group.assignor, names)

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        held = await self._hold(group_id, create=False)
        if held is None:
            raise GroupIdNotFound(f"there is no group {group_id}")
        await self._shielded(self._delete(held))

    async def _delete(self, held: _Held) -> None:
        async with held.lock:
            self._require_held(held)
            if held.group.state is not GroupState.EMPTY:
                raise NonEmptyGroup(f"group {held.group_id} has members")
            is_deleted = await storage.delete(self._database, held.group_id, epoch=held.epoch)
            self._forget(held, CoordinatorNotAvailable("the group was deleted"))
        if not is_deleted:
            raise NotCoordinator("another gateway coordinates this group")

    # --- groups in memory ---------------------------------------------------------------------

    async def _require(self, group_id: str) -> _Held:
        """The group of somebody who says to be its member."""
        held = await self._hold(group_id, create=False)
        if held is None:
            raise UnknownMemberId(f"there is no group {group_id}")
        return held

    async def _hold(self, group_id: str, *, create: bool) -> _Held | None:
        """The group, claimed by this gateway; None when there is no such group."""
        self._require_coordinator(group_id)
        held = self._held.get(group_id)
        if held is None:
            lock = self._claiming.setdefault(group_id, asyncio.Lock())
            async with lock:
                held = self._held.get(group_id)
                if held is None:
                    held = await self._shielded(self._claim(group_id, create=create))
        if held is not None:
            held.used_at = monotonic_seconds()
        return held

    async def _claim(self, group_id: str, *, create: bool) -> _Held | None:
        try:
            async with self._database.transaction() as transaction:
                claimed = await storage.claim(transaction, group_id, node_id=self._node_id, create=create)
                if claimed is None:
                    return None
                loaded: GroupSnapshot | ConsumerGroup
                if claimed.group_type == "consumer":
                    loaded = await consumer_storage.load(transaction, group_id, group_epoch=claimed.generation)
                else:
                    loaded = await storage.load_classic(transaction, group_id, claimed)
            topics = await self._topics.current(is_fresh=False)
        except DATABASE_ERRORS as error:
            log.warning("a group cannot be loaded", group=group_id, error=str(error))
            raise CoordinatorNotAvailable("the database is not available; try again") from error
        if self._is_closing:
            raise NotCoordinator("this gateway stops; ask who coordinates the group")
        group: Group
        if isinstance(loaded, ConsumerGroup):
            group = ServedConsumerGroup(self._rules, loaded, topics=topics, is_saved=True, now_ms=_now_ms())
        else:
            group = ClassicGroup(self._limits, loaded, now_ms=_now_ms())
        held = _Held(group_id, claimed.epoch, group, claimed.state, monotonic_seconds())
        self._held[group_id] = held
        self._arm(held)
        if loaded.members:
            log.info("group taken over", group=group_id, generation=group.generation, members=len(loaded.members))
        return held

    def _require_coordinator(self, group_id: str) -> None:
        if not group_id or "\0" in group_id:
            raise InvalidGroupId("a group needs an id, without NUL characters")
        if self._is_closing or self._cluster.coordinator_of(group_id).node_id != self._node_id:
            held = self._held.get(group_id)
            if held is not None:
                self._forget(held, NotCoordinator("another gateway coordinates this group now"))
            raise NotCoordinator("another gateway coordinates this group")

    def _require_held(self, held: _Held) -> None:
        """It may have been lost while somebody waited for its lock."""
        if self._held.get(held.group_id) is not held:
            raise NotCoordinator("the group has moved; ask who coordinates it")

    def _lost(self, group_id: str, epoch: int) -> None:
        held = self._held.get(group_id)
        if held is not None and held.epoch == epoch:
            log.warning("another gateway has taken over a group", group=group_id, epoch=epoch)
            self._forget(held, NotCoordinator("another gateway coordinates this group"))

    def _forget(self, held: _Held, error: KafkaError) -> None:
        """Drop a group from memory; whoever waits is told `error`."""
        if self._held.get(held.group_id) is held:
            del self._held[held.group_id]
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None
        held.group.kill(error)
        held.group.take_step()
        for answer in held.waiting.values():
            _refuse(answer, error)
        held.waiting.clear()

    # --- changes ------------------------------------------------------------------------------

    def _new_ticket(self, held: _Held) -> tuple[Ticket, asyncio.Future[Answer]]:
        ticket = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        held.waiting[ticket] = answer
        return ticket, answer

    async def _change(self, held: _Held, act: Callable[[Group], T], ticket: Ticket | None = None) -> T:
        """Let `act` change the group, write down what must be, then answer whoever waited for it.

        Others wait for those answers too, so a client that goes away does not stop it half-way.
        """
        try:
            return await self._shielded(self._change_now(held, act))
        except BaseException:
            held.waiting.pop(ticket, None)
            raise

    async def _change_now(self, held: _Held, act: Callable[[Group], T]) -> T:
        async with held.lock:
            self._require_held(held)
            try:
                return act(held.group)
            finally:
                await self._finish_step(held)

    async def _finish_step(self, held: _Held) -> None:
        self._downgrade_if_due(held)
        step = held.group.take_step()
        if step.must_save:
            await self._save(held)
        self._answer(held, step)
        self._arm(held)

    def _answer(self, held: _Held, step: Step) -> None:
        for ticket, result in step.answers:
            answer = held.waiting.pop(ticket, None)
            if answer is None or answer.done():
                continue
            if isinstance(result, KafkaError):
                _refuse(answer, result)
            else:
                answer.set_result(result)

    async def _save(self, held: _Held) -> None:
        """Write the group down as it is now. If that fails it is forgotten, and all who wait are refused."""
        group = held.group
        error: KafkaError | None = None
        # Members of the consumer protocol reconcile one by one: that is no news, a new epoch is.
        is_news = not isinstance(group, ServedConsumerGroup) or group.has_new_epoch
        try:
            state = str(group.state)
            if await self._write(held):
                held.shown_state = state
                (log.info if is_news else log.debug)(
                    "group saved",
                    group=held.group_id,
                    state=state,
                    generation=group.generation,
                    members=len(group.member_ids),
                )
            else:
                error = NotCoordinator("another gateway coordinates this group")
                log.warning("another gateway has taken over a group", group=held.group_id, epoch=held.epoch)
        except DATABASE_ERRORS as failure:
            log.warning("a group could not be saved", group=held.group_id, error=str(failure))
            error = CoordinatorNotAvailable("the database is not available; try again")
        if error is not None:
            self._forget(held, error)
            raise error

    async def _write(self, held: _Held) -> bool:
        group = held.group
        if isinstance(group, ClassicGroup):
            return await storage.save_classic(
                self._database, held.group_id, group.snapshot(), epoch=held.epoch, state=str(group.state)
            )
        value = group.value
        is_written = await consumer_storage.save(
            self._database,
            value,
            group.saved,
            epoch=held.epoch,
            assignor=group.assignor,
            session_timeout_ms=self._rules.session_timeout_ms,
        )
        group.saved = value
        return is_written

    # --- two protocols ------------------------------------------------------------------------

    async def _topics_for(self, held: _Held, *, is_fresh: bool) -> Topics:
        """The topics, where the group is one that has to know them."""
        if isinstance(held.group, ServedConsumerGroup):
            return await self._topics.current(is_fresh=is_fresh)
        return Topics({})

    def _served(self, held: _Held, topics: Topics, *, may_upgrade: bool) -> ServedConsumerGroup:
        """The group as one of the consumer protocol; what it would become if it is a classic one."""
        group = held.group
        if isinstance(group, ServedConsumerGroup):
            group.topics = topics
            return group
        if not may_upgrade:
            raise GroupIdNotFound(f"Group {held.group_id} is not a consumer group.")
        if len(group.members) >= self._rules.max_size:
            raise GroupMaxSizeReached(f"Group {held.group_id} has too many members to become a consumer group.")
        value = interop.upgrade(held.group_id, group.snapshot(), topics)
        if value.members:
            log.info("group becomes one of the consumer protocol", group=held.group_id, members=len(value.members))
        return ServedConsumerGroup(self._rules, value, topics=topics, is_saved=False, now_ms=_now_ms())

    def _downgrade_if_due(self, held: _Held) -> None:
        """The last member of the consumer protocol has gone, classic ones are left: they rebalance as they used to."""
        group = held.group
        if not isinstance(group, ServedConsumerGroup) or group.state is GroupState.DEAD:
            return
        if not interop.can_downgrade(group.value, classic_max_size=self._limits.max_size):
            return
        self._answer(held, group.take_step())
        snapshot = interop.downgrade(group.value, group.topics)
        held.group = classic = ClassicGroup(self._limits, snapshot, now_ms=_now_ms())
        classic.rebalance(now_ms=_now_ms())
        log.info("group becomes a classic one", group=held.group_id, members=len(snapshot.members))

    # --- time ---------------------------------------------------------------------------------

    def _arm(self, held: _Held) -> None:
        """See to it that the group is looked at when its next deadline has passed."""
        deadline_ms = held.group.next_deadline_ms()
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None
        if deadline_ms is not None and self._held.get(held.group_id) is held:
            loop = asyncio.get_running_loop()
            delay = max(deadline_ms / 1000 - monotonic_seconds(), 0) + 0.001
            held.timer = loop.call_later(delay, self._timer_fired, held, loop.time() + delay)

    def _timer_fired(self, held: _Held, due_at: float) -> None:
        held.timer = None
        loop = asyncio.get_running_loop()
        if loop.time() - due_at > LATE_SECONDS:
            # The process stood still: signs of life may wait in the sockets, and they are heard first.
            held.timer = loop.call_later(LATE_SECONDS, self._timer_fired, held, math.inf)
            return
        deadline_ms = held.group.next_deadline_ms()
        if deadline_ms is None or deadline_ms > _now_ms():  # heartbeats move deadlines without moving the timer
            self._arm(held)
            return
        self._spawn(self._expire(held))

    async def _expire(self, held: _Held) -> None:
        try:
            self._require_coordinator(held.group_id)
            before = held.group.member_ids
            await self._change_now(held, lambda group: group.expire(now_ms=_now_ms()))
            for member_id in before - held.group.member_ids:
                log.info("member removed", group=held.group_id, member=member_id)
        except NotCoordinator:
            pass  # it is somebody else's now
        except CoordinatorNotAvailable:
            if self._held.get(held.group_id) is held:  # cut off from the others: nobody is judged meanwhile
                loop = asyncio.get_running_loop()
                held.timer = loop.call_later(TICK_SECONDS, self._timer_fired, held, math.inf)

    # --- now and then -------------------------------------------------------------------------

    async def _run(self) -> None:
        ticks = 0
        while True:
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._must_look_around.wait()
            except TimeoutError:
                pass
            ticks += 1
            try:
                await self._show_states()
                if self._must_look_around.is_set() or ticks % LOOK_AROUND_TICKS == 1:
                    self._must_look_around.clear()
                    await self._look_around()
            except (KafkaError, *DATABASE_ERRORS) as error:
                log.warning("groups are looked after later", error=str(error))
                await asyncio.sleep(TICK_SECONDS)

    async def _show_states(self) -> None:
        changed = [
            held for held in self._held.values() if held.shown_state != held.group.state and not held.lock.locked()
        ]
        if changed:
            states = [(held.group_id, held.epoch, str(held.group.state)) for held in changed]
            await storage.show_states(self._database, states)
            for held, (_, _, state) in zip(changed, states, strict=True):
                held.shown_state = state

    async def _look_around(self) -> None:
        """Let go of what is another's, take over what is ours: members' sessions end even if nobody asks."""
        for held in list(self._held.values()):
            if not self._cluster.is_coordinator_of(held.group_id) and self._cluster.is_member:
                self._forget(held, NotCoordinator("another gateway coordinates this group now"))
            elif not held.group.is_waited_for and monotonic_seconds() - held.used_at > FORGET_EMPTY_SECONDS:
                self._forget(held, NotCoordinator("the group was idle; ask again"))
        if self._held:
            for group_id in await storage.find_lost(
                self._database, [(held.group_id, held.epoch) for held in self._held.values()]
            ):
                if (lost := self._held.get(group_id)) is not None:
                    # Claimed anew by ourselves while the question was under way, it would be found lost wrongly.
                    still = await storage.find_lost(self._database, [(group_id, lost.epoch)])
                    if still:
                        self._lost(group_id, lost.epoch)
        for group_id in await storage.find_busy(self._database):
            if group_id not in self._held and self._cluster.is_coordinator_of(group_id):
                await self._hold(group_id, create=False)

    # --- tasks --------------------------------------------------------------------------------

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(cast(asyncio.Task[Any], task))
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, KafkaError):
            log.error("work on a group failed", exc_info=error)


def _now_ms() -> int:
    return int(monotonic_seconds() * 1000)


def _refuse(answer: asyncio.Future[Answer], error: KafkaError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # whoever asked may be gone; nobody else need hear of it


def _readable(text: str) -> str:
    """PostgreSQL's text cannot hold a NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
