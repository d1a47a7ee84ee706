"""The consumer group against clients that behave as Kafka's do: any order, lost answers, slow revocations.

At no moment do two live members own a partition; once everybody has caught up, each has exactly one owner.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.consumer import ConsumerGroup, Heartbeat, Reply, Rules, expire, heartbeat, leave, restore
from gateway.domain.groups.subscriptions import KnownTopic, Topics
from gateway.errors import FencedInstanceId, FencedMemberEpoch, UnknownMemberId

RULES = Rules(session_timeout_ms=1000)
NAMES = ("alpha", "beta", "gamma", "alphabet")
SUBSCRIPTIONS = st.one_of(
    st.sets(st.sampled_from(NAMES)).map(frozenset[str]), st.sampled_from(["alpha.*", ".*a", "beta|gamma"])
)


class Client:
    """A member as its own process sees it."""

    def __init__(self, member_id: str, instance_id: str | None, subscription: frozenset[str] | str) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.subscription = subscription
        self.owned: set[Partition] = set()
        self.giving_up: set[Partition] = set()
        self.rejoin()

    def rejoin(self) -> None:
        """Give up everything and start again."""
        self.epoch = 0
        self.owned.clear()
        self.giving_up.clear()
        self.coming: set[Partition] = set()
        self.is_unsure = True  # then it sends everything
        self.has_news = True

    def request(self) -> Heartbeat:
        names = self.subscription if isinstance(self.subscription, frozenset) else frozenset[str]()
        pattern = self.subscription if isinstance(self.subscription, str) else ""
        return Heartbeat(
            member_id=self.member_id,
            epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=300 if self.is_unsure else None,
            topic_names=names if self.is_unsure else None,
            topic_pattern=pattern if self.is_unsure else None,
            owned=frozenset(self.owned) if self.is_unsure or self.has_news else None,
        )

    def hear(self, reply: Reply) -> None:
        self.epoch = reply.epoch
        self.is_unsure = self.has_news = False
        if reply.assignment is not None:
            self.giving_up = self.owned - reply.assignment
            self.coming = set(reply.assignment) - self.owned
            if not self.giving_up:
                self.finish_giving_up()

    def finish_giving_up(self) -> None:
        """Clients take new partitions after they have let go of the old ones."""
        self.has_news = self.has_news or bool(self.giving_up or self.coming)
        self.owned -= self.giving_up
        self.owned |= self.coming
        self.giving_up.clear()
        self.coming.clear()


class Groups(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.group = ConsumerGroup(group_id="group")
        self.topics = Topics({"alpha": KnownTopic(UUID(int=1), 3)}, version=1)
        self.now_ms = 0
        self.clients: list[Client] = []
        self.created = 0

    def call(self, client: Client, *, lose_answer: bool = False) -> None:
        try:
            self.group, reply = heartbeat(
                self.group, client.request(), topics=self.topics, rules=RULES, now_ms=self.now_ms
            )
        except (FencedMemberEpoch, UnknownMemberId):
            client.rejoin()
            return
        if lose_answer:
            client.is_unsure = True
        else:
            client.hear(reply)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(subscription=SUBSCRIPTIONS, is_static=st.booleans(), lose_answer=st.booleans())
    def join(self, subscription: frozenset[str] | str, is_static: bool, lose_answer: bool) -> None:
        self.created += 1
        instance_id = f"instance-{self.created}" if is_static else None
        client = Client(f"member-{self.created}", instance_id, subscription)
        self.clients.append(client)
        self.call(client, lose_answer=lose_answer)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), lose_answer=st.booleans())
    def beat(self, data: st.DataObject, lose_answer: bool) -> None:
        self.call(data.draw(st.sampled_from(self.clients)), lose_answer=lose_answer)

    @precondition(lambda self: any(client.giving_up for client in self.clients))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([one for one in self.clients if one.giving_up])).finish_giving_up()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), subscription=SUBSCRIPTIONS)
    def subscribe_to_something_else(self, data: st.DataObject, subscription: frozenset[str] | str) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.subscription = subscription
        client.is_unsure = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leave(self, data: st.DataObject, for_a_while: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        comes_back = for_a_while and client.instance_id is not None
        said = Heartbeat(member_id=client.member_id, epoch=-2 if comes_back else -1, instance_id=client.instance_id)
        client.rejoin()
        self.clients.remove(client)
        try:
            self.group, _ = leave(self.group, said)
        except (UnknownMemberId, FencedInstanceId):  # it never got to join
            return
        if comes_back:
            self.created += 1
            successor = Client(f"member-{self.created}", client.instance_id, client.subscription)
            self.clients.append(successor)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        """kill -9: its session has to run out."""
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(time_ms=st.sampled_from([10, 100, 301, 700]))
    def wait(self, time_ms: int) -> None:
        self.now_ms += time_ms
        self.group, _ = expire(self.group, now_ms=self.now_ms)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def change_a_topic(self, name: str, count: int) -> None:
        """Create, grow or (0) delete it."""
        by_name = dict(self.topics.by_name)
        known = by_name.pop(name, None)
        self.created += 1
        if count:
            uuid = UUID(int=1000 + self.created) if known is None else known.uuid
            by_name[name] = KnownTopic(uuid, max(count, known.partition_count if known else 0))
        self.topics = Topics(by_name, self.topics.version + 1)

    @rule()
    def another_gateway_takes_over(self) -> None:
        self.group = restore(self.group, rules=RULES, now_ms=self.now_ms)

    @invariant()
    def no_partition_is_held_twice(self) -> None:
        held = Counter(partition for member in self.group.members.values() for partition in member.held)
        assert all(count == 1 for count in held.values())

    @invariant()
    def no_two_live_members_own_a_partition(self) -> None:
        live = [client for client in self.clients if client.member_id in self.group.members]
        for one, other in combinations(live, 2):
            assert not one.owned & other.owned
        for client in live:
            assert client.owned <= self.group.members[client.member_id].held

    @invariant()
    def targets_name_each_partition_once(self) -> None:
        target = Counter(partition for partitions in self.group.target.values() for partition in partitions)
        assert all(count == 1 for count in target.values())
        assert self.group.target.keys() <= self.group.members.keys()

    def teardown(self) -> None:
        if not self.clients:
            return
        # Vanished members expire; the others go on, and everything calms down.
        for _ in range(4):
            self.now_ms += 400
            for client in self.clients:
                client.finish_giving_up()
                self.call(client)
            self.group, _ = expire(self.group, now_ms=self.now_ms)
        for _ in range(8):
            for client in self.clients:
                client.finish_giving_up()
                self.call(client)
        assert self.group.state == "Stable"
        assert self.group.members.keys() == {client.member_id for client in self.clients}
        self._each_wanted_partition_has_one_owner()
        self._the_same_subscription_means_the_same_number()
        epoch = self.group.epoch
        for client in self.clients:
            self.call(client)
        assert self.group.epoch == epoch

    def _each_wanted_partition_has_one_owner(self) -> None:
        wanted = {name for client in self.clients for name in self._names(client)}
        expected = Counter(
            Partition(topic.uuid, number)
            for name, topic in self.topics.by_name.items()
            if name in wanted
            for number in range(topic.partition_count)
        )
        assert Counter(partition for client in self.clients for partition in client.owned) == expected

    def _the_same_subscription_means_the_same_number(self) -> None:
        for one, other in combinations(self.clients, 2):
            if self._names(one) == self._names(other):
                assert abs(len(one.owned) - len(other.owned)) <= 1

    def _names(self, client: Client) -> frozenset[str]:
        if isinstance(client.subscription, frozenset):
            return client.subscription & self.topics.by_name.keys()
        matches = {
            "alpha.*": {"alpha", "alphabet"},
            ".*a": {"alpha", "beta", "gamma"},
            "beta|gamma": {"beta", "gamma"},
        }
        return frozenset(matches[client.subscription] & self.topics.by_name.keys())


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
