"""Groups over the wire: every version, and each refusal. What is stated here holds for Apache Kafka as well.

`TABLEWIRE_TEST_BOOTSTRAP` must then name a broker whose group.initial.rebalance.delay.ms is 0.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.group_member import (
    FENCED_INSTANCE_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NON_EMPTY_GROUP,
    NONE,
    OFFSET_METADATA_TOO_LARGE,
    REBALANCE_IN_PROGRESS,
    SESSION_MS,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    Member,
    commit,
    describe_group,
    fetch,
    subscription,
    text,
)
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient


@pytest.fixture
def group_id(wire: WireClient) -> str:
    """A group nobody has used; FindCoordinator is asked, as every client does first."""
    name = f"group-{uuid.uuid4().hex[:12]}"

    def ask() -> int:
        answer = wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=[name])
        code: int = answer["coordinators"][0]["error_code"]
        return code

    wait_for(ask, NONE)
    return name


@pytest.fixture
def new_member(wire_bootstrap: str, group_id: str) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def create(**options: Any) -> Member:
        members.append(Member(wire_bootstrap, options.pop("group_id", group_id), **options))
        return members[-1]

    yield create
    for member in members:
        member.close()


def topic_id(wire: WireClient, name: str) -> str:
    answer = wire.call(
        "DescribeTopicPartitions", 0, topics=[{"name": name}], response_partition_limit=2000, cursor=None
    )
    return str(answer["topics"][0]["topic_id"])


# --- members --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(0, 10))
def test_every_version_of_joining(version: int, new_member: Callable[..., Member]) -> None:
    member = new_member()
    joined = member.join(version)
    assert joined["error_code"] == NONE
    assert (joined["generation_id"], joined["leader"], joined["protocol_name"]) == (1, member.member_id, "range")
    assert [(one["member_id"], one["metadata"]) for one in joined["members"]] == [
        (member.member_id, text(subscription("t")))
    ]


@pytest.mark.parametrize("version", range(0, 6))
def test_every_version_of_synchronising(version: int, new_member: Callable[..., Member]) -> None:
    member = new_member()
    member.join()
    synced = member.sync(version, {member.member_id: b"everything"})
    assert (synced["error_code"], synced["assignment"]) == (NONE, "everything")
    assert member.sync(version)["assignment"] == "everything"


@pytest.mark.parametrize("version", range(0, 5))
def test_every_version_of_heartbeats(version: int, new_member: Callable[..., Member]) -> None:
    member = new_member()
    member.settle()
    assert member.heartbeat(version) == NONE
    assert member.heartbeat(version, generation_id=7) == ILLEGAL_GENERATION
    assert member.heartbeat(version, member_id="nobody") == UNKNOWN_MEMBER_ID
    assert member.heartbeat(version, group_id="no such group") == UNKNOWN_MEMBER_ID
    assert member.heartbeat(version, group_id="") == INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(0, 6))
def test_every_version_of_leaving(version: int, new_member: Callable[..., Member]) -> None:
    member = new_member()
    member.settle()
    assert member.leave(version)["error_code"] == NONE
    assert member.heartbeat() == UNKNOWN_MEMBER_ID
    again = member.leave(version)
    code = again["error_code"] if version < 3 else again["members"][0]["error_code"]
    assert code == UNKNOWN_MEMBER_ID


def test_a_new_member_is_given_its_id_first(wire: WireClient, new_member: Callable[..., Member]) -> None:
    member = new_member()
    fields: dict[str, Any] = {
        "group_id": member.group_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    }
    answer = wire.call("JoinGroup", 9, **fields)
    assert answer["error_code"] == MEMBER_ID_REQUIRED
    assert answer["member_id"].startswith("wire-test-")
    assert (answer["generation_id"], answer["leader"], answer["members"]) == (-1, "", [])
    assert (answer["protocol_type"], answer["protocol_name"]) == (None, None)
    assert wire.call("JoinGroup", 9, **{**fields, "member_id": answer["member_id"]})["error_code"] == NONE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"session_timeout_ms": 1}, INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 2_000_000}, INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, INVALID_GROUP_ID),
        ({"member_id": "nobody"}, UNKNOWN_MEMBER_ID),
        ({"protocols": []}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_what_cannot_join(changes: dict[str, Any], code: int, new_member: Callable[..., Member]) -> None:
    answer = new_member().join(**changes)
    assert answer["error_code"] == code
    assert (answer["generation_id"], answer["members"]) == (-1, [])


def test_a_second_member_makes_the_first_join_again(new_member: Callable[..., Member]) -> None:
    first, second = new_member(), new_member()
    first.settle()
    joining = second.begin_join()
    wait_for(first.heartbeat, REBALANCE_IN_PROGRESS)
    assert first.sync()["error_code"] == REBALANCE_IN_PROGRESS
    again = first.join()
    assert joining.result(60)["generation_id"] == again["generation_id"] == 2
    assert {one["member_id"] for one in again["members"]} == {first.member_id, second.member_id}
    waiting = second._thread.submit(second.sync)
    first.sync(assignments={first.member_id: b"one", second.member_id: b"two"})
    assert waiting.result(60)["assignment"] == "two"
    assert first.commit("no topic", 1) == UNKNOWN_TOPIC_OR_PARTITION


def test_nobody_with_another_protocol_joins(new_member: Callable[..., Member]) -> None:
    new_member().settle()
    other = new_member()
    assert other.join(protocol_type="connect")["error_code"] == INCONSISTENT_GROUP_PROTOCOL
    protocols = [{"name": "roundrobin", "metadata": b""}]
    assert other.join(protocols=protocols)["error_code"] == INCONSISTENT_GROUP_PROTOCOL


def test_synchronising_names_the_right_protocol(new_member: Callable[..., Member]) -> None:
    member = new_member()
    member.join()
    for changes in ({"protocol_name": "sticky"}, {"protocol_type": "connect"}, {"protocol_name": None}):
        assert member.sync(**changes)["error_code"] == INCONSISTENT_GROUP_PROTOCOL
    assert member.sync(generation_id=5)["error_code"] == ILLEGAL_GENERATION


def test_a_static_member_takes_its_predecessors_place(new_member: Callable[..., Member]) -> None:
    old, new = new_member(instance_id="worker"), new_member(instance_id="worker")
    old.settle()
    joined = new.join()
    assert (joined["error_code"], joined["generation_id"], joined["skip_assignment"]) == (NONE, 1, True)
    assert new.sync()["assignment"] == "all"
    assert old.heartbeat() == FENCED_INSTANCE_ID
    assert old.sync()["error_code"] == FENCED_INSTANCE_ID
    assert new.heartbeat() == NONE


def test_members_leave_in_one_request(wire: WireClient, new_member: Callable[..., Member]) -> None:
    member = new_member(instance_id="worker")
    member.settle()
    identities = [("", "worker"), ("", "nobody"), ("nobody", None)]
    answer = wire.call(
        "LeaveGroup", 5, group_id=member.group_id,
        members=[{"member_id": name, "group_instance_id": instance, "reason": None} for name, instance in identities],
    )  # fmt: skip
    assert answer["error_code"] == NONE
    assert [one["error_code"] for one in answer["members"]] == [NONE, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID]


def test_a_silent_member_is_removed(new_member: Callable[..., Member]) -> None:
    member = new_member()
    assert member.join(session_timeout_ms=6_000)["error_code"] == NONE
    member.sync(assignments={member.member_id: b"all"})
    describe = lambda: describe_group(member.wire, member.group_id)["group_state"]  # noqa: E731
    wait_for(describe, "Empty")
    assert member.heartbeat() == UNKNOWN_MEMBER_ID


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_of_committing(
    version: int, wire: WireClient, group_id: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    name = topic_id(wire, topic) if version >= 10 else topic
    committed = commit(wire, version, group_id, {name: {0: 5, 1: 7}}, metadata="note", leader_epoch=0)
    assert committed == {name: {0: NONE, 1: NONE}}
    assert fetch(wire, 8, group_id, None) == {topic: {0: (5, "note", NONE), 1: (7, "note", NONE)}}
    unknown = str(uuid.uuid4()) if version >= 10 else "no-such-topic"
    code = UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_TOPIC_OR_PARTITION
    refused = commit(wire, version, group_id, {unknown: {0: 1}, name: {9: 1, 0: 6}})
    assert refused == {unknown: {0: code}, name: {9: UNKNOWN_TOPIC_OR_PARTITION, 0: NONE}}


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_of_fetching_offsets(
    version: int, wire: WireClient, group_id: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    name = topic_id(wire, topic) if version >= 10 else topic
    commit(wire, 8, group_id, {topic: {0: 5}}, metadata="note")
    assert fetch(wire, version, group_id, {name: [0, 1]}) == {name: {0: (5, "note", NONE), 1: (-1, "", NONE)}}
    unknown = str(uuid.uuid4()) if version >= 10 else "no-such-topic"
    code = UNKNOWN_TOPIC_ID if version >= 10 else NONE
    assert fetch(wire, version, group_id, {unknown: [0]}) == {unknown: {0: (-1, "", code)}}
    if version >= 2:
        assert fetch(wire, version, group_id, None) == {name: {0: (5, "note", NONE)}}
        assert fetch(wire, version, "no such group", None) == {}


def test_the_leader_epoch_comes_back(wire: WireClient, group_id: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    commit(wire, 9, group_id, {topic: {0: 5}}, leader_epoch=0)
    answer = wire.call("OffsetFetch", 7, group_id=group_id, topics=None, require_stable=True)
    assert answer["topics"][0]["partitions"][0]["committed_leader_epoch"] == 0


def test_offsets_of_several_groups_at_once(wire: WireClient, group_id: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    commit(wire, 9, group_id, {topic: {0: 5}})
    groups = [
        {"group_id": name, "topics": None, "member_id": None, "member_epoch": -1}
        for name in (group_id, f"{group_id}-other")
    ]
    answer = wire.call("OffsetFetch", 9, groups=groups, require_stable=True)
    assert [len(group["topics"]) for group in answer["groups"]] == [1, 0]


def test_long_metadata_is_refused_alone(wire: WireClient, group_id: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert commit(wire, 9, group_id, {topic: {0: 1}}, metadata="x" * 4097) == {topic: {0: OFFSET_METADATA_TOO_LARGE}}
    assert commit(wire, 9, group_id, {topic: {0: 1}}, metadata="x" * 4096) == {topic: {0: NONE}}


def test_only_members_commit_to_a_group_that_has_some(
    wire: WireClient, new_member: Callable[..., Member], new_topic: Callable[..., str]
) -> None:
    topic, member = new_topic(), new_member()
    member.settle()
    assert member.commit(topic, 5) == NONE
    assert member.commit(topic, 6, generation_id_or_member_epoch=3) == ILLEGAL_GENERATION
    assert member.commit(topic, 6, member_id="nobody") == UNKNOWN_MEMBER_ID
    assert commit(wire, 9, member.group_id, {topic: {0: 6}}) == {topic: {0: UNKNOWN_MEMBER_ID}}
    assert fetch(wire, 9, member.group_id, {topic: [0]})[topic][0][0] == 5
    member.leave()
    assert commit(wire, 9, member.group_id, {topic: {0: 6}}) == {topic: {0: NONE}}


@pytest.mark.parametrize(("version", "code"), [(8, ILLEGAL_GENERATION), (9, GROUP_ID_NOT_FOUND)])
def test_a_member_of_a_group_that_is_gone_cannot_commit(
    version: int, code: int, wire: WireClient, group_id: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    refused = commit(wire, version, group_id, {topic: {0: 1}}, generation_id_or_member_epoch=1, member_id="somebody")
    assert refused == {topic: {0: code}}


def test_nobody_commits_while_the_group_completes_its_rebalance(
    new_member: Callable[..., Member], new_topic: Callable[..., str]
) -> None:
    topic, member = new_topic(), new_member()
    member.join()
    assert member.commit(topic, 1) == REBALANCE_IN_PROGRESS


def test_a_deleted_topic_takes_its_offsets_along(
    wire: WireClient, group_id: str, new_topic: Callable[..., str]
) -> None:
    topic, kept = new_topic(), new_topic()
    commit(wire, 9, group_id, {topic: {0: 1}, kept: {0: 2}})
    wire.call("DeleteTopics", 5, topic_names=[topic], timeout_ms=10_000)
    wait_for(lambda: list(fetch(wire, 9, group_id, None)), [kept])


# --- administration -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(0, 7))
def test_every_version_of_describing(version: int, wire: WireClient, new_member: Callable[..., Member]) -> None:
    member = new_member()
    member.settle()
    group = describe_group(wire, member.group_id, version)
    assert (group["error_code"], group["group_state"]) == (NONE, "Stable")
    assert (group["protocol_type"], group["protocol_data"]) == ("consumer", "range")
    (described,) = group["members"]
    assert (described["member_id"], described["client_id"]) == (member.member_id, "wire-test")
    assert described["client_host"] == "/127.0.0.1"
    assert (described["member_metadata"], described["member_assignment"]) == (text(subscription("t")), "all")


@pytest.mark.parametrize("version", range(0, 7))
def test_a_group_that_is_not_there_is_dead(version: int, wire: WireClient, group_id: str) -> None:
    group = describe_group(wire, group_id, version)
    code = GROUP_ID_NOT_FOUND if version >= 6 else NONE
    assert (group["error_code"], group["group_state"], group["members"]) == (code, "Dead", [])


def test_what_may_be_done_to_a_group_is_told_when_asked(wire: WireClient, new_member: Callable[..., Member]) -> None:
    member = new_member()
    member.settle()
    assert describe_group(wire, member.group_id)["authorized_operations"] is None
    described = describe_group(wire, member.group_id, include_authorized_operations=True)
    assert set(described["authorized_operations"]) == {3, 6, 8, 10, 11}


def list_groups(wire: WireClient, version: int = 5, **changes: Any) -> dict[str, dict[str, Any]]:
    fields: dict[str, Any] = {"states_filter": []} if version >= 4 else {}
    if version >= 5:
        fields["types_filter"] = []
    answer = wire.call("ListGroups", version, **{**fields, **changes})
    assert answer["error_code"] == NONE
    return {group["group_id"]: group for group in answer["groups"]}


@pytest.mark.parametrize("version", range(0, 6))
def test_every_version_of_listing(version: int, wire: WireClient, new_member: Callable[..., Member]) -> None:
    member = new_member()
    member.settle()
    listed = list_groups(wire, version)[member.group_id]
    assert listed["protocol_type"] == "consumer"
    if version >= 4:
        assert listed["group_state"] == "Stable"
        assert member.group_id in list_groups(wire, version, states_filter=["stable", "Empty"])
        assert member.group_id not in list_groups(wire, version, states_filter=["Empty"])
    if version >= 5:
        assert listed["group_type"] == "classic"
        assert member.group_id in list_groups(wire, version, types_filter=["Classic"])
        assert member.group_id not in list_groups(wire, version, types_filter=["consumer"])


def test_a_group_that_only_stores_offsets_is_listed_without_a_protocol(
    wire: WireClient, group_id: str, new_topic: Callable[..., str]
) -> None:
    commit(wire, 9, group_id, {new_topic(): {0: 1}})
    listed = list_groups(wire)[group_id]
    assert (listed["protocol_type"], listed["group_state"], listed["group_type"]) == ("", "Empty", "classic")


@pytest.mark.parametrize("version", range(0, 3))
def test_every_version_of_deleting_groups(
    version: int, wire: WireClient, new_member: Callable[..., Member], new_topic: Callable[..., str]
) -> None:
    topic, member = new_topic(), new_member()

    def delete() -> int:
        (result,) = wire.call("DeleteGroups", version, groups_names=[member.group_id])["results"]
        code: int = result["error_code"]
        return code

    member.settle()
    member.commit(topic, 4)
    assert delete() == NON_EMPTY_GROUP
    member.leave()
    assert delete() == NONE
    assert delete() == GROUP_ID_NOT_FOUND
    assert fetch(wire, 9, member.group_id, None) == {}
    assert member.group_id not in list_groups(wire)


def delete_offsets(wire: WireClient, group_id: str, topic: str, partition: int = 0) -> tuple[int, list[int]]:
    answer = wire.call(
        "OffsetDelete", 0, group_id=group_id,
        topics=[{"name": topic, "partitions": [{"partition_index": partition}]}],
    )  # fmt: skip
    return answer["error_code"], [one["error_code"] for group in answer["topics"] for one in group["partitions"]]


def test_offsets_of_topics_that_are_read_cannot_be_deleted(
    wire: WireClient, new_member: Callable[..., Member], new_topic: Callable[..., str]
) -> None:
    topic, other = new_topic(), new_topic()
    member = new_member(topic=topic)
    member.settle()
    member.commit(topic, 4)
    member.commit(other, 4)
    assert delete_offsets(wire, member.group_id, topic) == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])
    assert delete_offsets(wire, member.group_id, other) == (NONE, [NONE])
    assert delete_offsets(wire, member.group_id, "no-such-topic") == (NONE, [UNKNOWN_TOPIC_OR_PARTITION])
    assert list(fetch(wire, 9, member.group_id, None)) == [topic]
    member.leave()
    assert delete_offsets(wire, member.group_id, topic) == (NONE, [NONE])
    assert fetch(wire, 9, member.group_id, None) == {}


def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted(
    wire: WireClient, group_id: str, new_topic: Callable[..., str]
) -> None:
    assert delete_offsets(wire, group_id, new_topic())[0] == GROUP_ID_NOT_FOUND
