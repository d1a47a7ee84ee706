"""A consumer group behind the calls of a classic one: what must be written, and what need not be."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.domain.groups.classic import ClassicGroup, GroupSnapshot, GroupState, Limits, MemberSnapshot
from gateway.domain.groups.consumer import ConsumerGroup, Heartbeat, Rules
from gateway.domain.groups.served import ServedConsumerGroup
from gateway.domain.groups.subscriptions import KnownTopic, Topics
from gateway.errors import CoordinatorNotAvailable, StaleMemberEpoch, UnknownMemberId

TOPICS = Topics({"orders": KnownTopic(UUID(int=1), 2)}, version=1)
JOIN = Heartbeat(member_id="a", epoch=0, rebalance_timeout_ms=1, topic_names=frozenset({"orders"}), owned=frozenset())
BEAT = Heartbeat(member_id="a", epoch=1)


def new_group(*, is_saved: bool = True) -> ServedConsumerGroup:
    return ServedConsumerGroup(Rules(), ConsumerGroup(group_id="group"), topics=TOPICS, is_saved=is_saved, now_ms=0)


def test_a_join_is_written_down_and_a_sign_of_life_is_not() -> None:
    group = new_group()
    assert not group.take_step().must_save
    group.consumer_heartbeat(JOIN, now_ms=0)
    assert group.take_step().must_save
    group.saved = group.value
    group.consumer_heartbeat(BEAT, now_ms=1000)
    assert not group.take_step().must_save
    assert group.next_deadline_ms() == 46_000


def test_a_group_that_was_classic_is_written_down_as_it_is() -> None:
    assert new_group(is_saved=False).take_step().must_save


def test_leaving_and_expiring_are_written_down() -> None:
    group = new_group()
    group.consumer_heartbeat(JOIN, now_ms=0)
    group.saved = group.value
    group.expire(now_ms=45_000)
    assert group.take_step().must_save
    assert group.state is GroupState.EMPTY
    with pytest.raises(UnknownMemberId):
        group.consumer_heartbeat(Heartbeat(member_id="a", epoch=-1), now_ms=0)


def test_only_members_in_their_epoch_commit_and_read_offsets() -> None:
    group = new_group()
    group.check_commit("", None, -1, is_transactional=False)
    group.consumer_heartbeat(JOIN, now_ms=0)
    group.check_commit("a", None, 1, is_transactional=False)
    group.check_commit("", None, -1, is_transactional=True)
    group.check_fetch(None, -1)
    with pytest.raises(StaleMemberEpoch):
        group.check_commit("a", None, 0, is_transactional=False)
    with pytest.raises(UnknownMemberId):
        group.check_commit("", None, -1, is_transactional=False)
    with pytest.raises(StaleMemberEpoch):
        group.check_fetch("a", 0)


def test_it_knows_which_topics_its_members_read() -> None:
    group = new_group()
    group.consumer_heartbeat(JOIN, now_ms=0)
    group.consumer_heartbeat(
        Heartbeat(member_id="b", epoch=0, rebalance_timeout_ms=1, topic_pattern="or.*", owned=frozenset()), now_ms=0
    )
    assert group.subscribed_topics == {"orders"}


def test_nobody_talks_to_a_dead_group() -> None:
    group = new_group()
    group.consumer_heartbeat(JOIN, now_ms=0)
    group.kill(UnknownMemberId("gone"))
    assert group.state is GroupState.DEAD
    assert not group.take_step().must_save
    with pytest.raises(CoordinatorNotAvailable):
        group.consumer_heartbeat(BEAT, now_ms=0)


def test_a_group_that_became_classic_rebalances_at_once() -> None:
    member = MemberSnapshot("a", None, "", "", 1000, 500, (("range", b""),), b"")
    group = ClassicGroup(Limits(), GroupSnapshot(4, "consumer", "range", "a", (member,)), now_ms=0)
    group.rebalance(now_ms=0)
    assert group.state is GroupState.PREPARING
    assert group.take_step().must_save
    assert group.next_deadline_ms() == 500
