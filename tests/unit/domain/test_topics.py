"""Topic names, partition counts and assignments: the texts and codes a Kafka broker answers."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.topics import (
    MAX_NAME_LENGTH,
    NewTopic,
    collision_key,
    decide_added_partitions,
    decide_new_topic,
    find_collision,
    require_partitions_per_request,
    validate_topic_name,
)
from gateway.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
)

ALLOWED = string.ascii_letters + string.digits + "._-"
valid_names = st.text(ALLOWED, min_size=1, max_size=MAX_NAME_LENGTH).filter(lambda name: name not in (".", ".."))

Assignments = list[tuple[int, list[int]]]


def new_topic(
    name: str = "orders",
    *,
    num_partitions: int = 3,
    replication_factor: int = 1,
    assignments: Assignments | None = None,
    existing: tuple[str, ...] = (),
    max_partitions: int = 100,
    known_broker_ids: tuple[int, ...] = (1,),
) -> NewTopic:
    return decide_new_topic(
        name,
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        assignments=assignments or (),
        default_partitions=4,
        known_broker_ids=known_broker_ids,
        existing=existing,
        max_partitions=max_partitions,
    )


def assigned_topic(assignments: Assignments, known_broker_ids: tuple[int, ...] = (1,)) -> NewTopic:
    return new_topic(
        num_partitions=-1, replication_factor=-1, assignments=assignments, known_broker_ids=known_broker_ids
    )


# Names


@given(valid_names)
def test_every_name_of_allowed_characters_and_length_is_valid(name: str) -> None:
    validate_topic_name(name)


@given(st.text())
def test_a_name_is_valid_exactly_as_the_rule_reads(name: str) -> None:
    allowed = 0 < len(name) <= MAX_NAME_LENGTH and name not in (".", "..") and set(name) <= set(ALLOWED)
    if allowed:
        validate_topic_name(name)
    else:
        with pytest.raises(InvalidTopic):
            validate_topic_name(name)


@pytest.mark.parametrize("name", ["a" * 249, "...", "-", "_", "A.b_c-9", "__consumer_offsets"])
def test_names_at_the_edge_of_the_rule_are_valid(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, "longer than the max allowed length 249"),
        ("a/b", "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a b", "other than ASCII alphanumerics"),
        ("a\n", "other than ASCII alphanumerics"),
        ("a\0", "other than ASCII alphanumerics"),
        ("größe", "other than ASCII alphanumerics"),
        ("٣", "other than ASCII alphanumerics"),
    ],
)
def test_an_invalid_name_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopic, match=r"^Topic name is invalid: ") as refusal:
        validate_topic_name(name)
    assert reason in refusal.value.message
    assert refusal.value.code is ErrorCode.invalid_topic_exception


def test_the_refusal_of_an_enormous_name_stays_short() -> None:
    with pytest.raises(InvalidTopic) as refusal:
        validate_topic_name("a" * 1_000_000)
    assert len(refusal.value.message) < 400


def test_names_that_differ_in_dot_and_underscore_only_collide() -> None:
    assert find_collision("a.b_c", ["x", "a_b.c", "a-b-c"]) == "a_b.c"


def test_a_topic_does_not_collide_with_itself_or_with_others() -> None:
    assert find_collision("a.b", ["a.b", "a-b", "ab", "a.b.c"]) is None


@given(valid_names, st.lists(valid_names))
def test_a_collision_has_an_equal_key_and_another_name(name: str, existing: list[str]) -> None:
    found = find_collision(name, existing)
    colliding = [other for other in existing if other != name and collision_key(other) == collision_key(name)]
    assert found == (colliding[0] if colliding else None)


# New topics


def test_a_new_topic_has_the_partitions_asked_for() -> None:
    assert new_topic(num_partitions=3) == NewTopic("orders", partition_count=3, replication_factor=1)


def test_minus_one_asks_for_the_default_number_of_partitions() -> None:
    assert new_topic(num_partitions=-1, replication_factor=-1).partition_count == 4


@pytest.mark.parametrize("count", [0, -2, -(2**31)])
def test_a_topic_without_partitions_is_refused(count: int) -> None:
    with pytest.raises(InvalidPartitions, match="invalid non-positive value"):
        new_topic(num_partitions=count)


@pytest.mark.parametrize("factor", [0, -2])
def test_a_replication_factor_below_one_is_refused(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match="must be larger than 0, or -1"):
        new_topic(replication_factor=factor)


def test_a_second_copy_is_refused_because_postgresql_keeps_it() -> None:
    with pytest.raises(InvalidReplicationFactor, match="3 larger than available brokers: 1"):
        new_topic(replication_factor=3)


def test_the_largest_allowed_number_of_partitions_is_allowed() -> None:
    assert new_topic(num_partitions=100, max_partitions=100).partition_count == 100


def test_more_partitions_than_allowed_are_a_policy_violation() -> None:
    with pytest.raises(PolicyViolation, match="101, where at most 100"):
        new_topic(num_partitions=101, max_partitions=100)


def test_a_name_that_collides_is_refused_with_the_other_name() -> None:
    with pytest.raises(InvalidTopic, match=r"'a\.b' collides with existing topic: a_b"):
        new_topic("a.b", existing=("a_b",))


def test_kafkas_own_metadata_topic_cannot_be_created() -> None:
    with pytest.raises(InvalidRequest, match="internal topic __cluster_metadata is prohibited"):
        new_topic("__cluster_metadata")


def test_the_name_is_judged_first() -> None:
    with pytest.raises(InvalidTopic):
        new_topic("a/b", num_partitions=0, replication_factor=9)


# Manual assignments


@given(st.integers(1, 20).flatmap(lambda count: st.permutations(range(count))))
def test_an_assignment_in_any_order_makes_its_partitions(order: list[int]) -> None:
    assert assigned_topic([(partition, [1]) for partition in order]).partition_count == len(order)


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        ([(1, [1])], "consecutive 0-based"),
        ([(0, [1]), (2, [1])], "consecutive 0-based"),
        ([(-1, [1])], "consecutive 0-based"),
        ([(-1, [1]), (0, [1])], "consecutive 0-based"),
        ([(-1, [1]), (1, [1])], "consecutive 0-based"),
        ([(0, [1]), (0, [1])], "multiple manual partition assignments for partition 0"),
        ([(0, [])], "empty replica list"),
        ([(0, [1, 1])], "the broker 1 more than once"),
        ([(0, [2])], "broker 2, but no such broker"),
        ([(0, [1, 2])], "broker 2, but no such broker"),
        ([(0, [-1])], "broker -1, but no such broker"),
    ],
)
def test_a_wrong_assignment_is_refused_with_the_reason(assignments: Assignments, reason: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=reason):
        assigned_topic(assignments)


def test_an_assignment_to_any_live_gateway_is_accepted() -> None:
    assert assigned_topic([(0, [1]), (1, [2])], known_broker_ids=(1, 2)).partition_count == 2


def test_an_assignment_of_two_copies_is_refused_even_with_two_gateways() -> None:
    with pytest.raises(InvalidReplicaAssignment, match="one copy of each"):
        assigned_topic([(0, [1, 2])], known_broker_ids=(1, 2))


@pytest.mark.parametrize(
    ("partitions", "factor", "reason"),
    [(1, -1, "numPartitions was not set to -1"), (-1, 1, "replication factor was not set to -1")],
)
def test_an_assignment_and_a_count_contradict_each_other(partitions: int, factor: int, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        new_topic(num_partitions=partitions, replication_factor=factor, assignments=[(0, [1])])


def test_an_assignment_counts_against_the_limit() -> None:
    with pytest.raises(PolicyViolation):
        assigned_topic([(partition, [1]) for partition in range(101)])


@given(
    st.lists(st.tuples(st.integers(-1, 3), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=4),
    st.frozensets(st.integers(0, 3)),
)
def test_an_assignment_is_accepted_exactly_when_it_is_complete(assignments: Assignments, known: frozenset[int]) -> None:
    partitions = [partition for partition, _ in assignments]
    complete = sorted(partitions) == list(range(len(partitions)))
    complete = complete and all(len(ids) == 1 and ids[0] in known for _, ids in assignments)
    if complete:
        assert assigned_topic(assignments, tuple(known)).partition_count == len(assignments)
    else:
        with pytest.raises(InvalidReplicaAssignment):
            assigned_topic(assignments, tuple(known))


# More partitions


def added(current: int, wanted: int, assignments: list[list[int]] | None = None) -> range:
    return decide_added_partitions(
        "orders",
        current=current,
        wanted=wanted,
        assignments=assignments,
        known_broker_ids=(1,),
        max_partitions=100,
    )


def test_added_partitions_follow_the_existing_ones() -> None:
    assert added(2, 5) == range(2, 5)


def test_a_topic_can_grow_to_the_limit_and_no_further() -> None:
    assert added(2, 100) == range(2, 100)
    with pytest.raises(PolicyViolation, match="101, where at most 100"):
        added(2, 101)


@pytest.mark.parametrize("wanted", [1, 0, -1])
def test_a_topic_cannot_shrink(wanted: int) -> None:
    with pytest.raises(InvalidPartitions, match=f"has 2 partition\\(s\\); {wanted} would not be an increase"):
        added(2, wanted)


def test_as_many_partitions_as_there_are_is_not_a_change() -> None:
    with pytest.raises(InvalidPartitions, match="already has 2"):
        added(2, 2)


def test_added_partitions_may_be_assigned() -> None:
    assert added(2, 4, [[1], [1]]) == range(2, 4)


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        ([], "add 1 additional partition\\(s\\), but 0 assignment"),
        ([[1], [1]], "but 2 assignment"),
        ([[]], "empty replica list"),
        ([[9]], "broker 9, but no such broker"),
        ([[1, 1]], "more than once"),
    ],
)
def test_a_wrong_assignment_of_added_partitions_is_refused(assignments: list[list[int]], reason: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=reason):
        added(2, 3, assignments)


def test_a_request_may_not_make_more_partitions_than_allowed() -> None:
    require_partitions_per_request(10, limit=10)
    with pytest.raises(PolicyViolation, match="per request: 11, where at most 10") as refusal:
        require_partitions_per_request(11, limit=10)
    assert refusal.value.code is ErrorCode.policy_violation
