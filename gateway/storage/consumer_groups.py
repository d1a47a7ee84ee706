"""Groups of the consumer protocol (KIP-848) in PostgreSQL: members with epochs, what they have and are to have.

Every write is guarded by the epoch in which its gateway claimed the group.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.consumer import ConsumerGroup
from gateway.domain.groups.reconciliation import ClassicProtocol, Member, MemberState, Ownership
from gateway.storage.database import Database, Row, Transaction

__all__ = ["load", "save"]

Source = Database | Transaction


async def load(source: Source, group_id: str, *, group_epoch: int) -> ConsumerGroup:
    """The group as it was last written; its clocks are the caller's affair."""
    ((target_epoch,),) = await source.rows("groups/load_assignment_epoch", group_id=group_id)
    rows = await source.rows("groups/load_consumer_members", group_id=group_id)
    members = [_member(row) for row in rows]
    return ConsumerGroup(
        group_id=group_id,
        epoch=group_epoch,
        target_epoch=target_epoch,
        members={member.member_id: member for member in members},
        target={row[0]: frozenset(_partitions(row[17])) for row in rows},
    )


async def save(
    source: Source,
    group: ConsumerGroup,
    before: ConsumerGroup | None,
    *,
    epoch: int,
    assignor: str,
    session_timeout_ms: int,
) -> bool:
    """Write down what differs from `before`, or everything; False when the group has another coordinator."""
    changed = [
        _row(member, group, session_timeout_ms=session_timeout_ms)
        for name, member in group.members.items()
        if before is None or before.members.get(name) != member or before.target.get(name) != group.target.get(name)
    ]
    rows = await source.rows(
        "groups/save_consumer_group",
        group_id=group.group_id,
        epoch=epoch,
        state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor=assignor,
        member_ids=list(group.members),
        members=Jsonb(changed),
    )
    return bool(rows)


def _member(row: Row) -> Member:
    classic = None
    if row[10] is not None:
        classic = ClassicProtocol(row[5], tuple(zip(row[10], map(bytes, row[11]), strict=True)))
    return Member(
        member_id=row[0],
        instance_id=row[1],
        rack_id=row[2],
        client_id=row[3],
        client_host=row[4],
        rebalance_timeout_ms=row[6],
        assignor=row[7],
        topic_names=frozenset(row[8]),
        topic_pattern=row[9],
        classic=classic,
        epoch=row[12],
        previous_epoch=row[13],
        state=MemberState(row[14] or MemberState.STABLE.value),
        assigned=_ownership(row[15]),
        revoking=_ownership(row[16]),
    )


def _row(member: Member, group: ConsumerGroup, *, session_timeout_ms: int) -> dict[str, Any]:
    classic = member.classic
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": session_timeout_ms if classic is None else classic.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "server_assignor": member.assignor,
        "subscribed_topics": sorted(member.topic_names),
        "subscribed_regex": member.topic_pattern,
        "protocol_names": None if classic is None else [name for name, _ in classic.protocols],
        "protocol_metadata": None if classic is None else [b64encode(data).decode() for _, data in classic.protocols],
        "member_epoch": member.epoch,
        "previous_member_epoch": member.previous_epoch,
        "member_state": member.state.value,
        "assigned_partitions": _with_epochs(member.assigned),
        "revoking_partitions": _with_epochs(member.revoking),
        "target_partitions": _by_topic(group.target.get(member.member_id, ())),
    }


def _with_epochs(owned: Ownership) -> dict[str, dict[str, int]]:
    """{topic id: {partition: epoch in which the member got it}}."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, number), epoch in sorted(owned.items()):
        by_topic.setdefault(str(topic), {})[str(number)] = epoch
    return by_topic


def _ownership(stored: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    return {
        Partition(UUID(topic), int(number)): epoch
        for topic, numbers in stored.items()
        for number, epoch in numbers.items()
    }


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(str(topic), []).append(number)
    return by_topic


def _partitions(stored: Mapping[str, Iterable[int]]) -> Iterable[Partition]:
    return (Partition(UUID(topic), number) for topic, numbers in stored.items() for number in numbers)
