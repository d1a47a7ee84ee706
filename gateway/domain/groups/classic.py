"""The classic group protocol: who is a member, which generation it is, who waits for what.

A group's members join; when all that must have done so, a generation begins, and its leader hands out assignments
with SyncGroup. Time is given with each call, in milliseconds of any clock that does not jump. Nothing is awaited here:
whoever has to wait does so under a ticket, and each call is followed by `take_step`, which says who is answered and
whether the group must be written down first.

    Empty -> PreparingRebalance: somebody joins
    PreparingRebalance -> CompletingRebalance: all have joined, or the time is over
    CompletingRebalance -> Stable: the leader has sent assignments
    Stable, CompletingRebalance -> PreparingRebalance: members come, go, expire or change what they support
    PreparingRebalance -> Empty: nobody is left
    any -> Dead: the group is deleted, or another gateway looks after it
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from gateway.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)

__all__ = [
    "ClassicGroup",
    "GroupSnapshot",
    "GroupState",
    "Identity",
    "JoinRequest",
    "Joined",
    "JoinedMember",
    "Limits",
    "MemberSnapshot",
    "Protocols",
    "Step",
    "Synced",
    "Ticket",
]

Ticket: TypeAlias = Hashable
"""Whatever the caller knows a waiting request by."""

Protocols: TypeAlias = "tuple[tuple[str, bytes], ...]"
"""What a member supports, best first: a name and what it wants the leader to know."""

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""A new member cannot send heartbeats while its JoinGroup waits; after this it is taken for gone."""


class GroupState(enum.StrEnum):
    """Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    ASSIGNING = "Assigning"  # these two are of the consumer protocol (KIP-848)
    RECONCILING = "Reconciling"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator allows."""

    initial_rebalance_delay_ms: int = 3000
    max_size: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request. `new_member_id` is for the member if it has none: chance is the caller's affair."""

    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    must_know_its_id: bool = True  # KIP-394: a dynamic member is first given an id, and joins with it
    may_skip_assignment: bool = True  # KIP-814: a returning static leader is told not to assign anew


class JoinedMember(NamedTuple):
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to JoinGroup."""

    member_id: str
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to SyncGroup."""

    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class Identity(NamedTuple):
    """A member as LeaveGroup names it: by its id, its instance id, or both."""

    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """What of a member outlives its coordinator."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """What of a group outlives its coordinator: its last generation that was Stable, or Empty."""

    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(slots=True)
class Step:
    """What a call led to: answers, to be given once the group is written down where `must_save` says so."""

    answers: list[tuple[Ticket, Joined | Synced | KafkaError]] = field(default_factory=list)
    must_save: bool = False


@dataclass(slots=True)
class Member:
    """A member while its group is looked after."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    session_ends_ms: int = 0
    is_new: bool = False
    joining: Ticket | None = None
    syncing: Ticket | None = None

    @property
    def expires_ms(self) -> int | None:
        """When the member is taken for gone; None while it waits for an answer of ours."""
        is_waiting = self.joining is not None or self.syncing is not None
        return None if is_waiting and not self.is_new else self.session_ends_ms

    @property
    def protocol_names(self) -> list[str]:
        return [name for name, _ in self.protocols]

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def update(self, request: JoinRequest, ticket: Ticket) -> None:
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.joining = ticket


class _Kind(enum.IntEnum):
    SESSION = 0
    JOIN = 1
    SYNC = 2


class _Deadline(NamedTuple):
    ends_ms: int
    kind: _Kind
    member_id: str


class ClassicGroup:
    """One group. Every method that changes it is followed by `take_step`, also after a refusal."""

    def __init__(self, limits: Limits, snapshot: GroupSnapshot | None = None, *, now_ms: int = 0) -> None:
        """A new group, or one as it was written down: its members have a session to find their new coordinator."""
        stored = snapshot or GroupSnapshot()
        self._limits = limits
        self.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol_name = stored.protocol_name
        self.leader_id = stored.leader_id
        self.members: dict[str, Member] = {}
        for one in stored.members:
            self.members[one.member_id] = Member(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.session_timeout_ms,
                one.rebalance_timeout_ms,
                one.protocols,
                one.assignment,
                session_ends_ms=now_ms + one.session_timeout_ms,
            )
        self._pending: dict[str, int] = {}  # ids given out whose members have yet to join, until when
        self._unsynced: set[str] = set()
        self._join_ends_ms: int | None = None
        self._sync_ends_ms: int | None = None
        # Of a rebalance that began while the group was empty: more members are waited for, as long as they come.
        self._is_initial = False
        self._initial_left_ms = 0
        self._initial_delay_ms = 0
        self._has_new_members = False
        self._step = Step()

    # --- what is asked ------------------------------------------------------------------------

    def take_step(self) -> Step:
        step, self._step = self._step, Step()
        return step

    def snapshot(self) -> GroupSnapshot:
        return GroupSnapshot(
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader_id,
            tuple(
                MemberSnapshot(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.client_host,
                    one.session_timeout_ms,
                    one.rebalance_timeout_ms,
                    one.protocols,
                    one.assignment,
                )
                for one in self.members.values()
            ),
        )

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody was given an id, has joined or is joining: such a group stays in memory."""
        return bool(self.members or self._pending)

    @property
    def member_ids(self) -> set[str]:
        return set(self.members)

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do, if nothing happens before."""
        return min((one.ends_ms for one in self._deadlines()), default=None)

    def find_static(self, instance_id: str) -> Member | None:
        return next((one for one in self.members.values() if one.instance_id == instance_id), None)

    def require_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member; refused when it is unknown, or another one has its instance id."""
        if instance_id is not None:
            known = self.find_static(instance_id)
            if known is None:
                raise UnknownMemberId(f"no member has the instance id {instance_id}")
            if known.member_id != member_id:
                raise FencedInstanceId(f"instance id {instance_id} belongs to member {known.member_id} now")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"no member {member_id!r} in this group")
        return member

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, is_transactional: bool, now_ms: int
    ) -> None:
        """May these offsets be committed? Asking is a sign of life."""
        self._require_alive()
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # a consumer that assigns itself, or a tool that resets offsets
        if generation >= 0 or member_id or instance_id is not None:
            member = self.require_member(member_id, instance_id)
            self._require_generation(generation)
            self._renew_session(member, now_ms)
        elif not is_transactional and self.state is not GroupState.EMPTY:
            raise UnknownMemberId("the group has members: only they may commit")
        if not is_transactional and self.state is GroupState.COMPLETING:
            raise RebalanceInProgress("the group is rebalancing")

    # --- what happens -------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: Ticket, *, now_ms: int) -> None:
        """JoinGroup: refused at once, or answered under its ticket, now or later."""
        self._require_alive()
        if not self._has_room_for(request.member_id):
            self._remove(request.member_id)
            raise GroupMaxSizeReached(f"the group has {self._limits.max_size} members, as many as it may")
        if not self._supports(request):
            raise InconsistentGroupProtocol(
                f"the group is of type {self.protocol_type} and its members have no protocol in common with"
                f" {[name for name, _ in request.protocols]} of type {request.protocol_type!r}"
            )
        if request.member_id:
            self._join_again(request, ticket, now_ms)
        elif request.instance_id is not None:
            known = self.find_static(request.instance_id)
            if known is not None:
                self._replace_static(known, request, ticket, now_ms)
            else:
                self._add(request.new_member_id, request, ticket, now_ms)
        elif request.must_know_its_id:
            self._pending[request.new_member_id] = now_ms + request.session_timeout_ms
            raise MemberIdRequired(request.new_member_id)
        else:
            self._add(request.new_member_id, request, ticket, now_ms)

    def sync(
        self,
        ticket: Ticket,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Iterable[tuple[str, bytes]],
        now_ms: int,
    ) -> None:
        """SyncGroup: refused at once, or answered under its ticket when the leader has spoken."""
        self._require_alive()
        if self.state is GroupState.EMPTY:
            raise UnknownMemberId("the group is empty")
        member = self.require_member(member_id, instance_id)
        self._require_generation(generation)
        for asked, actual in ((protocol_type, self.protocol_type), (protocol_name, self.protocol_name)):
            if asked is not None and actual is not None and asked != actual:
                raise InconsistentGroupProtocol(f"the group uses {actual}, not {asked}")
        if self.state is GroupState.PREPARING:
            raise RebalanceInProgress("the group is rebalancing")
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._sync_ends_ms = None
        if self.state is GroupState.STABLE:
            self._answer(ticket, self._synced(member))
            return
        self._supersede(member)
        member.syncing = ticket
        if member_id == self.leader_id:
            given = dict(assignments)
            for one in self.members.values():
                one.assignment = given.get(one.member_id, b"")
            self.state = GroupState.STABLE
            self._step.must_save = True
            for one in self.members.values():
                if one.syncing is not None:
                    self._answer(one.syncing, self._synced(one))
                    one.syncing = None
                    self._renew_session(one, now_ms)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, *, now_ms: int) -> None:
        """A sign of life; refused when the member has to join again."""
        self._require_alive()
        member = self.require_member(member_id, instance_id)
        self._require_generation(generation)
        self._renew_session(member, now_ms)
        if self.state is GroupState.PREPARING:
            raise RebalanceInProgress("the group is rebalancing")

    def leave(self, identities: Sequence[Identity], *, now_ms: int) -> list[KafkaError | None]:
        """LeaveGroup: what becomes of each, None where it left."""
        self._require_alive()
        outcomes: list[KafkaError | None] = []
        for identity in identities:
            try:
                self._leave(identity)
                outcomes.append(None)
            except KafkaError as error:
                outcomes.append(error)
        if None in outcomes:
            if self.state in (GroupState.STABLE, GroupState.COMPLETING):
                self._prepare(now_ms)
            elif self.state is GroupState.PREPARING:
                self._complete_if_all_joined(now_ms)
        return outcomes

    def rebalance(self, *, now_ms: int) -> None:
        """All members have to join again; that it is a classic group is written down at once."""
        self._prepare(now_ms)
        self._step.must_save = True

    def expire(self, *, now_ms: int) -> None:
        """Act on every deadline that has passed, in their order."""
        while True:
            due = min((one for one in self._deadlines() if one.ends_ms <= now_ms), default=None)
            if due is None:
                return
            match due.kind:
                case _Kind.JOIN:
                    self._join_time_is_over(now_ms)
                case _Kind.SYNC:
                    self._sync_time_is_over(now_ms)
                case _Kind.SESSION:
                    self._session_is_over(due.member_id, now_ms)

    def kill(self, error: KafkaError) -> None:
        """The group is gone or another gateway's: whoever waits is told so."""
        self.state = GroupState.DEAD
        for member in self.members.values():
            self._release(member, error)
        self.members.clear()
        self._pending.clear()
        self._join_ends_ms = self._sync_ends_ms = None

    # --- joining ------------------------------------------------------------------------------

    def _join_again(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        if request.member_id in self._pending and request.instance_id is None:
            self._add(request.member_id, request, ticket, now_ms)
            return
        member = self.require_member(request.member_id, request.instance_id)
        is_same = member.protocols == request.protocols
        is_leader = member.member_id == self.leader_id
        # A member whose answer was lost asks again and is answered again. A leader of a stable group that joins wants
        # to assign anew, perhaps because topics have changed.
        if is_same and (self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not is_leader)):
            self._answer(ticket, self._joined(member))
            return
        self._supersede(member)
        member.update(request, ticket)
        self._prepare_or_complete(now_ms)

    def _add(self, member_id: str, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        if self.leader_id is None:
            self.leader_id = member_id
        self._pending.pop(member_id, None)
        self._has_new_members = self._has_new_members or (self.state is GroupState.PREPARING and self._is_initial)
        self.members[member_id] = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            session_ends_ms=now_ms + NEW_MEMBER_TIMEOUT_MS,
            is_new=True,
            joining=ticket,
        )
        self._prepare_or_complete(now_ms)

    def _replace_static(self, old: Member, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        """A static member came back under its instance id: whoever had it before is fenced (KIP-345)."""
        old_id, was_leader = old.member_id, old.member_id == self.leader_id
        self._release(old, FencedInstanceId(f"another member took over instance id {request.instance_id}"))
        member = Member(
            request.new_member_id,
            old.instance_id,
            request.client_id,
            request.client_host,
            old.session_timeout_ms,
            old.rebalance_timeout_ms,
            old.protocols,
            old.assignment,
        )
        # In its predecessor's place: who leads next depends on the order.
        self.members = {
            (member.member_id if one is old else one.member_id): (member if one is old else one)
            for one in self.members.values()
        }
        if was_leader:
            self.leader_id = member.member_id
        self._unsynced.discard(old_id)
        member.update(request, ticket)
        self._renew_session(member, now_ms)
        if self.state is GroupState.STABLE and self._select_protocol() == self.protocol_name:
            # It gets what its predecessor had, without a rebalance.
            member.joining = None
            self._step.must_save = True
            joined = self._joined(member)
            if request.may_skip_assignment:
                joined = replace(joined, skip_assignment=was_leader)
            elif was_leader:
                # An old client that is told it leads would assign anew: it is told of the id that it no longer has.
                joined = replace(joined, leader_id=old_id, members=())
            self._answer(ticket, joined)
        else:
            self._prepare_or_complete(now_ms)

    def _prepare_or_complete(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING:
            self._complete_if_all_joined(now_ms)
        else:
            self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> None:
        """Begin a rebalance."""
        if self.state is GroupState.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                if member.syncing is not None:
                    self._answer(member.syncing, RebalanceInProgress("the group is rebalancing"))
                    member.syncing = None
                    self._renew_session(member, now_ms)
        self._unsynced.clear()
        self._sync_ends_ms = None
        self._is_initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        if self._is_initial:
            self._has_new_members = False
            self._initial_delay_ms = self._limits.initial_rebalance_delay_ms
            self._initial_left_ms = max(self._rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._join_ends_ms = now_ms + self._initial_delay_ms
            if self._initial_delay_ms == 0:
                self._join_time_is_over(now_ms)
        elif self._have_all_joined:
            self._complete(now_ms)
        else:
            self._join_ends_ms = now_ms + self._rebalance_timeout_ms

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if not self._is_initial and self._have_all_joined:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """Begin a generation with those who joined; static members keep their place for a session."""
        self._join_ends_ms = None
        for member in [one for one in self.members.values() if one.joining is None and one.instance_id is None]:
            self._remove(member.member_id)
        if self.members and not self._elect_leader():
            # Only static members are left, and none joined: until their sessions end, there is nobody to lead.
            self._join_ends_ms = now_ms + max(self._rebalance_timeout_ms, 1)
            self._is_initial = False
            return
        self.generation = self.generation + 1 if self.generation < 2**31 - 1 else 1
        self._is_initial = False
        self._unsynced.clear()
        if not self.members:
            self.protocol_name = None
            self.state = GroupState.EMPTY
            self._step.must_save = True
            return
        self.protocol_name = self._select_protocol()
        self.state = GroupState.COMPLETING
        for member in self.members.values():
            if member.joining is not None:
                self._answer(member.joining, self._joined(member))
                member.joining = None
            member.is_new = False
            self._renew_session(member, now_ms)
            self._unsynced.add(member.member_id)
        self._sync_ends_ms = now_ms + self._rebalance_timeout_ms

    # --- time ---------------------------------------------------------------------------------

    def _deadlines(self) -> Iterable[_Deadline]:
        if self._join_ends_ms is not None:
            yield _Deadline(self._join_ends_ms, _Kind.JOIN, "")
        if self._sync_ends_ms is not None:
            yield _Deadline(self._sync_ends_ms, _Kind.SYNC, "")
        for member_id, ends_ms in self._pending.items():
            yield _Deadline(ends_ms, _Kind.SESSION, member_id)
        for member in self.members.values():
            if (expires_ms := member.expires_ms) is not None:
                yield _Deadline(expires_ms, _Kind.SESSION, member.member_id)

    def _join_time_is_over(self, now_ms: int) -> None:
        if self._is_initial and self._has_new_members and self._initial_left_ms > 0:
            self._has_new_members = False
            delay_ms = min(self._limits.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay_ms
            self._join_ends_ms = now_ms + delay_ms
        else:
            self._complete(now_ms)

    def _sync_time_is_over(self, now_ms: int) -> None:
        """Those who joined and never came for their assignment are gone."""
        self._sync_ends_ms = None
        for member_id in list(self._unsynced):
            self._remove(member_id)
        self._prepare(now_ms)

    def _session_is_over(self, member_id: str, now_ms: int) -> None:
        was_member = member_id in self.members
        self._remove(member_id)
        if was_member and self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(now_ms)
        elif self.state is GroupState.PREPARING and self._have_all_joined:
            self._complete(now_ms)

    # --- members ------------------------------------------------------------------------------

    def _leave(self, identity: Identity) -> None:
        member_id, instance_id = identity
        if not member_id:  # an administrator names the instance alone
            static = self.find_static(instance_id) if instance_id is not None else None
            if static is None:
                raise UnknownMemberId(f"no member has the instance id {instance_id}")
            member_id = static.member_id
        elif member_id not in self._pending:
            self.require_member(member_id, instance_id)
        self._remove(member_id)

    def _remove(self, member_id: str) -> None:
        self._pending.pop(member_id, None)
        self._unsynced.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._release(member, UnknownMemberId(f"member {member_id} is no longer in the group"))
        if member_id == self.leader_id:
            self.leader_id = next(iter(self.members), None)

    def _supersede(self, member: Member) -> None:
        """The member sent another request, so nobody is there for the answer to its earlier one."""
        self._release(member, RebalanceInProgress("the member asked again"))

    def _release(self, member: Member, error: KafkaError) -> None:
        for ticket in (member.joining, member.syncing):
            if ticket is not None:
                self._answer(ticket, error)
        member.joining = member.syncing = None

    def _elect_leader(self) -> bool:
        """The leader must have joined; else the first that did leads."""
        joined = [one.member_id for one in self.members.values() if one.joining is not None]
        if joined and self.leader_id not in joined:
            self.leader_id = joined[0]
        return bool(joined)

    def _select_protocol(self) -> str:
        """Of the protocols that all members support, the one that most like best."""
        first, *others = [one.protocol_names for one in self.members.values()]
        candidates = set(first).intersection(*others)
        votes: dict[str, int] = {}
        for names in (first, *others):
            best = next(name for name in names if name in candidates)
            votes[best] = votes.get(best, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _supports(self, request: JoinRequest) -> bool:
        names = [name for name, _ in request.protocols]
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type and names)
        return request.protocol_type == self.protocol_type and any(
            all(name in one.protocol_names for one in self.members.values()) for name in names
        )

    def _has_room_for(self, member_id: str) -> bool:
        match self.state:
            case GroupState.PREPARING:
                known = self.members.get(member_id)
                joined = sum(1 for one in self.members.values() if one.joining is not None)
                return (known is not None and known.joining is not None) or joined < self._limits.max_size
            case GroupState.COMPLETING | GroupState.STABLE:
                return member_id in self.members or len(self.members) < self._limits.max_size
        return True

    @property
    def _have_all_joined(self) -> bool:
        return not self._pending and all(one.joining is not None for one in self.members.values())

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((one.rebalance_timeout_ms for one in self.members.values()), default=0)

    # --- answers ------------------------------------------------------------------------------

    def _answer(self, ticket: Ticket, result: Joined | Synced | KafkaError) -> None:
        self._step.answers.append((ticket, result))

    def _joined(self, member: Member) -> Joined:
        leads = member.member_id == self.leader_id
        return Joined(
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or "",
            tuple(
                JoinedMember(one.member_id, one.instance_id, one.metadata(self.protocol_name))
                for one in self.members.values()
            )
            if leads
            else (),
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol_name, member.assignment)

    def _renew_session(self, member: Member, now_ms: int) -> None:
        member.session_ends_ms = now_ms + (NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms)

    def _require_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(f"the group's generation is {self.generation}, received {generation}")

    def _require_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable("the group is gone; ask who coordinates it")
