"""Classic consumers in a consumer group, and groups that change their protocol."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from gateway.domain.groups import interop
from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.classic import GroupSnapshot, Identity, Joined, JoinRequest, MemberSnapshot
from gateway.domain.groups.consumer import ConsumerGroup, Heartbeat, Reply, Rules, expire, heartbeat
from gateway.domain.groups.subscriptions import KnownTopic, Topics
from gateway.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from gateway.protocol.consumer_protocol import decode_assignment, encode_assignment

ORDERS = KnownTopic(UUID(int=1), 4)
TOPICS = Topics({"orders": ORDERS}, version=1)
RULES = Rules(session_timeout_ms=1000)


def of(*numbers: int) -> frozenset[Partition]:
    return frozenset(Partition(ORDERS.uuid, number) for number in numbers)


def subscription(*topics: str, owned: tuple[int, ...] = ()) -> bytes:
    """Version 1, which names what the member owns of `orders`."""
    parts = [struct.pack(">hi", 1, len(topics))]
    parts += [struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in topics]
    parts.append(struct.pack(">ii", -1, 1 if owned else 0))
    if owned:
        parts.append(struct.pack(f">h6si{len(owned)}i", 6, b"orders", len(owned), *owned))
    return b"".join(parts)


def joining(
    member_id: str = "",
    *,
    owned: tuple[int, ...] = (),
    instance_id: str | None = None,
    protocol_type: str = "consumer",
    protocols: tuple[str, ...] = ("range", "cooperative-sticky"),
    topics: tuple[str, ...] = ("orders",),
) -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        new_member_id="new",
        instance_id=instance_id,
        client_id="client",
        client_host="host",
        session_timeout_ms=2000,
        rebalance_timeout_ms=500,
        protocol_type=protocol_type,
        protocols=tuple((name, subscription(*topics, owned=owned)) for name in protocols),
    )


class World:
    def __init__(self, group: ConsumerGroup | None = None) -> None:
        self.group = group or ConsumerGroup(group_id="group")
        self.now_ms = 0

    def join(self, request: JoinRequest) -> Joined:
        self.group, joined = interop.join(self.group, request, topics=TOPICS, rules=RULES, now_ms=self.now_ms)
        return joined

    def sync(self, member_id: str, generation: int) -> set[int]:
        self.group, synced = interop.sync(
            self.group,
            member_id=member_id,
            instance_id=None,
            generation=generation,
            protocol_type="consumer",
            protocol_name="range",
            topics=TOPICS,
            now_ms=self.now_ms,
        )
        assigned, _ = decode_assignment(synced.assignment)
        return set(assigned.get("orders", ()))

    def beat(self, member_id: str, generation: int) -> bool:
        """Whether the member has to join again."""
        self.group, refusal = interop.heartbeat(
            self.group, member_id=member_id, instance_id=None, generation=generation, now_ms=self.now_ms
        )
        return isinstance(refusal, RebalanceInProgress)

    def consumer(self, name: str, epoch: int, owned: frozenset[Partition] | None = None) -> Reply:
        said = Heartbeat(member_id=name, epoch=epoch, owned=owned)
        if epoch == 0:
            said = Heartbeat(
                member_id=name,
                epoch=0,
                rebalance_timeout_ms=500,
                topic_names=frozenset({"orders"}),
                owned=frozenset(),
            )
        self.group, reply = heartbeat(self.group, said, topics=TOPICS, rules=RULES, now_ms=self.now_ms)
        return reply


def test_a_classic_member_joins_a_consumer_group_and_shares_with_the_others() -> None:
    world = World()
    world.consumer("new-style", 0)
    with pytest.raises(MemberIdRequired):
        world.join(joining())
    joined = world.join(joining("old-style"))
    assert (joined.member_id, joined.generation, joined.leader_id) == ("old-style", 2, "")
    assert world.sync("old-style", 2) == set()
    kept = world.consumer("new-style", 1).assignment
    assert kept is not None
    assert not world.beat("old-style", 2)
    world.consumer("new-style", 1, kept)
    assert world.beat("old-style", 2), "its partitions are free now"
    assert world.join(joining("old-style")).generation == 2
    assert world.sync("old-style", 2) == {one.number for one in of(0, 1, 2, 3) - kept}
    assert not world.beat("old-style", 2)
    assert world.group.state == "Stable"


def test_a_classic_member_gives_up_partitions_by_joining_without_them() -> None:
    world = World()
    world.join(joining("a"))
    assert world.sync("a", 1) == {0, 1, 2, 3}
    world.consumer("b", 0)
    assert world.beat("a", 1)
    kept = world.join(joining("a", owned=(0, 1, 2, 3)))
    assert kept.generation == 1, "cooperative: it still owns them"
    left = world.sync("a", 1)
    assert len(left) == 2
    assert world.consumer("b", 2).assignment is None
    assert world.join(joining("a", owned=tuple(left))).generation == 2
    assert world.sync("a", 2) == left
    assert world.consumer("b", 2).assignment == of(0, 1, 2, 3) - of(*left)


def test_a_classic_member_that_does_not_rejoin_in_time_is_removed() -> None:
    world = World()
    world.join(joining("a"))
    world.sync("a", 1)
    world.consumer("b", 0)
    world.now_ms = 100
    assert world.beat("a", 1)
    world.now_ms = 400
    assert world.beat("a", 1)
    world.group, expired = expire(world.group, now_ms=600)
    assert [one.member_id for one in expired] == ["a"]


def test_a_classic_member_that_does_not_sync_is_removed() -> None:
    world = World()
    world.join(joining("a"))
    world.group, expired = expire(world.group, now_ms=500)
    assert [one.member_id for one in expired] == ["a"]


def test_generations_and_members_are_checked() -> None:
    world = World()
    world.join(joining("a"))
    world.consumer("b", 0)
    with pytest.raises(IllegalGeneration):
        world.sync("a", 7)
    with pytest.raises(IllegalGeneration):
        world.beat("a", 7)
    with pytest.raises(UnknownMemberId):
        world.beat("b", 2)
    with pytest.raises(UnknownMemberId):
        world.beat("c", 2)
    with pytest.raises(RebalanceInProgress):
        world.sync("a", 1)


@pytest.mark.parametrize(
    "request_",
    [joining("b", protocol_type="connect"), joining("b", protocols=("sticky",)), joining("b", protocols=())],
)
def test_a_member_with_other_protocols_is_refused(request_: JoinRequest) -> None:
    world = World()
    world.join(joining("a"))
    with pytest.raises(InconsistentGroupProtocol):
        world.join(request_)


def test_a_member_that_was_removed_cannot_come_back_with_its_partitions() -> None:
    world = World()
    world.join(joining("a"))
    with pytest.raises(UnknownMemberId):
        world.join(joining("b", owned=(0, 1)))
    assert world.join(joining("b")).member_id == "b"


def test_a_static_classic_member_is_replaced_by_its_successor_of_either_protocol() -> None:
    world = World()
    world.join(joining(instance_id="one"))
    assert world.sync("new", 1) == {0, 1, 2, 3}
    world.group, reply = heartbeat(
        world.group,
        Heartbeat(
            member_id="next",
            epoch=0,
            instance_id="one",
            rebalance_timeout_ms=1,
            topic_names=frozenset({"orders"}),
            owned=frozenset(),
        ),
        topics=TOPICS,
        rules=RULES,
        now_ms=0,
    )
    assert reply == Reply("next", 1, of(0, 1, 2, 3))
    with pytest.raises(FencedInstanceId):
        interop.heartbeat(world.group, member_id="new", instance_id="one", generation=1, now_ms=0)


def test_members_leave_one_by_one_or_by_their_instance() -> None:
    world = World()
    world.join(joining("a"))
    world.join(joining(instance_id="one"))
    world.group, outcomes = interop.leave(
        world.group, [Identity("a", None), Identity("", "one"), Identity("x", None), Identity("", "two")]
    )
    assert [type(one) for one in outcomes] == [type(None), type(None), UnknownMemberId, UnknownMemberId]
    assert not world.group.members


CLASSIC = GroupSnapshot(
    generation=7,
    protocol_type="consumer",
    protocol_name="range",
    leader_id="a",
    members=tuple(
        MemberSnapshot(
            name,
            None,
            "client",
            "host",
            2000,
            500,
            (("range", subscription("orders")),),
            encode_assignment({"orders": numbers, "deleted": [0]}, version=1),
        )
        for name, numbers in (("a", [0, 1]), ("b", [2, 3]))
    ),
)


def test_a_classic_group_becomes_a_consumer_group_with_what_its_members_have() -> None:
    world = World(interop.upgrade("group", CLASSIC, TOPICS))
    assert world.group.state == "Stable"
    assert world.group.epoch == 7
    assert {name: set(one.assigned) for name, one in world.group.members.items()} == {"a": of(0, 1), "b": of(2, 3)}
    assert world.consumer("c", 0).epoch == 8
    assert world.beat("a", 7)


def test_only_consumers_with_readable_subscriptions_are_upgraded() -> None:
    with pytest.raises(GroupIdNotFound):
        interop.upgrade("group", GroupSnapshot(1, "connect", "x", "a", CLASSIC.members), TOPICS)
    (first, _) = CLASSIC.members
    for broken in (
        MemberSnapshot("a", None, "", "", 1, 1, (("range", b"?"),), b""),
        MemberSnapshot("a", None, "", "", 1, 1, first.protocols, b"\0\0\0\0\0\0\0\0\0\x01x"),
    ):
        with pytest.raises(GroupIdNotFound):
            interop.upgrade("group", GroupSnapshot(1, "consumer", "range", "a", (broken,)), TOPICS)


def test_an_empty_group_changes_its_protocol_freely() -> None:
    upgraded = interop.upgrade("group", GroupSnapshot(generation=5, protocol_type="connect"), TOPICS)
    assert (upgraded.epoch, upgraded.state) == (5, "Empty")


def test_when_only_classic_members_are_left_the_group_is_classic_again() -> None:
    world = World(interop.upgrade("group", CLASSIC, TOPICS))
    world.consumer("c", 0)
    assert not interop.can_downgrade(world.group, classic_max_size=10)
    world.group, _ = interop.leave(world.group, [Identity("c", None)])
    assert interop.can_downgrade(world.group, classic_max_size=10)
    assert not interop.can_downgrade(world.group, classic_max_size=1)
    snapshot = interop.downgrade(world.group, TOPICS)
    assert snapshot.generation == world.group.epoch
    assert (snapshot.protocol_type, snapshot.protocol_name, snapshot.leader_id) == ("consumer", "range", "a")
    assert {one.member_id: decode_assignment(one.assignment)[0] for one in snapshot.members} == {
        "a": {"orders": [0, 1]},
        "b": {"orders": [2, 3]},
    }
    assert not interop.can_downgrade(ConsumerGroup(group_id="empty"), classic_max_size=1)
