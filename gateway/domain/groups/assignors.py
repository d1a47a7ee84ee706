"""Server-side assignors (KIP-848): which member of a consumer group gets which partitions.

`uniform` levels out how many partitions members have and then moves as few as it can; `range` gives each member
the same range of every topic, so that equally partitioned topics can be joined. Both are deterministic.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias
from uuid import UUID

__all__ = ["ASSIGNORS", "Assignment", "Candidate", "Partition", "assign_range", "assign_uniform"]


class Partition(NamedTuple):
    """A partition by its topic's id: a topic that is created anew under the same name is another one."""

    topic: UUID
    number: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as assignors see it: the topics it wants, all of which exist, and what it was to have so far."""

    topics: frozenset[UUID]
    owned: frozenset[Partition] = frozenset()
    instance_id: str | None = None


Assignment: TypeAlias = dict[str, frozenset[Partition]]
PartitionCounts: TypeAlias = Mapping[UUID, int]
Assignor: TypeAlias = Callable[[Mapping[str, Candidate], PartitionCounts], Assignment]


def assign_uniform(members: Mapping[str, Candidate], counts: PartitionCounts) -> Assignment:
    """As even as the subscriptions allow; among even assignments, members keep what they have."""
    if len({member.topics for member in members.values()}) <= 1:
        return _assign_evenly(members, counts)
    return _Levelling(members, counts).assignment()


def assign_range(members: Mapping[str, Candidate], counts: PartitionCounts) -> Assignment:
    """Consecutive partitions of each topic, in the same order of members for all topics.

    Static members come first, by instance id, so that a restart moves nothing.
    """
    order = sorted(members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name))
    given: dict[str, list[Partition]] = {name: [] for name in members}
    for topic, subscribers in _subscribers(order, members).items():
        least, extra = divmod(counts[topic], len(subscribers))
        start = 0
        for position, name in enumerate(subscribers):
            end = start + least + (position < extra)
            given[name].extend(Partition(topic, number) for number in range(start, end))
            start = end
    return {name: frozenset(partitions) for name, partitions in given.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""By the name that clients and `group.consumer.assignors` use."""


def _assign_evenly(members: Mapping[str, Candidate], counts: PartitionCounts) -> Assignment:
    """All members want the same topics: a quota for each, which differs by one at most."""
    if not members:
        return {}
    topics = next(iter(members.values())).topics
    everything = _partitions(topics, counts)
    owned = _valid_ownership(members, counts)
    least, extra = divmod(len(everything), len(members))
    # Who has most keeps most: the larger quotas go where they save moves.
    order = sorted(members, key=lambda name: (-len(owned[name]), name))
    kept: dict[str, list[Partition]] = {}
    for position, name in enumerate(order):
        kept[name] = sorted(owned[name])[: least + (position < extra)]
    free = iter(sorted(everything.difference(*kept.values())))
    for position, name in enumerate(order):
        missing = least + (position < extra) - len(kept[name])
        kept[name].extend(next(free) for _ in range(missing))
    return {name: frozenset(partitions) for name, partitions in kept.items()}


class _Levelling:
    """Members want different topics: keep what is owned, hand out the rest, then level out by moves.

    A move may pass through several members: one gives a partition to a second, which gives another one to a third.
    When no such chain leads from a member to one that has two fewer, no assignment is more even.
    """

    def __init__(self, members: Mapping[str, Candidate], counts: PartitionCounts) -> None:
        self._members = members
        self._before = _valid_ownership(members, counts)
        self._subscribers = _subscribers(sorted(members), members)
        self._given: dict[str, dict[UUID, set[Partition]]] = {name: defaultdict(set) for name in members}
        self._sizes = dict.fromkeys(members, 0)
        taken: set[Partition] = set()
        for name, partitions in self._before.items():
            taken.update(partitions)
            for partition in partitions:
                self._give(name, partition)
        free = _partitions(self._subscribers, counts) - taken
        # Partitions with the least choice of members first.
        for partition in sorted(free, key=lambda one: (len(self._subscribers[one.topic]), one)):
            self._give(min(self._subscribers[partition.topic], key=self._load), partition)
        while self._level_once():
            pass

    def assignment(self) -> Assignment:
        return {name: frozenset().union(*topics.values()) for name, topics in self._given.items()}

    def _load(self, name: str) -> tuple[int, str]:
        return self._sizes[name], name

    def _give(self, name: str, partition: Partition) -> None:
        self._given[name][partition.topic].add(partition)
        self._sizes[name] += 1

    def _move(self, partition: Partition, giver: str, taker: str) -> None:
        self._given[giver][partition.topic].discard(partition)
        self._sizes[giver] -= 1
        self._give(taker, partition)

    def _level_once(self) -> bool:
        """Find one member with too much and a chain to one with two fewer; False when there is none."""
        lightest = min(self._sizes.values())
        for heaviest in sorted(self._sizes, key=lambda name: (-self._sizes[name], name)):
            if self._sizes[heaviest] < lightest + 2:
                return False
            if (chain := self._find_chain(heaviest)) is not None:
                for giver, taker in pairwise(chain):
                    self._move(self._choose(giver, taker), giver, taker)
                return True
        return False

    def _find_chain(self, heaviest: str) -> Sequence[str] | None:
        enough = self._sizes[heaviest] - 1
        came_from: dict[str, str | None] = {heaviest: None}
        queue = deque([heaviest])
        seen_topics: set[UUID] = set()
        while queue:
            giver = queue.popleft()
            for topic in sorted(self._given[giver]):
                if topic in seen_topics or not self._given[giver][topic]:
                    continue
                seen_topics.add(topic)  # all its subscribers are reached from here
                for taker in sorted(self._subscribers[topic], key=self._load):
                    if taker in came_from:
                        continue
                    came_from[taker] = giver
                    if self._sizes[taker] < enough:
                        return _walk_back(came_from, taker)
                    queue.append(taker)
        return None

    def _choose(self, giver: str, taker: str) -> Partition:
        """The partition whose move costs least: one that goes home, or that is not at home where it is."""
        wanted = self._members[taker].topics

        def cost(partition: Partition) -> tuple[bool, bool, Partition]:
            return partition not in self._before[taker], partition in self._before[giver], partition

        movable = (
            partition for topic, partitions in self._given[giver].items() if topic in wanted for partition in partitions
        )
        return min(movable, key=cost)


def _walk_back(came_from: Mapping[str, str | None], last: str) -> list[str]:
    chain = [last]
    while (previous := came_from[chain[-1]]) is not None:
        chain.append(previous)
    return chain[::-1]


def _subscribers(order: Iterable[str], members: Mapping[str, Candidate]) -> dict[UUID, list[str]]:
    found: dict[UUID, list[str]] = defaultdict(list)
    for name in order:
        for topic in members[name].topics:
            found[topic].append(name)
    return dict(found)


def _partitions(topics: Iterable[UUID], counts: PartitionCounts) -> set[Partition]:
    return {Partition(topic, number) for topic in topics for number in range(counts[topic])}


def _valid_ownership(members: Mapping[str, Candidate], counts: PartitionCounts) -> dict[str, set[Partition]]:
    """What members may keep: of topics they want, that exist, and each partition once."""
    taken: set[Partition] = set()
    valid: dict[str, set[Partition]] = {}
    for name in sorted(members):
        member = members[name]
        mine = {one for one in member.owned if one.topic in member.topics and one.number < counts[one.topic]}
        valid[name] = mine - taken
        taken |= mine
    return valid
