"""A consumer group behind the same calls as a classic one, for a coordinator that looks after both.

Holds the newest value of the group and the one that was last written down; what differs must be written before
anybody is told. Each method that changes the group is followed by `take_step`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gateway.domain.groups import consumer, interop
from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.classic import GroupState, Identity, JoinRequest, Step, Ticket
from gateway.domain.groups.consumer import ConsumerGroup, Heartbeat, Reply, Rules
from gateway.domain.groups.subscriptions import Topics
from gateway.errors import CoordinatorNotAvailable, KafkaError
from gateway.protocol.consumer_protocol import CONSUMER

__all__ = ["ServedConsumerGroup"]


class ServedConsumerGroup:
    """One consumer group. `topics` is renewed by whoever calls."""

    def __init__(self, rules: Rules, group: ConsumerGroup, *, topics: Topics, is_saved: bool, now_ms: int) -> None:
        """A group as it was written down, or (not `is_saved`) one that was another kind of group until now."""
        self._rules = rules
        self.value = consumer.restore(group, rules=rules, now_ms=now_ms)
        self.saved = self.value if is_saved else None
        self.topics = topics
        self._step = Step()
        self._is_dead = False

    @property
    def state(self) -> GroupState:
        return GroupState.DEAD if self._is_dead else GroupState(self.value.state)

    @property
    def protocol_type(self) -> str:
        return CONSUMER

    @property
    def member_ids(self) -> set[str]:
        return set(self.value.members)

    @property
    def generation(self) -> int:
        return self.value.epoch

    @property
    def is_waited_for(self) -> bool:
        return bool(self.value.members)

    @property
    def has_new_epoch(self) -> bool:
        """Whether the group's epoch is not the one that was last written down."""
        return self.saved is None or self.saved.epoch != self.value.epoch

    @property
    def assignor(self) -> str:
        return self.value.assignor(self._rules)

    @property
    def subscribed_topics(self) -> set[str]:
        names = set().union(*self.value.resolved.values()) if self.value.resolved else set()
        return names.union(*(member.topic_names for member in self.value.members.values()))

    def next_deadline_ms(self) -> int | None:
        return consumer.next_deadline_ms(self.value)

    def take_step(self) -> Step:
        step, self._step = self._step, Step()
        step.must_save = not self._is_dead and self.value != self.saved
        return step

    # --- the consumer protocol ----------------------------------------------------------------

    def consumer_heartbeat(self, said: Heartbeat, *, now_ms: int) -> Reply:
        self._require_alive()
        if said.epoch < 0:
            self.value, reply = consumer.leave(self.value, said)
        else:
            self.value, reply = consumer.heartbeat(
                self.value, said, topics=self.topics, rules=self._rules, now_ms=now_ms
            )
        return reply

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        self._require_alive()
        consumer.check_fetch(self.value, member_id=member_id, epoch=epoch)

    # --- the classic protocol -----------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: Ticket, *, now_ms: int) -> None:
        self._require_alive()
        self.value, joined = interop.join(self.value, request, topics=self.topics, rules=self._rules, now_ms=now_ms)
        self._step.answers.append((ticket, joined))

    def sync(
        self,
        ticket: Ticket,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Iterable[tuple[str, bytes]],
        now_ms: int,
    ) -> None:
        """`assignments` is what a leader would send; nobody leads here."""
        self._require_alive()
        self.value, synced = interop.sync(
            self.value,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            topics=self.topics,
            now_ms=now_ms,
        )
        self._step.answers.append((ticket, synced))

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, *, now_ms: int) -> None:
        self._require_alive()
        self.value, refusal = interop.heartbeat(
            self.value, member_id=member_id, instance_id=instance_id, generation=generation, now_ms=now_ms
        )
        if refusal is not None:
            raise refusal

    def leave(self, identities: Sequence[Identity], *, now_ms: int) -> list[KafkaError | None]:
        self._require_alive()
        self.value, outcomes = interop.leave(self.value, identities)
        return outcomes

    # --- both ---------------------------------------------------------------------------------

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        partitions: Collection[Partition] | None = None,
    ) -> None:
        """May these offsets be committed? `partitions` where they are known: an older epoch may do for them."""
        self._require_alive()
        if is_transactional and generation < 0 and not member_id and instance_id is None:
            return  # a producer that does not say for whom it commits
        consumer.check_commit(
            self.value, member_id=member_id, instance_id=instance_id, epoch=generation, partitions=partitions
        )

    def expire(self, *, now_ms: int) -> None:
        self.value, _ = consumer.expire(self.value, now_ms=now_ms)

    def kill(self, error: KafkaError) -> None:
        """The group is gone, another gateway's, or a classic one from now on. Nobody waits for anything here."""
        self._is_dead = True

    def _require_alive(self) -> None:
        if self._is_dead:
            raise CoordinatorNotAvailable("the group is gone; ask who coordinates it")
