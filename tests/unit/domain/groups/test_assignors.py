"""Who gets which partitions: by example, then against a brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.groups.assignors import (
    ASSIGNORS,
    Assignment,
    Candidate,
    Partition,
    assign_range,
    assign_uniform,
)

ORDERS, PAYMENTS, AUDIT = UUID(int=1), UUID(int=2), UUID(int=3)


def of(topic: UUID, *numbers: int) -> frozenset[Partition]:
    return frozenset(Partition(topic, number) for number in numbers)


def sizes(assignment: Assignment) -> list[int]:
    return sorted(map(len, assignment.values()))


def rejoin(members: Mapping[str, Candidate], assignment: Assignment) -> dict[str, Candidate]:
    """The same members, each with what it was given."""
    return {name: replace(member, owned=assignment[name]) for name, member in members.items()}


def moves(before: Mapping[str, Candidate], after: Assignment) -> int:
    """How many partitions a member that still wants them has to give up."""
    return sum(len(member.owned - after.get(name, frozenset())) for name, member in before.items())


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_nobody_gets_nothing(assignor: str) -> None:
    assert ASSIGNORS[assignor]({}, {}) == {}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_member_without_topics_gets_nothing(assignor: str) -> None:
    members = {"a": Candidate(frozenset()), "b": Candidate(frozenset({ORDERS}))}
    assert ASSIGNORS[assignor](members, {ORDERS: 2}) == {"a": frozenset(), "b": of(ORDERS, 0, 1)}


def test_uniform_gives_everybody_the_same_number() -> None:
    both = frozenset({ORDERS, PAYMENTS})
    given = assign_uniform({name: Candidate(both) for name in "abc"}, {ORDERS: 4, PAYMENTS: 4})
    assert sizes(given) == [2, 3, 3]


def test_uniform_takes_from_members_only_what_a_new_one_needs() -> None:
    wants = frozenset({ORDERS})
    members = {
        "a": Candidate(wants, of(ORDERS, 0, 1, 2)),
        "b": Candidate(wants, of(ORDERS, 3, 4, 5)),
        "c": Candidate(wants),
    }
    given = assign_uniform(members, {ORDERS: 6})
    assert sizes(given) == [2, 2, 2]
    assert given["a"] < members["a"].owned
    assert given["b"] < members["b"].owned


def test_uniform_hands_a_leavers_partitions_to_the_rest() -> None:
    wants = frozenset({ORDERS})
    members = {"a": Candidate(wants, of(ORDERS, 0, 1)), "b": Candidate(wants, of(ORDERS, 2, 3))}
    given = assign_uniform(members, {ORDERS: 6})
    assert all(member.owned < given[name] for name, member in members.items())
    assert sizes(given) == [3, 3]


def test_uniform_lets_the_one_with_more_keep_it() -> None:
    wants = frozenset({ORDERS})
    members = {"a": Candidate(wants, of(ORDERS, 0)), "b": Candidate(wants, of(ORDERS, 1, 2))}
    assert assign_uniform(members, {ORDERS: 3}) == {"a": of(ORDERS, 0), "b": of(ORDERS, 1, 2)}


def test_uniform_respects_different_subscriptions() -> None:
    members = {
        "a": Candidate(frozenset({ORDERS})),
        "b": Candidate(frozenset({ORDERS, PAYMENTS})),
        "c": Candidate(frozenset({PAYMENTS, AUDIT})),
    }
    given = assign_uniform(members, {ORDERS: 3, PAYMENTS: 3, AUDIT: 1})
    assert sizes(given) == [2, 2, 3]


def test_uniform_levels_out_through_a_third_member() -> None:
    """`a` can only give to `b`, and `b` only what `c` wants."""
    members = {
        "a": Candidate(frozenset({ORDERS}), of(ORDERS, 0, 1, 2)),
        "b": Candidate(frozenset({ORDERS, PAYMENTS}), of(PAYMENTS, 0, 1)),
        "c": Candidate(frozenset({PAYMENTS}), of(PAYMENTS, 2)),
    }
    assert sizes(assign_uniform(members, {ORDERS: 3, PAYMENTS: 3})) == [2, 2, 2]


def test_range_gives_the_same_range_of_every_topic() -> None:
    both = frozenset({ORDERS, PAYMENTS})
    given = assign_range({name: Candidate(both) for name in "ab"}, {ORDERS: 3, PAYMENTS: 3})
    assert given == {"a": of(ORDERS, 0, 1) | of(PAYMENTS, 0, 1), "b": of(ORDERS, 2) | of(PAYMENTS, 2)}


def test_range_keeps_static_members_where_they_were() -> None:
    wants = frozenset({ORDERS})
    before = assign_range({"z": Candidate(wants, instance_id="1"), "y": Candidate(wants, instance_id="2")}, {ORDERS: 4})
    after = assign_range({"a": Candidate(wants, instance_id="2"), "b": Candidate(wants, instance_id="1")}, {ORDERS: 4})
    assert (before["z"], before["y"]) == (after["b"], after["a"])


TOPICS = st.dictionaries(st.sampled_from([UUID(int=n) for n in range(1, 6)]), st.integers(1, 8), min_size=1)


@st.composite
def groups(draw: st.DrawFn, *, same: bool = False) -> tuple[dict[str, Candidate], dict[UUID, int]]:
    """A group whose members have what an arbitrary former assignment left them, even of topics that are gone."""
    counts = draw(TOPICS)
    names = draw(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=7))
    all_topics = frozenset(counts)
    wanted = {
        name: all_topics if same else frozenset(draw(st.sets(st.sampled_from(sorted(counts)))))
        for name in sorted(names)
    }
    owned: dict[str, set[Partition]] = {name: set() for name in names}
    for topic, count in [*counts.items(), (UUID(int=99), 2)]:
        for number in range(count + 1):
            owner = draw(st.sampled_from([None, *sorted(names)]))
            if owner is not None:
                owned[owner].add(Partition(topic, number))
    return {name: Candidate(wanted[name], frozenset(owned[name])) for name in names}, counts


def wanted_partitions(members: Mapping[str, Candidate], counts: Mapping[UUID, int]) -> set[Partition]:
    topics = {topic for member in members.values() for topic in member.topics}
    return {Partition(topic, number) for topic in topics for number in range(counts[topic])}


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(group=groups())
def test_each_wanted_partition_has_exactly_one_owner_that_wants_it(
    assignor: str, group: tuple[dict[str, Candidate], dict[UUID, int]]
) -> None:
    members, counts = group
    given = ASSIGNORS[assignor](members, counts)
    assert given.keys() == members.keys()
    owners = Counter(partition for partitions in given.values() for partition in partitions)
    assert owners == Counter(wanted_partitions(members, counts))
    assert all(partition.topic in members[name].topics for name, mine in given.items() for partition in mine)


@given(group=groups(same=True))
def test_uniform_is_balanced_within_one_and_moves_no_more_than_it_must(
    group: tuple[dict[str, Candidate], dict[UUID, int]],
) -> None:
    members, counts = group
    given = assign_uniform(members, counts)
    assert sizes(given)[-1] - sizes(given)[0] <= 1
    # What must go: partitions that are gone, and what is above the largest quotas.
    least, extra = divmod(sum(counts.values()), len(members))
    valid = sorted(
        (sum(one.number < counts.get(one.topic, 0) for one in member.owned) for member in members.values()),
        reverse=True,
    )
    kept = sum(min(size, least + (position < extra)) for position, size in enumerate(valid))
    assert sum(len(member.owned & given[name]) for name, member in members.items()) == kept


@given(group=groups())
def test_uniform_changes_nothing_when_nothing_changed(
    group: tuple[dict[str, Candidate], dict[UUID, int]],
) -> None:
    members, counts = group
    given = assign_uniform(members, counts)
    assert assign_uniform(rejoin(members, given), counts) == given


@given(group=groups(same=True), data=st.data())
def test_uniform_leaves_members_what_they_have_when_others_leave(
    group: tuple[dict[str, Candidate], dict[UUID, int]], data: st.DataObject
) -> None:
    members, counts = group
    settled = rejoin(members, assign_uniform(members, counts))
    stay = {name: settled[name] for name in data.draw(st.sets(st.sampled_from(sorted(settled)), min_size=1))}
    assert moves(stay, assign_uniform(stay, counts)) == 0


@given(
    members=st.dictionaries(
        st.sampled_from("abc"), st.frozensets(st.sampled_from([ORDERS, PAYMENTS, AUDIT]), min_size=1), min_size=1
    ),
    counts=st.fixed_dictionaries({topic: st.integers(1, 2) for topic in (ORDERS, PAYMENTS, AUDIT)}),
)
def test_no_assignment_is_more_even_than_uniform(members: dict[str, frozenset[UUID]], counts: dict[UUID, int]) -> None:
    candidates = {name: Candidate(topics) for name, topics in members.items()}
    partitions = sorted(wanted_partitions(candidates, counts))
    choices = [[name for name in members if one.topic in members[name]] for one in partitions]
    best = min(sum(n * n for n in Counter(owners).values()) for owners in product(*choices))
    assert sum(n * n for n in sizes(assign_uniform(candidates, counts))) == best


@given(group=groups(same=True))
def test_range_co_partitions(group: tuple[dict[str, Candidate], dict[UUID, int]]) -> None:
    members, counts = group
    given = assign_range(members, counts)
    for mine in given.values():
        for one, other in product(counts, repeat=2):
            if counts[one] == counts[other]:
                assert {p.number for p in mine if p.topic == one} == {p.number for p in mine if p.topic == other}
