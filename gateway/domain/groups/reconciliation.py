"""One member of a consumer group on its way from the partitions it has to those it is to have (KIP-848).

A partition goes over in two steps: its owner is told to give it up and says when it did, or is removed; only then
is it given to the next one. So no two members ever own it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from uuid import UUID

from gateway.domain.groups.assignors import Partition

__all__ = ["ClassicProtocol", "Member", "MemberState", "Ownership", "reconcile"]

Ownership: TypeAlias = Mapping[Partition, int]
"""Partitions, each with the epoch in which the member got it."""

NOTHING: Ownership = {}


class MemberState(enum.Enum):
    """Where a member is on its way."""

    STABLE = "Stable"
    UNREVOKED = "UnrevokedPartitions"
    """It has yet to give up partitions."""
    UNRELEASED = "UnreleasedPartitions"
    """It waits for partitions that others have yet to give up."""


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """What a member that speaks the classic protocol said when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def name(self) -> str:
        return self.protocols[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a consumer group. Deadlines are not part of what is stored, hence of no comparison."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    topic_names: frozenset[str] = frozenset()
    topic_pattern: str | None = None
    classic: ClassicProtocol | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Ownership = field(default_factory=dict)
    revoking: Ownership = field(default_factory=dict)
    session_ends_ms: int | None = field(default=None, compare=False)
    rebalance_ends_ms: int | None = field(default=None, compare=False)
    join_ends_ms: int | None = field(default=None, compare=False)
    sync_ends_ms: int | None = field(default=None, compare=False)

    @property
    def held(self) -> frozenset[Partition]:
        """What nobody else may be given."""
        return frozenset((*self.assigned, *self.revoking))

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch


def reconcile(
    member: Member,
    *,
    target: Collection[Partition],
    target_epoch: int,
    wanted_topics: Collection[UUID],
    owned: Collection[Partition] | None,
    held_by_others: Collection[Partition],
) -> Member:
    """The member's next state, the same one if it cannot move on.

    `owned` is what the member says it has, None if it does not say; `wanted_topics` are those it subscribes to.
    """
    still_revoking = member.state is MemberState.UNREVOKED and _owns_any(owned, member.revoking)
    if still_revoking or member.is_reconciled_to(target_epoch):
        return _drop_unwanted(member, wanted_topics, owned)
    aim = {partition for partition in target if partition.topic in wanted_topics}
    kept = {partition: epoch for partition, epoch in member.assigned.items() if partition in aim}
    leaving = {partition: epoch for partition, epoch in member.assigned.items() if partition not in aim}
    if leaving and _owns_any(owned, leaving):
        return _advance(member, MemberState.UNREVOKED, member.epoch, kept, leaving)
    missing = aim - kept.keys()
    free = missing.difference(held_by_others)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED
    return _advance(member, state, target_epoch, kept | dict.fromkeys(free, target_epoch), NOTHING)


def _drop_unwanted(member: Member, wanted_topics: Collection[UUID], owned: Collection[Partition] | None) -> Member:
    """Take back what the member no longer subscribes to, without waiting for a new target."""
    kept = {partition: epoch for partition, epoch in member.assigned.items() if partition.topic in wanted_topics}
    if len(kept) == len(member.assigned):
        return member
    dropped = {partition: epoch for partition, epoch in member.assigned.items() if partition not in kept}
    leaving = {**member.revoking, **dropped}
    if _owns_any(owned, leaving):
        return _advance(member, MemberState.UNREVOKED, member.epoch, kept, leaving)
    return _advance(member, member.state, member.epoch, kept, member.revoking)


def _owns_any(owned: Collection[Partition] | None, partitions: Collection[Partition]) -> bool:
    """Whether the member may still have one of `partitions`; one that does not say what it has may."""
    return owned is None or any(partition in partitions for partition in owned)


def _advance(member: Member, state: MemberState, epoch: int, assigned: Ownership, revoking: Ownership) -> Member:
    return replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=revoking,
    )
