"""The consumer group (KIP-848): members say what they want and have, the group answers what they are to have.

Values and pure functions, with the time given. Three epochs drive it: the group's grows when members, subscriptions
or topics change; the target assignment's follows when the target is computed; a member's follows when it has given
up what the target takes from it. A refusal is a KafkaError and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from gateway.domain.groups.assignors import ASSIGNORS, Candidate, Partition
from gateway.domain.groups.reconciliation import Member, MemberState, Ownership, reconcile
from gateway.domain.groups.subscriptions import Resolved, Topics, check_pattern, resolve
from gateway.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)

__all__ = [
    "JOINING",
    "LEAVING",
    "LEAVING_FOR_A_WHILE",
    "ConsumerGroup",
    "Expired",
    "Heartbeat",
    "Reply",
    "Rules",
    "check_commit",
    "check_fetch",
    "check_request",
    "expire",
    "heartbeat",
    "leave",
    "next_deadline_ms",
    "restore",
]

JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""A static member that will be back within its session timeout."""


class Rules(NamedTuple):
    """What the operator set, under Kafka's names `group.consumer.…`."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """A group, as it is stored, and what was made of the topics last."""

    group_id: str
    epoch: int = 0
    target_epoch: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    target: Mapping[str, frozenset[Partition]] = field(default_factory=dict)
    topics_version: int | None = field(default=None, compare=False)
    resolved: Resolved = field(default_factory=dict, compare=False)

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        is_settled = all(member.is_reconciled_to(self.target_epoch) for member in self.members.values())
        return "Stable" if is_settled else "Reconciling"

    def static_member(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((one for one in self.members.values() if one.instance_id == instance_id), None)

    def assignor(self, rules: Rules) -> str:
        """The assignor most members ask for; the operator's first one if none of them asks."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor in rules.assignors)
        return max(rules.assignors, key=lambda name: votes[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a member says. None: as before."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topic_names: frozenset[str] | None = None
    topic_pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[Partition] | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """A member sends everything when it joins, and when it does not know what became of its last request."""
        names_topics = self.topic_names is not None or self.topic_pattern is not None
        return self.rebalance_timeout_ms is not None and names_topics and self.owned is not None


class Reply(NamedTuple):
    """What the member is told; `assignment` is None where it is as before."""

    member_id: str
    epoch: int
    assignment: frozenset[Partition] | None = None


class Expired(NamedTuple):
    """A member that was removed because it did not do something in time."""

    member_id: str
    reason: str


def check_request(said: Heartbeat, *, rules: Rules, version: int) -> None:
    """Refuse a heartbeat that contradicts itself, whatever the group is."""
    if said.epoch < LEAVING_FOR_A_WHILE:
        raise InvalidRequest(f"MemberEpoch is {said.epoch}")
    if not said.member_id and (version >= 1 or said.epoch != JOINING):
        raise InvalidRequest("MemberId can't be empty.")
    if said.instance_id == "" or said.rack_id == "":
        raise InvalidRequest("InstanceId and RackId can't be empty.")
    if said.epoch == LEAVING_FOR_A_WHILE and said.instance_id is None:
        raise InvalidRequest("InstanceId can't be null: only a static member leaves for a while.")
    if said.epoch == JOINING:
        _check_join(said, version=version)
    if said.assignor is not None and said.assignor not in rules.assignors:
        supported = ", ".join(rules.assignors)
        raise UnsupportedAssignor(f"ServerAssignor {said.assignor} is not supported. Supported assignors: {supported}.")


def _check_join(said: Heartbeat, *, version: int) -> None:
    if said.rebalance_timeout_ms is None:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if said.owned is None or said.owned:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if said.topic_names is None and (version == 0 or said.topic_pattern is None):
        raise InvalidRequest("SubscribedTopicNames or SubscribedTopicRegex must be set when (re-)joining.")


def heartbeat(
    group: ConsumerGroup, said: Heartbeat, *, topics: Topics, rules: Rules, now_ms: int
) -> tuple[ConsumerGroup, Reply]:
    """A member joins, rejoins or goes on."""
    is_known = said.member_id in group.members or group.static_member(said.instance_id) is not None
    if said.epoch == JOINING and len(group.members) >= rules.max_size and not is_known:
        raise GroupMaxSizeReached(f"The consumer group has reached its maximum capacity of {rules.max_size} members.")
    group, before = _find(group, said)
    member = _heard(before, said)
    group, member = move_on(group, before, member, owned=said.owned, topics=topics, rules=rules)
    member = replace(
        member,
        session_ends_ms=now_ms + rules.session_timeout_ms,
        rebalance_ends_ms=_rebalance_deadline(before, member, now_ms=now_ms),
        join_ends_ms=None,
        sync_ends_ms=None,
    )
    group = with_member(group, member)
    is_news = said.epoch == JOINING or said.is_full or before.assigned.keys() != member.assigned.keys()
    return group, Reply(member.member_id, member.epoch, frozenset(member.assigned) if is_news else None)


def _find(group: ConsumerGroup, said: Heartbeat) -> tuple[ConsumerGroup, Member]:
    """The member that speaks, a new one, or the successor of a static one."""
    static = group.static_member(said.instance_id)
    if said.instance_id is None:
        member = group.members.get(said.member_id)
        if member is None:
            if said.epoch != JOINING:
                raise UnknownMemberId(f"Member {said.member_id} is not a member of group {group.group_id}.")
            return group, Member(member_id=said.member_id)
    elif said.epoch == JOINING:
        if static is None:
            return group, group.members.get(said.member_id, Member(member_id=said.member_id))
        if static.member_id == said.member_id and static.epoch != LEAVING_FOR_A_WHILE:
            return group, static
        if static.classic is None and static.epoch != LEAVING_FOR_A_WHILE:
            raise UnreleasedInstanceId(
                f"Static member {said.member_id} with instance id {said.instance_id} cannot join the group because "
                f"the instance id is owned by member {static.member_id}."
            )
        return replace_static(group, static, said.member_id)
    else:
        member = require_static(static, said.member_id, said.instance_id)
    _check_epoch(member, said)
    return group, member


def require_static(static: Member | None, member_id: str, instance_id: str) -> Member:
    """The holder of an instance id, which must be the member that speaks."""
    if static is None:
        raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
    if static.member_id != member_id:
        raise FencedInstanceId(
            f"Static member {member_id} with instance id {instance_id} was fenced by member {static.member_id}."
        )
    return static


def replace_static(group: ConsumerGroup, old: Member, member_id: str) -> tuple[ConsumerGroup, Member]:
    """A new member takes the place of a static one: its partitions, its target, and no epoch yet."""
    member = replace(
        old,
        member_id=member_id,
        epoch=0,
        previous_epoch=0,
        rebalance_ends_ms=None,
        join_ends_ms=None,
        sync_ends_ms=None,
    )
    members = {name: one for name, one in group.members.items() if name != old.member_id}
    target = {name: one for name, one in group.target.items() if name != old.member_id}
    target[member_id] = group.target.get(old.member_id, frozenset())
    return replace(group, members={**members, member_id: member}, target=target), member


def _check_epoch(member: Member, said: Heartbeat) -> None:
    if said.epoch in (JOINING, member.epoch):
        return
    # The answer that raised the epoch may have been lost: then the member has nothing it was not given.
    is_retry = said.epoch == member.previous_epoch and said.owned is not None and said.owned <= member.assigned.keys()
    if not is_retry or said.epoch > member.epoch:
        relation = "greater" if said.epoch > member.epoch else "smaller"
        raise FencedMemberEpoch(
            f"The consumer group member has a {relation} member epoch ({said.epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )


def _heard(member: Member, said: Heartbeat) -> Member:
    """The member with what it said. A pattern of length 0 is none."""
    if said.topic_pattern:
        check_pattern(said.topic_pattern)
    pattern = member.topic_pattern if said.topic_pattern is None else said.topic_pattern or None
    timeout_ms = member.rebalance_timeout_ms if said.rebalance_timeout_ms is None else said.rebalance_timeout_ms
    return replace(
        member,
        instance_id=said.instance_id or member.instance_id,
        rack_id=said.rack_id or member.rack_id,
        rebalance_timeout_ms=timeout_ms,
        assignor=said.assignor or member.assignor,
        topic_names=member.topic_names if said.topic_names is None else said.topic_names,
        topic_pattern=pattern,
        client_id=said.client_id,
        client_host=said.client_host,
        classic=None,
    )


def move_on(
    group: ConsumerGroup,
    before: Member,
    member: Member,
    *,
    owned: Collection[Partition] | None,
    topics: Topics,
    rules: Rules,
) -> tuple[ConsumerGroup, Member]:
    """Take the member as it is now, renew the target if that is due, and reconcile the member with it."""
    subscribed_anew = (before.topic_names, before.topic_pattern) != (member.topic_names, member.topic_pattern)
    is_new = member.member_id not in group.members
    group = with_member(group, member)
    if group.epoch == 0 or subscribed_anew or is_new:
        group = replace(_look_again(group, topics), epoch=group.epoch + 1)
    elif group.topics_version != topics.version:
        looked = _look_again(group, topics)
        matches_others = group.topics_version is not None and looked.resolved != group.resolved
        is_outdated = matches_others or not _covers(looked, topics)
        group = replace(looked, epoch=group.epoch + 1) if is_outdated else looked
    if group.epoch > group.target_epoch:
        group = _assign(group, topics=topics, rules=rules)
    member = reconcile(
        member,
        target=group.target.get(member.member_id, frozenset()),
        target_epoch=group.target_epoch,
        wanted_topics=_wanted(member, group.resolved, topics),
        owned=owned,
        held_by_others=_held_by_others(group, member),
    )
    return with_member(group, member), member


def _look_again(group: ConsumerGroup, topics: Topics) -> ConsumerGroup:
    patterns = {member.topic_pattern for member in group.members.values() if member.topic_pattern is not None}
    if group.topics_version == topics.version and patterns == group.resolved.keys():
        return group
    return replace(group, resolved=resolve(patterns, topics), topics_version=topics.version)


def _wanted(member: Member, resolved: Resolved, topics: Topics) -> frozenset[UUID]:
    """The topics that the member subscribes to and that exist."""
    by_pattern = resolved.get(member.topic_pattern, frozenset()) if member.topic_pattern is not None else frozenset()
    return topics.ids(member.topic_names | by_pattern)


def _covers(group: ConsumerGroup, topics: Topics) -> bool:
    """Whether the target assigns all partitions that members want, and no others."""
    counts = {topic.uuid: topic.partition_count for topic in topics.by_name.values()}
    wanted = frozenset().union(*(_wanted(member, group.resolved, topics) for member in group.members.values()))
    assigned = Counter(partition.topic for partitions in group.target.values() for partition in partitions)
    return assigned == Counter({topic: counts[topic] for topic in wanted})


def _assign(group: ConsumerGroup, *, topics: Topics, rules: Rules) -> ConsumerGroup:
    """Compute the target for the group's epoch, from what members were to have so far."""
    counts = {topic.uuid: topic.partition_count for topic in topics.by_name.values()}
    candidates = {
        name: Candidate(
            topics=_wanted(member, group.resolved, topics),
            owned=group.target.get(name, frozenset()),
            instance_id=member.instance_id,
        )
        for name, member in group.members.items()
    }
    target = ASSIGNORS[group.assignor(rules)](candidates, counts)
    return replace(group, target=target, target_epoch=group.epoch)


def _held_by_others(group: ConsumerGroup, member: Member) -> Collection[Partition]:
    held: set[Partition] = set()
    if not member.is_reconciled_to(group.target_epoch):
        for name, other in group.members.items():
            if name != member.member_id:
                held.update(other.assigned, other.revoking)
    return held


def _rebalance_deadline(before: Member, member: Member, *, now_ms: int) -> int | None:
    """How long the member may take to give up partitions; counted from the last time it was told anything new."""
    if member.state is not MemberState.UNREVOKED:
        return None
    if before.rebalance_ends_ms is not None and before.revoking == member.revoking:
        return before.rebalance_ends_ms
    return now_ms + member.rebalance_timeout_ms


def leave(group: ConsumerGroup, said: Heartbeat) -> tuple[ConsumerGroup, Reply]:
    """A member goes, for good or (static, -2) for a while."""
    if said.instance_id is None:
        member = group.members.get(said.member_id)
        if member is None:
            raise UnknownMemberId(f"Member {said.member_id} is not a member of group {group.group_id}.")
    else:
        member = require_static(group.static_member(said.instance_id), said.member_id, said.instance_id)
    reply = Reply(said.member_id, said.epoch)
    if said.epoch == LEAVING_FOR_A_WHILE:
        gone = replace(member, epoch=LEAVING_FOR_A_WHILE, revoking={}, rebalance_ends_ms=None)
        return with_member(group, gone), reply
    return without_members(group, [member.member_id]), reply


def expire(group: ConsumerGroup, *, now_ms: int) -> tuple[ConsumerGroup, list[Expired]]:
    """Remove the members whose time is over."""
    expired = []
    for member in group.members.values():
        if _is_over(member.session_ends_ms, now_ms):
            expired.append(Expired(member.member_id, "the member session expired"))
        elif _is_over(member.rebalance_ends_ms, now_ms):
            expired.append(Expired(member.member_id, f"it failed to leave epoch {member.epoch} in time"))
        elif _is_over(member.join_ends_ms, now_ms):
            expired.append(Expired(member.member_id, "the classic member failed to join within the rebalance timeout"))
        elif _is_over(member.sync_ends_ms, now_ms):
            expired.append(Expired(member.member_id, "the member failed to sync within timeout"))
    return without_members(group, [one.member_id for one in expired]), expired


def _is_over(deadline_ms: int | None, now_ms: int) -> bool:
    return deadline_ms is not None and deadline_ms <= now_ms


def next_deadline_ms(group: ConsumerGroup) -> int | None:
    """When `expire` may next have something to do."""
    deadlines = (
        deadline
        for member in group.members.values()
        for deadline in (
            member.session_ends_ms,
            member.rebalance_ends_ms,
            member.join_ends_ms,
            member.sync_ends_ms,
        )
        if deadline is not None
    )
    return min(deadlines, default=None)


def restore(group: ConsumerGroup, *, rules: Rules, now_ms: int) -> ConsumerGroup:
    """A group as another gateway left it: all clocks start anew."""
    members = {}
    for name, member in group.members.items():
        is_classic = member.classic is not None
        timeout_ms = member.classic.session_timeout_ms if member.classic is not None else rules.session_timeout_ms
        is_revoking = member.state is MemberState.UNREVOKED and not is_classic
        members[name] = replace(
            member,
            session_ends_ms=now_ms + timeout_ms,
            rebalance_ends_ms=now_ms + member.rebalance_timeout_ms if is_revoking else None,
        )
    return replace(group, members=members, topics_version=None, resolved={})


def with_member(group: ConsumerGroup, member: Member) -> ConsumerGroup:
    return replace(group, members={**group.members, member.member_id: member})


def without_members(group: ConsumerGroup, member_ids: Iterable[str]) -> ConsumerGroup:
    """Remove members. What they had is free, and a new target is due."""
    gone = frozenset(member_ids)
    if not gone:
        return group
    return replace(
        group,
        epoch=group.epoch + 1,
        members={name: member for name, member in group.members.items() if name not in gone},
        target={name: partitions for name, partitions in group.target.items() if name not in gone},
    )


def check_commit(
    group: ConsumerGroup,
    *,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Collection[Partition] | None,
) -> None:
    """Refuse an offset commit of somebody who is no member, or whose epoch is not that of what it commits for.

    Where `partitions` are not known (None), only the member's newest epoch will do.
    """
    if not group.members and epoch < 0:
        return  # an admin client, or a consumer that assigns by itself
    member = _committer(group, member_id, instance_id)
    if epoch == member.epoch:
        return
    # KIP-1251: an older epoch will do for partitions that the member has had since then.
    if member.classic is None and epoch < member.epoch and _had_since(member, partitions, epoch):
        return
    _refuse_epoch(member, epoch)


def _had_since(member: Member, partitions: Collection[Partition] | None, epoch: int) -> bool:
    held: Ownership = {**member.assigned, **member.revoking}
    return partitions is not None and all(one in held and held[one] <= epoch for one in partitions)


def check_fetch(group: ConsumerGroup, *, member_id: str | None, epoch: int) -> None:
    """Refuse to read offsets for a member that is none, or is not up to date."""
    if member_id is None and epoch < 0:
        return
    member = _committer(group, member_id or "", None)
    if epoch != member.epoch:
        _refuse_epoch(member, epoch)


def _committer(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is not None and (static := group.static_member(instance_id)) is not None:
        return require_static(static, member_id, instance_id)
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(f"Member {member_id} is not a member of group {group.group_id}.")
    return member


def _refuse_epoch(member: Member, received: int) -> None:
    if member.classic is not None:
        raise IllegalGeneration(f"The received generation id {received} does not match the expected {member.epoch}.")
    raise StaleMemberEpoch(f"The received member epoch {received} does not match the expected one {member.epoch}.")
