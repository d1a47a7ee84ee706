"""The consumer group against clients of both protocols that behave as Kafka's do: any order, lost answers, slowness.

At no moment do two live members own a partition; once everybody has caught up, each has exactly one owner.
"""

from __future__ import annotations

import struct
from collections import Counter
from itertools import combinations
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.domain.groups import interop
from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.classic import Identity, JoinRequest
from gateway.domain.groups.consumer import ConsumerGroup, Heartbeat, Reply, Rules, expire, heartbeat, leave, restore
from gateway.domain.groups.subscriptions import KnownTopic, Topics
from gateway.errors import FencedInstanceId, FencedMemberEpoch, IllegalGeneration, RebalanceInProgress, UnknownMemberId
from gateway.protocol.consumer_protocol import decode_assignment

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


class ClassicClient:
    """A member of the classic protocol. Eager: it gives up everything before it joins; else only what it must."""

    def __init__(self, member_id: str, *, is_eager: bool, topics: frozenset[str]) -> None:
        self.member_id = member_id
        self.is_eager = is_eager
        self.subscription = topics
        self.owned: set[Partition] = set()
        self.generation = -1
        self.has_to_join = True
        self.has_to_sync = False

    def request(self, topics: Topics) -> JoinRequest:
        names = {topic.uuid: name for name, topic in topics.by_name.items()}
        owned: dict[str, list[int]] = {}
        for partition in self.owned:
            if partition.topic in names:
                owned.setdefault(names[partition.topic], []).append(partition.number)
        parts = [struct.pack(">hi", 1, len(self.subscription))]
        parts += [_text(name) for name in sorted(self.subscription)]
        parts.append(struct.pack(">ii", -1, len(owned)))
        parts += [_text(name) + struct.pack(f">i{len(some)}i", len(some), *some) for name, some in owned.items()]
        return JoinRequest(
            member_id=self.member_id,
            new_member_id="",
            instance_id=None,
            client_id="",
            client_host="",
            session_timeout_ms=1000,
            rebalance_timeout_ms=600,
            protocol_type="consumer",
            protocols=(("any", b"".join(parts)),),
        )

    def rejoin(self) -> None:
        self.owned.clear()
        self.has_to_join = True

    def take(self, assigned: set[Partition]) -> None:
        """What it no longer has, it says by joining again."""
        self.has_to_join = not self.owned <= assigned
        self.owned = set(assigned)


def _text(name: str) -> bytes:
    return struct.pack(f">h{len(name)}s", len(name), name.encode())


class Groups(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.group = ConsumerGroup(group_id="group")
        self.topics = Topics({"alpha": KnownTopic(UUID(int=1), 3)}, version=1)
        self.now_ms = 0
        self.clients: list[Client] = []
        self.classics: list[ClassicClient] = []
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

    @precondition(lambda self: self.clients or self.classics)
    @rule(
        turns=st.lists(
            st.tuples(st.integers(0, 7), st.sampled_from([False, False, False, True])), min_size=1, max_size=15
        )
    )
    def go_on_in_any_order(self, turns: list[tuple[int, bool]]) -> None:
        """Members, by number, say that they live; some answers are lost."""
        everybody = [*self.clients, *self.classics]
        for number, lose_answer in turns:
            client = everybody[number % len(everybody)]
            if isinstance(client, Client):
                self.call(client, lose_answer=lose_answer)
            else:
                self.go_on(client, lose_answer=lose_answer)
            self.no_two_live_members_own_a_partition()

    @precondition(lambda self: len(self.classics) < 3)
    @rule(is_eager=st.booleans(), topics=st.sets(st.sampled_from(NAMES), min_size=1).map(frozenset[str]))
    def join_as_a_classic_member(self, is_eager: bool, topics: frozenset[str]) -> None:
        self.created += 1
        self.classics.append(ClassicClient(f"classic-{self.created}", is_eager=is_eager, topics=topics))

    def go_on(self, client: ClassicClient, *, lose_answer: bool = False) -> None:
        try:
            if client.has_to_join:
                self._join_classic(client, lose_answer=lose_answer)
            elif client.has_to_sync:
                self._sync_classic(client, lose_answer=lose_answer)
            else:
                self.group, refusal = interop.heartbeat(
                    self.group,
                    member_id=client.member_id,
                    instance_id=None,
                    generation=client.generation,
                    now_ms=self.now_ms,
                )
                client.has_to_join = refusal is not None and not lose_answer
        except (UnknownMemberId, IllegalGeneration):
            client.rejoin()

    def _join_classic(self, client: ClassicClient, *, lose_answer: bool) -> None:
        if client.is_eager:
            client.owned.clear()
        self.group, joined = interop.join(
            self.group, client.request(self.topics), topics=self.topics, rules=RULES, now_ms=self.now_ms
        )
        if not lose_answer:
            client.generation = joined.generation
            client.has_to_join, client.has_to_sync = False, True

    def _sync_classic(self, client: ClassicClient, *, lose_answer: bool) -> None:
        try:
            self.group, synced = interop.sync(
                self.group,
                member_id=client.member_id,
                instance_id=None,
                generation=client.generation,
                protocol_type="consumer",
                protocol_name="any",
                topics=self.topics,
                now_ms=self.now_ms,
            )
        except RebalanceInProgress:
            client.has_to_join = True
            return
        if not lose_answer:
            by_name, _ = decode_assignment(synced.assignment)
            client.has_to_sync = False
            client.take(
                {Partition(self.topics.by_name[name].uuid, one) for name, some in by_name.items() for one in some}
            )

    @precondition(lambda self: len(self.classics) > 1)
    @rule(data=st.data(), says_so=st.booleans())
    def end_a_classic_member(self, data: st.DataObject, says_so: bool) -> None:
        client = data.draw(st.sampled_from(self.classics))
        self.classics.remove(client)
        if says_so:
            self.group, _ = interop.leave(self.group, [Identity(client.member_id, None)])

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

    @precondition(lambda self: len(self.clients) > 1)
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

    @precondition(lambda self: len(self.clients) > 2)
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
        live = [one for one in (*self.clients, *self.classics) if one.member_id in self.group.members]
        for one, other in combinations(live, 2):
            assert not one.owned & other.owned
        topics = self.topics.ids(self.topics.by_name)
        for client in live:
            there = {partition for partition in client.owned if partition.topic in topics}
            assert there <= self.group.members[client.member_id].held

    @invariant()
    def targets_name_each_partition_once(self) -> None:
        target = Counter(partition for partitions in self.group.target.values() for partition in partitions)
        assert all(count == 1 for count in target.values())
        assert self.group.target.keys() <= self.group.members.keys()

    def teardown(self) -> None:
        if not self.clients:
            return  # where only classic members are left, a group becomes a classic one
        # Vanished members expire; the others go on, and everything calms down.
        for time_ms in (400, 400, 400, 400, *[0] * 12):
            self.now_ms += time_ms
            self._everybody_goes_on()
            self.group, _ = expire(self.group, now_ms=self.now_ms)
        assert self.group.state == "Stable"
        assert self.group.members.keys() == {one.member_id for one in (*self.clients, *self.classics)}
        self._each_wanted_partition_has_one_owner()
        self._the_same_subscription_means_the_same_number()
        epoch = self.group.epoch
        self._everybody_goes_on()
        assert self.group.epoch == epoch

    def _everybody_goes_on(self) -> None:
        for client in self.clients:
            client.finish_giving_up()
            self.call(client)
        for classic in self.classics:
            for _ in range(3):  # join, sync, live
                self.go_on(classic)

    def _each_wanted_partition_has_one_owner(self) -> None:
        everybody = (*self.clients, *self.classics)
        wanted = {name for client in everybody for name in self._names(client)}
        expected = Counter(
            Partition(topic.uuid, number)
            for name, topic in self.topics.by_name.items()
            if name in wanted
            for number in range(topic.partition_count)
        )
        assert Counter(partition for client in everybody for partition in client.owned) == expected

    def _the_same_subscription_means_the_same_number(self) -> None:
        for one, other in combinations((*self.clients, *self.classics), 2):
            if self._names(one) == self._names(other):
                assert abs(len(one.owned) - len(other.owned)) <= 1

    def _names(self, client: Client | ClassicClient) -> frozenset[str]:
        if isinstance(client.subscription, frozenset):
            return client.subscription & self.topics.by_name.keys()
        matches = {
            "alpha.*": {"alpha", "alphabet"},
            ".*a": {"alpha", "beta", "gamma"},
            "beta|gamma": {"beta", "gamma"},
        }
        return frozenset(matches[client.subscription] & self.topics.by_name.keys())


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
