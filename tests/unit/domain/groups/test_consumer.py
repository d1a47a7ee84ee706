"""The consumer group (KIP-848) by example: each test is a rule of Kafka's."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.consumer import (
    ConsumerGroup,
    Heartbeat,
    Reply,
    Rules,
    check_commit,
    check_fetch,
    check_request,
    expire,
    heartbeat,
    leave,
    next_deadline_ms,
    restore,
)
from gateway.domain.groups.reconciliation import Member, MemberState
from gateway.domain.groups.subscriptions import KnownTopic, Topics
from gateway.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    InvalidRequest,
    KafkaError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)

RULES = Rules(session_timeout_ms=1000, heartbeat_interval_ms=100)
ORDERS = KnownTopic(UUID(int=1), 4)
PAYMENTS = KnownTopic(UUID(int=2), 2)
TOPICS = Topics({"orders": ORDERS, "payments": PAYMENTS}, version=1)


def of(topic: KnownTopic, *numbers: int) -> frozenset[Partition]:
    return frozenset(Partition(topic.uuid, number) for number in numbers)


class World:
    """A group, the topics and the time."""

    def __init__(self, *, rules: Rules = RULES) -> None:
        self.group = ConsumerGroup(group_id="group")
        self.topics = TOPICS
        self.rules = rules
        self.now_ms = 0

    def say(self, said: Heartbeat) -> Reply:
        self.group, reply = heartbeat(self.group, said, topics=self.topics, rules=self.rules, now_ms=self.now_ms)
        return reply

    def join(self, name: str, *topics: str, pattern: str | None = None, instance: str | None = None) -> Reply:
        return self.say(
            Heartbeat(
                member_id=name,
                epoch=0,
                instance_id=instance,
                rebalance_timeout_ms=500,
                topic_names=frozenset(topics) if pattern is None else None,
                topic_pattern=pattern,
                owned=frozenset(),
            )
        )

    def beat(self, name: str, epoch: int, owned: frozenset[Partition] | None = None) -> Reply:
        return self.say(Heartbeat(member_id=name, epoch=epoch, owned=owned))

    def leave(self, name: str, *, epoch: int = -1, instance: str | None = None) -> Reply:
        self.group, reply = leave(self.group, Heartbeat(member_id=name, epoch=epoch, instance_id=instance))
        return reply

    def expire(self, *, at_ms: int) -> list[str]:
        self.now_ms = at_ms
        self.group, expired = expire(self.group, now_ms=at_ms)
        return [one.member_id for one in expired]

    def member(self, name: str) -> Member:
        return self.group.members[name]


def test_the_first_member_gets_everything_at_once() -> None:
    world = World()
    assert world.join("a", "orders") == Reply("a", 1, of(ORDERS, 0, 1, 2, 3))
    assert world.group.state == "Stable"


def test_a_heartbeat_without_news_says_nothing_of_the_assignment() -> None:
    world = World()
    world.join("a", "orders")
    assert world.beat("a", 1) == Reply("a", 1, None)


def test_a_second_member_waits_until_the_first_has_given_up_its_share() -> None:
    world = World()
    world.join("a", "orders")
    assert world.join("b", "orders") == Reply("b", 2, frozenset())
    assert world.member("b").state is MemberState.UNRELEASED
    told = world.beat("a", 1)
    assert told.epoch == 1
    assert told.assignment is not None
    assert len(told.assignment) == 2
    assert world.member("a").state is MemberState.UNREVOKED
    assert world.beat("b", 2) == Reply("b", 2, None)
    assert world.beat("a", 1, told.assignment).epoch == 2
    assert world.beat("b", 2).assignment == of(ORDERS, 0, 1, 2, 3) - told.assignment
    assert world.group.state == "Stable"


def test_a_member_that_still_owns_what_it_is_to_give_up_stays_in_its_epoch() -> None:
    world = World()
    world.join("a", "orders")
    world.join("b", "orders")
    world.beat("a", 1)
    assert world.beat("a", 1, of(ORDERS, 0, 1, 2, 3)).epoch == 1
    assert world.beat("b", 2).assignment is None


def test_what_a_leaver_had_is_free_at_once() -> None:
    world = World()
    world.join("a", "orders")
    world.join("b", "orders")
    world.beat("a", 1)
    world.leave("a")
    assert world.group.state == "Assigning"
    assert world.beat("b", 2) == Reply("b", 3, of(ORDERS, 0, 1, 2, 3))


def test_a_member_with_an_unknown_epoch_is_fenced() -> None:
    world = World()
    world.join("a", "orders")
    with pytest.raises(FencedMemberEpoch):
        world.beat("a", 2)
    world.join("b", "orders")
    world.beat("a", 1, of(ORDERS, 0, 1))
    assert world.member("a").epoch == 2
    with pytest.raises(FencedMemberEpoch):
        world.beat("a", 1)  # it does not say what it has


def test_a_lost_answer_can_be_asked_for_again_with_the_previous_epoch() -> None:
    world = World()
    world.join("a", "orders")
    world.join("b", "orders")
    kept = world.beat("a", 1).assignment
    assert kept is not None
    assert world.beat("a", 1, kept).epoch == 2
    assert world.beat("a", 1, kept).epoch == 2
    with pytest.raises(FencedMemberEpoch):
        world.beat("a", 1, of(ORDERS, 0, 1, 2, 3))


def test_somebody_unknown_is_told_so() -> None:
    world = World()
    with pytest.raises(UnknownMemberId):
        world.beat("a", 1)
    with pytest.raises(UnknownMemberId):
        world.leave("a")


def test_a_fenced_member_rejoins_under_its_id_and_gets_its_partitions_back() -> None:
    world = World()
    world.join("a", "orders")
    assert world.join("a", "orders") == Reply("a", 1, of(ORDERS, 0, 1, 2, 3))


def test_a_full_group_takes_no_new_members() -> None:
    world = World(rules=RULES._replace(max_size=1))
    world.join("a", "orders")
    with pytest.raises(GroupMaxSizeReached):
        world.join("b", "orders")
    world.beat("a", 1)


def test_a_silent_member_is_removed_after_its_session() -> None:
    world = World()
    world.join("a", "orders")
    assert next_deadline_ms(world.group) == 1000
    assert world.expire(at_ms=999) == []
    world.beat("a", 1)
    assert world.expire(at_ms=1998) == []
    assert world.expire(at_ms=1999) == ["a"]
    assert world.group.state == "Empty"
    assert world.group.epoch == 2


def test_a_member_that_does_not_give_up_partitions_in_time_is_removed() -> None:
    world = World()
    world.join("a", "orders")
    world.join("b", "orders")
    world.now_ms = 100
    world.beat("a", 1)
    world.now_ms = 300
    world.beat("a", 1)  # alive, but it did not give them up
    world.beat("b", 2)
    assert world.expire(at_ms=600) == ["a"]
    assert world.beat("b", 2).assignment == of(ORDERS, 0, 1, 2, 3)


def test_new_topics_and_partitions_are_assigned_by_the_next_heartbeat() -> None:
    world = World()
    world.join("a", "orders", "new")
    world.topics = Topics({**TOPICS.by_name, "orders": KnownTopic(ORDERS.uuid, 5)}, version=2)
    assert world.beat("a", 1) == Reply("a", 2, of(ORDERS, 0, 1, 2, 3, 4))
    new = KnownTopic(UUID(int=3), 1)
    world.topics = Topics({**world.topics.by_name, "new": new}, version=3)
    assert world.beat("a", 2) == Reply("a", 3, of(ORDERS, 0, 1, 2, 3, 4) | of(new, 0))


def test_topics_of_no_interest_change_nothing() -> None:
    world = World()
    world.join("a", "orders")
    world.topics = Topics({**TOPICS.by_name, "other": KnownTopic(UUID(int=3), 1)}, version=2)
    assert world.beat("a", 1) == Reply("a", 1, None)


def test_a_deleted_topic_is_taken_away() -> None:
    world = World()
    world.join("a", "orders", "payments")
    world.topics = Topics({"orders": ORDERS}, version=2)
    assert world.beat("a", 1).assignment == of(ORDERS, 0, 1, 2, 3)
    assert world.beat("a", 1, of(ORDERS, 0, 1, 2, 3)).epoch == 2


def test_a_pattern_matches_whole_names_and_grows_with_the_topics() -> None:
    world = World()
    assert world.join("a", pattern="pay.*|order").assignment == of(PAYMENTS, 0, 1)
    paychecks = KnownTopic(UUID(int=3), 1)
    world.topics = Topics({**TOPICS.by_name, "paychecks": paychecks}, version=2)
    assert world.beat("a", 1).assignment == of(PAYMENTS, 0, 1) | of(paychecks, 0)


def test_a_pattern_is_replaced_by_another_and_by_none() -> None:
    world = World()
    world.join("a", pattern="orders")
    told = world.say(Heartbeat(member_id="a", epoch=1, topic_pattern="payments"))
    assert told == Reply("a", 1, frozenset())
    assert world.beat("a", 1, frozenset()) == Reply("a", 2, of(PAYMENTS, 0, 1))
    world.say(Heartbeat(member_id="a", epoch=2, topic_pattern="", owned=of(PAYMENTS, 0, 1)))
    assert world.beat("a", 2, frozenset()).epoch == 3
    assert world.member("a").assigned == {}


@pytest.mark.parametrize("pattern", ["(", "a{99999}", "(?=orders).*", r"(a)\1", "a\0b"])
def test_a_pattern_that_cannot_be_read_is_refused(pattern: str) -> None:
    world = World()
    with pytest.raises(InvalidRegularExpression):
        world.join("a", pattern=pattern)
    assert world.group.members == {}


def test_a_hostile_pattern_costs_no_time() -> None:
    world = World()
    world.topics = Topics({"a" * 249: KnownTopic(UUID(int=9), 1)}, version=2)
    assert world.join("a", pattern="(a|aa)*(a*)*b").assignment == frozenset()


def test_a_new_subscription_takes_back_what_is_no_longer_wanted() -> None:
    world = World()
    world.join("a", "orders", "payments")
    told = world.say(Heartbeat(member_id="a", epoch=1, topic_names=frozenset({"payments"})))
    assert told == Reply("a", 1, of(PAYMENTS, 0, 1))
    assert world.beat("a", 1, of(PAYMENTS, 0, 1)).epoch == 2


def test_a_static_member_that_leaves_for_a_while_keeps_its_partitions_for_its_successor() -> None:
    world = World()
    world.join("a", "orders", instance="one")
    assert world.leave("a", epoch=-2, instance="one") == Reply("a", -2)
    world.join("b", "orders")
    assert world.beat("b", 2).assignment is None
    back = world.join("c", "orders", instance="one")
    assert (back.member_id, back.epoch) == ("c", 2)
    assert back.assignment is not None
    assert len(back.assignment) == 2
    assert "a" not in world.group.members


def test_the_successor_of_a_static_member_causes_no_rebalance() -> None:
    world = World()
    first = world.join("a", "orders", instance="one")
    world.leave("a", epoch=-2, instance="one")
    assert world.join("b", "orders", instance="one") == replace_id(first, "b")
    assert world.group.epoch == 1


def replace_id(reply: Reply, member_id: str) -> Reply:
    return reply._replace(member_id=member_id)


def test_an_instance_id_in_use_is_not_given_away() -> None:
    world = World()
    world.join("a", "orders", instance="one")
    with pytest.raises(UnreleasedInstanceId):
        world.join("b", "orders", instance="one")


def test_a_replaced_static_member_is_fenced() -> None:
    world = World()
    world.join("a", "orders", instance="one")
    world.leave("a", epoch=-2, instance="one")
    world.join("b", "orders", instance="one")
    with pytest.raises(FencedInstanceId):
        world.say(Heartbeat(member_id="a", epoch=1, instance_id="one"))
    with pytest.raises(FencedInstanceId):
        world.leave("a", instance="one")
    with pytest.raises(UnknownMemberId):
        world.say(Heartbeat(member_id="a", epoch=1, instance_id="two"))


def test_a_static_member_that_does_not_come_back_expires() -> None:
    world = World()
    world.join("a", "orders", instance="one")
    world.leave("a", epoch=-2, instance="one")
    assert world.expire(at_ms=1000) == ["a"]


def test_a_static_member_may_ask_again_for_the_answer_to_its_join() -> None:
    world = World()
    first = world.join("a", "orders", instance="one")
    assert world.join("a", "orders", instance="one") == first


def test_members_choose_the_assignor_by_majority() -> None:
    world = World()
    for name in "abc":
        world.say(
            Heartbeat(
                member_id=name,
                epoch=0,
                rebalance_timeout_ms=500,
                topic_names=frozenset({"orders"}),
                owned=frozenset(),
                assignor="uniform" if name == "a" else "range",
            )
        )
    assert world.group.assignor(RULES) == "range"
    assert World().group.assignor(RULES) == "uniform"


def test_another_gateway_takes_over_without_a_rebalance() -> None:
    world = World()
    world.join("a", pattern="orders")
    stored = replace(world.group, topics_version=None, resolved={})
    world.group = restore(stored, rules=RULES, now_ms=5000)
    world.topics = replace(TOPICS, version=77)
    assert next_deadline_ms(world.group) == 6000
    world.now_ms = 5000
    assert world.beat("a", 1) == Reply("a", 1, None)
    assert world.group.epoch == 1


def test_another_gateway_notices_topics_that_grew_meanwhile() -> None:
    world = World()
    world.join("a", "orders")
    world.group = restore(world.group, rules=RULES, now_ms=0)
    world.topics = Topics({"orders": KnownTopic(ORDERS.uuid, 5)}, version=1)
    assert world.beat("a", 1).assignment == of(ORDERS, 0, 1, 2, 3, 4)


JOIN = Heartbeat(member_id="a", epoch=0, rebalance_timeout_ms=1, topic_names=frozenset({"orders"}), owned=frozenset())


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (replace(JOIN, member_id=""), InvalidRequest),
        (replace(JOIN, epoch=-3), InvalidRequest),
        (replace(JOIN, epoch=-2), InvalidRequest),
        (replace(JOIN, instance_id=""), InvalidRequest),
        (replace(JOIN, rack_id=""), InvalidRequest),
        (replace(JOIN, rebalance_timeout_ms=None), InvalidRequest),
        (replace(JOIN, owned=None), InvalidRequest),
        (replace(JOIN, owned=of(ORDERS, 0)), InvalidRequest),
        (replace(JOIN, topic_names=None), InvalidRequest),
        (replace(JOIN, assignor="sticky"), UnsupportedAssignor),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(said: Heartbeat, error: type[KafkaError]) -> None:
    with pytest.raises(error):
        check_request(said, rules=RULES, version=1)


def test_version_0_lets_the_gateway_choose_the_member_id() -> None:
    check_request(replace(JOIN, member_id=""), rules=RULES, version=0)
    check_request(replace(JOIN, topic_names=None, topic_pattern="x"), rules=RULES, version=1)


def test_offsets_are_committed_in_the_members_epoch() -> None:
    world = World()
    world.join("a", "orders")
    check_commit(world.group, member_id="a", instance_id=None, epoch=1, partitions=of(ORDERS, 0))
    check_fetch(world.group, member_id="a", epoch=1)
    check_fetch(world.group, member_id=None, epoch=-1)
    with pytest.raises(StaleMemberEpoch):
        check_commit(world.group, member_id="a", instance_id=None, epoch=2, partitions=of(ORDERS, 0))
    with pytest.raises(StaleMemberEpoch):
        check_fetch(world.group, member_id="a", epoch=2)
    with pytest.raises(UnknownMemberId):
        check_commit(world.group, member_id="b", instance_id=None, epoch=1, partitions=of(ORDERS, 0))
    with pytest.raises(UnknownMemberId):
        check_commit(world.group, member_id="", instance_id=None, epoch=-1, partitions=of(ORDERS, 0))


def test_an_older_epoch_commits_for_partitions_held_since_then() -> None:
    """KIP-1251: a commit that was under way while the member's epoch was raised is not lost."""
    world = World()
    world.join("a", "orders")
    world.join("b", "orders")
    kept = world.beat("a", 1).assignment
    assert kept is not None
    world.beat("a", 1, kept)
    check_commit(world.group, member_id="a", instance_id=None, epoch=1, partitions=kept)
    with pytest.raises(StaleMemberEpoch):
        check_commit(world.group, member_id="a", instance_id=None, epoch=1, partitions=of(ORDERS, 0, 1, 2, 3))


def test_anybody_commits_for_a_group_without_members() -> None:
    check_commit(World().group, member_id="", instance_id=None, epoch=-1, partitions=of(ORDERS, 0))
