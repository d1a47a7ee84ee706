"""Classic consumers in a consumer group, and a group's way from one protocol to the other while it is used.

A classic member joins and syncs as ever, but what it is told comes from the group's target assignment; its
generation is its member epoch. As Kafka's `group.consumer.migration.policy=bidirectional`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.classic import GroupSnapshot, Identity, Joined, JoinRequest, MemberSnapshot, Synced
from gateway.domain.groups.consumer import (
    ConsumerGroup,
    Rules,
    move_on,
    replace_static,
    require_static,
    with_member,
    without_members,
)
from gateway.domain.groups.reconciliation import ClassicProtocol, Member, MemberState
from gateway.domain.groups.subscriptions import Topics
from gateway.errors import (
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from gateway.protocol.consumer_protocol import (
    CONSUMER,
    MalformedSubscription,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)

__all__ = ["can_downgrade", "downgrade", "heartbeat", "join", "leave", "sync", "upgrade"]


def join(
    group: ConsumerGroup, request: JoinRequest, *, topics: Topics, rules: Rules, now_ms: int
) -> tuple[ConsumerGroup, Joined]:
    """JoinGroup to a consumer group: answered at once, there is nobody to wait for."""
    static = group.static_member(request.instance_id)
    is_known = request.member_id in group.members or static is not None
    if len(group.members) >= rules.max_size and not is_known:
        raise GroupMaxSizeReached(f"The consumer group has reached its maximum capacity of {rules.max_size} members.")
    subscription = _check_protocols(group, request)
    if not request.member_id and request.instance_id is None and request.must_know_its_id:
        raise MemberIdRequired(request.new_member_id)
    owned = _by_id(subscription.owned, topics)
    if owned and not is_known:
        # It was removed and does not know it: others may have what it still thinks it owns.
        raise UnknownMemberId(f"Member {request.member_id} is no longer a member of group {group.group_id}.")
    group, before = _find(group, request, static)
    member = replace(
        before,
        instance_id=request.instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        assignor=None,
        topic_names=frozenset(subscription.topics),
        topic_pattern=None,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicProtocol(request.session_timeout_ms, request.protocols),
    )
    group, member = move_on(group, before, member, owned=owned, topics=topics, rules=rules)
    member = replace(
        member,
        session_ends_ms=now_ms + request.session_timeout_ms,
        rebalance_ends_ms=None,
        join_ends_ms=None,
        sync_ends_ms=now_ms + request.rebalance_timeout_ms,
    )
    protocol_name = request.protocols[0][0]
    return with_member(group, member), Joined(member.member_id, member.epoch, CONSUMER, protocol_name, leader_id="")


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> Subscription:
    """What the member subscribes to; refused when it has no protocol in common with the other classic ones."""
    names = {name for name, _ in request.protocols}
    others = [
        {name for name, _ in member.classic.protocols}
        for member in group.members.values()
        if member.classic is not None and member.member_id != request.member_id
    ]
    if request.protocol_type != CONSUMER or not names.intersection(*others):
        raise InconsistentGroupProtocol(f"Member {request.member_id}'s protocols are not supported.")
    try:
        return decode_subscription(request.protocols[0][1])
    except MalformedSubscription as error:
        raise InconsistentGroupProtocol(f"the subscription cannot be read: {error}") from None


def _find(group: ConsumerGroup, request: JoinRequest, static: Member | None) -> tuple[ConsumerGroup, Member]:
    member_id = request.member_id or request.new_member_id
    if request.instance_id is None:
        return group, group.members.get(member_id, Member(member_id=member_id))
    if request.member_id:
        return group, require_static(static, request.member_id, request.instance_id)
    if static is None:
        return group, Member(member_id=member_id)
    return replace_static(group, static, member_id)


def sync(
    group: ConsumerGroup,
    *,
    member_id: str,
    instance_id: str | None,
    generation: int,
    protocol_type: str | None,
    protocol_name: str | None,
    topics: Topics,
    now_ms: int,
) -> tuple[ConsumerGroup, Synced]:
    """SyncGroup: the member's assignment, in the bytes it understands."""
    member, classic = _require_classic(group, member_id, instance_id)
    _check_generation(member, generation)
    if protocol_type not in (None, CONSUMER) or protocol_name not in (None, classic.name):
        raise InconsistentGroupProtocol(f"the group uses {CONSUMER} and {classic.name}")
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        raise RebalanceInProgress(f"Member {member_id} should rejoin to catch up.")
    assignment = _encode(member, classic, topics)
    member = replace(member, sync_ends_ms=None, session_ends_ms=now_ms + classic.session_timeout_ms)
    return with_member(group, member), Synced(protocol_type, protocol_name, assignment)


def heartbeat(
    group: ConsumerGroup, *, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> tuple[ConsumerGroup, RebalanceInProgress | None]:
    """Heartbeat: a sign of life, answered with what the member is to do if it has to join again."""
    member, classic = _require_classic(group, member_id, instance_id)
    _check_generation(member, generation)
    must_rejoin = (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED
        or (member.state is MemberState.UNRELEASED and not _waits_for_others(group, member))
    )
    join_ends_ms = member.join_ends_ms
    if must_rejoin and join_ends_ms is None:
        join_ends_ms = now_ms + member.rebalance_timeout_ms
    member = replace(member, session_ends_ms=now_ms + classic.session_timeout_ms, join_ends_ms=join_ends_ms)
    refusal = RebalanceInProgress("the member should rejoin to catch up") if must_rejoin else None
    return with_member(group, member), refusal


def leave(group: ConsumerGroup, identities: Sequence[Identity]) -> tuple[ConsumerGroup, list[KafkaError | None]]:
    """LeaveGroup, several at once: of classic members, or of static ones by an administrator."""
    outcomes: list[KafkaError | None] = []
    gone: set[str] = set()
    for member_id, instance_id in identities:
        try:
            if not member_id and instance_id is not None:
                static = group.static_member(instance_id)
                gone.add(require_static(static, "" if static is None else static.member_id, instance_id).member_id)
            else:
                gone.add(_require(group, member_id, instance_id).member_id)
            outcomes.append(None)
        except KafkaError as error:
            outcomes.append(error)
    return without_members(group, gone), outcomes


def upgrade(group_id: str, classic: GroupSnapshot, topics: Topics) -> ConsumerGroup:
    """The consumer group that a classic one becomes when the first member of the new protocol joins."""
    if classic.members and classic.protocol_type != CONSUMER:
        raise GroupIdNotFound(f"Group {group_id} is of type {classic.protocol_type}, not of consumers.")
    members = {}
    for one in classic.members:
        try:
            assigned, extra = decode_assignment(one.assignment)
            metadata = dict(one.protocols).get(classic.protocol_name or "", one.protocols[0][1])
            subscription = decode_subscription(metadata)
        except MalformedSubscription as error:
            raise GroupIdNotFound(f"Cannot upgrade classic group {group_id}: {error}.") from None
        if extra:
            raise GroupIdNotFound(f"Cannot upgrade classic group {group_id}: its assignor is not one of Kafka's own.")
        members[one.member_id] = Member(
            member_id=one.member_id,
            instance_id=one.instance_id,
            rack_id=subscription.rack_id,
            client_id=one.client_id,
            client_host=one.client_host,
            rebalance_timeout_ms=one.rebalance_timeout_ms,
            topic_names=frozenset(subscription.topics),
            classic=ClassicProtocol(one.session_timeout_ms, one.protocols),
            epoch=classic.generation,
            previous_epoch=classic.generation,
            assigned=dict.fromkeys(_by_id(assigned, topics), classic.generation),
        )
    target = _first_owner(members)
    return ConsumerGroup(
        group_id=group_id,
        epoch=classic.generation,
        target_epoch=classic.generation,
        members={
            name: replace(one, assigned=dict.fromkeys(target[name], classic.generation))
            for name, one in members.items()
        },
        target=target,
    )


def can_downgrade(group: ConsumerGroup, *, classic_max_size: int) -> bool:
    """Whether only classic members are left."""
    are_classic = all(member.classic is not None for member in group.members.values())
    return bool(group.members) and are_classic and len(group.members) <= classic_max_size


def downgrade(group: ConsumerGroup, topics: Topics) -> GroupSnapshot:
    """The classic group that is left when the last member of the new protocol has gone; it rebalances at once."""
    protocols = {name: one.classic for name, one in group.members.items() if one.classic is not None}
    common = set.intersection(*({name for name, _ in one.protocols} for one in protocols.values()))
    favourite = next(name for name, _ in next(iter(protocols.values())).protocols if name in common)
    return GroupSnapshot(
        generation=group.epoch,
        protocol_type=CONSUMER,
        protocol_name=favourite,
        leader_id=next(iter(protocols)),
        members=tuple(
            MemberSnapshot(
                name,
                group.members[name].instance_id,
                group.members[name].client_id,
                group.members[name].client_host,
                classic.session_timeout_ms,
                group.members[name].rebalance_timeout_ms,
                classic.protocols,
                _encode(group.members[name], classic, topics),
            )
            for name, classic in protocols.items()
        ),
    )


def _require(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is not None:
        return require_static(group.static_member(instance_id), member_id, instance_id)
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(f"Member {member_id} is not a member of group {group.group_id}.")
    return member


def _require_classic(group: ConsumerGroup, member_id: str, instance_id: str | None) -> tuple[Member, ClassicProtocol]:
    member = _require(group, member_id, instance_id)
    if member.classic is None:
        raise UnknownMemberId(f"Member {member_id} does not use the classic protocol.")
    return member, member.classic


def _check_generation(member: Member, generation: int) -> None:
    if generation != member.epoch:
        raise IllegalGeneration(f"The member's epoch is {member.epoch}, received generation {generation}.")


def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
    held = {one for name, other in group.members.items() if name != member.member_id for one in other.held}
    return any(one in held for one in group.target.get(member.member_id, ()) if one not in member.assigned)


def _encode(member: Member, classic: ClassicProtocol, topics: Topics) -> bytes:
    names = {topic.uuid: name for name, topic in topics.by_name.items()}
    by_name: dict[str, list[int]] = defaultdict(list)
    for partition in member.assigned:
        if partition.topic in names:
            by_name[names[partition.topic]].append(partition.number)
    return encode_assignment(by_name, version=decode_subscription(classic.protocols[0][1]).version)


def _by_id(by_name: Mapping[str, Iterable[int]], topics: Topics) -> frozenset[Partition]:
    return frozenset(
        Partition(topics.by_name[name].uuid, number)
        for name, numbers in by_name.items()
        if name in topics.by_name
        for number in numbers
    )


def _first_owner(members: Mapping[str, Member]) -> dict[str, frozenset[Partition]]:
    """Assignments by a leader are its own affair: should it give a partition to two members, the first has it."""
    taken: set[Partition] = set()
    target = {}
    for name, member in members.items():
        target[name] = frozenset(member.assigned.keys() - taken)
        taken |= target[name]
    return target
