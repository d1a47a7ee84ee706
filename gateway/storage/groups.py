"""Consumer groups in PostgreSQL. Every write is guarded by the epoch in which its gateway claimed the group."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from gateway.domain.groups.classic import GroupSnapshot, MemberSnapshot
from gateway.protocol.consumer_protocol import CONSUMER, subscribed_topics
from gateway.storage.database import Database, Transaction

__all__ = [
    "Claim",
    "ListedGroup",
    "claim",
    "delete",
    "find_busy",
    "find_lost",
    "hold_claim",
    "list_all",
    "load_classic",
    "save_classic",
    "show_states",
]

Source = Database | Transaction


class Claim(NamedTuple):
    """A group that a gateway has become the coordinator of."""

    epoch: int
    group_type: str
    state: str
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None


class ListedGroup(NamedTuple):
    group_id: str
    group_type: str
    state: str
    protocol_type: str


async def claim(source: Source, group_id: str, *, node_id: int, create: bool) -> Claim | None:
    """Become the group's coordinator; None when there is no such group and it is not to be made."""
    name = "groups/claim_group" if create else "groups/claim_existing_group"
    rows = await source.rows(name, group_id=group_id, node_id=node_id)
    return Claim(*rows[0]) if rows else None


async def hold_claim(transaction: Transaction, group_id: str, *, epoch: int) -> bool:
    """Keep the coordinator the same until the transaction ends; False when it is another one already."""
    return bool(await transaction.rows("groups/hold_claim", group_id=group_id, epoch=epoch))


async def load_classic(source: Source, group_id: str, claimed: Claim) -> GroupSnapshot:
    rows = await source.rows("groups/load_classic_members", group_id=group_id)
    members = tuple(
        MemberSnapshot(
            member_id=row[0],
            instance_id=row[1],
            client_id=row[2],
            client_host=row[3],
            session_timeout_ms=row[4],
            rebalance_timeout_ms=row[5],
            protocols=tuple(zip(row[6], row[7], strict=True)),
            assignment=row[8],
        )
        for row in rows
    )
    return GroupSnapshot(
        claimed.generation,
        claimed.protocol_type,
        claimed.protocol_name,
        claimed.leader_id if members else None,
        members,
    )


async def save_classic(source: Source, group_id: str, snapshot: GroupSnapshot, *, epoch: int, state: str) -> bool:
    """Write the group down; False when it has another coordinator."""
    rows = await source.rows(
        "groups/save_classic_group",
        group_id=group_id,
        epoch=epoch,
        state=state,
        generation=snapshot.generation,
        protocol_type=snapshot.protocol_type,
        protocol_name=snapshot.protocol_name,
        leader_id=snapshot.leader_id,
        member_ids=[member.member_id for member in snapshot.members],
        members=Jsonb([_member(place, member, snapshot) for place, member in enumerate(snapshot.members)]),
    )
    return bool(rows)


async def show_states(database: Database, states: Sequence[tuple[str, int, str]]) -> None:
    """Show the states (group, epoch, state) to whoever looks at the table."""
    group_ids, epochs, names = zip(*states, strict=True)
    await database.rows(
        "groups/show_states", group_ids=list(group_ids), epochs=list(epochs), states=[str(name) for name in names]
    )


async def find_lost(database: Database, claims: Iterable[tuple[str, int]]) -> list[str]:
    """Which of these groups (group, epoch) have another coordinator, or are gone."""
    pairs = list(claims)
    rows = await database.rows(
        "groups/find_lost", group_ids=[pair[0] for pair in pairs], epochs=[pair[1] for pair in pairs]
    )
    return [group_id for (group_id,) in rows]


async def find_busy(database: Database) -> list[str]:
    """Groups that are not empty."""
    return [group_id for (group_id,) in await database.rows("groups/find_busy")]


async def list_all(database: Database) -> list[ListedGroup]:
    return [ListedGroup(*row) for row in await database.rows("groups/list_groups")]


async def delete(source: Source, group_id: str, *, epoch: int) -> bool:
    """Delete the group and its offsets; False when it has another coordinator or is gone."""
    return bool(await source.rows("groups/delete_group", group_id=group_id, epoch=epoch))


def _member(place: int, member: MemberSnapshot, group: GroupSnapshot) -> dict[str, Any]:
    topics = None
    if group.protocol_type == CONSUMER:
        topics = subscribed_topics(dict(member.protocols).get(group.protocol_name or "", b""))
    return {
        "place": place,
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "subscribed_topics": None if topics is None or any("\0" in topic for topic in topics) else topics,
        "protocol_names": [name for name, _ in member.protocols],
        "protocol_metadata": [b64encode(metadata).decode() for _, metadata in member.protocols],
        "assignment": b64encode(member.assignment).decode(),
    }
