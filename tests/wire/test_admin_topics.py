"""CreateTopics, DeleteTopics and CreatePartitions in raw requests of every version."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient, new_topic_entry, partition_count

NewTopic = Callable[..., str]

UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, BAD_FACTOR = 3, 17, 36, 37, 38
BAD_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION, DELETION_DISABLED, UNKNOWN_ID = (
    39,
    40,
    42,
    44,
    73,
    100,
)


def create(
    wire: WireClient, *entries: dict[str, Any], version: int = 7, validate_only: bool = False
) -> dict[str, dict[str, Any]]:
    answer = wire.call("CreateTopics", version, topics=list(entries), timeout_ms=10_000, validate_only=validate_only)
    assert len({one["name"] for one in answer["topics"]}) == len(answer["topics"]), "a name is answered once"
    return {one["name"]: one for one in answer["topics"]}


def delete(wire: WireClient, *topics: tuple[str | None, Any], version: int = 6) -> list[dict[str, Any]]:
    if version >= 6:
        fields: dict[str, Any] = {"topics": [{"name": name, "topic_id": topic_id} for name, topic_id in topics]}
    else:
        fields = {"topic_names": [name for name, _ in topics]}
    return wire.call("DeleteTopics", version, timeout_ms=10_000, **fields)["responses"]  # type: ignore[no-any-return]


def grow(wire: WireClient, name: str, count: int, *, version: int = 3, **options: Any) -> int:
    entry = {"name": name, "count": count, "assignments": options.get("assignments")}
    answer = wire.call(
        "CreatePartitions",
        version,
        topics=[entry],
        timeout_ms=10_000,
        validate_only=options.get("validate_only", False),
    )
    (result,) = answer["results"]
    assert result["name"] == name
    return result["error_code"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(wire: WireClient, topic: str, version: int) -> None:
    made = create(wire, new_topic_entry(topic, 3, retention_ms="1000"), version=version)[topic]
    assert (made["error_code"], made["error_message"]) == (0, None)
    if version >= 5:
        assert (made["num_partitions"], made["replication_factor"]) == (3, 1)
        configs = {config["name"]: config for config in made["configs"]}
        assert (configs["retention.ms"]["value"], configs["retention.ms"]["config_source"]) == ("1000", 1)
        assert (configs["cleanup.policy"]["value"], configs["cleanup.policy"]["config_source"]) == ("delete", 5)
    if version >= 7:
        assert made["topic_id"]
    wait_for(lambda: partition_count(wire, topic), 3)
    assert create(wire, new_topic_entry(topic), version=version)[topic]["error_code"] == TOPIC_EXISTS


@pytest.mark.parametrize("version", range(2, 8))
def test_validate_only_judges_and_creates_nothing(wire: WireClient, topic: str, version: int) -> None:
    entries = [new_topic_entry(topic, 3), new_topic_entry(f"{topic}-none", 0)]
    judged = create(wire, *entries, version=version, validate_only=True)
    assert judged[topic]["error_code"] == 0
    assert judged[f"{topic}-none"]["error_code"] == INVALID_PARTITIONS
    assert partition_count(wire, topic) == 0


def test_each_topic_of_a_request_has_its_own_result(wire: WireClient, topic: str) -> None:
    entries = {
        0: new_topic_entry(topic),
        INVALID_TOPIC: new_topic_entry(f"{topic} with spaces"),
        INVALID_PARTITIONS: new_topic_entry(f"{topic}-partitions", -5),
        BAD_FACTOR: {**new_topic_entry(f"{topic}-factor"), "replication_factor": 7},
        BAD_ASSIGNMENT: {
            **new_topic_entry(f"{topic}-assigned", -1),
            "assignments": [{"partition_index": 0, "broker_ids": [987_654]}],
        },
        INVALID_CONFIG: new_topic_entry(f"{topic}-config", no_such_config="1"),
    }
    made = create(wire, *entries.values())
    assert {code: made[entry["name"]]["error_code"] for code, entry in entries.items()} == {
        code: code for code in entries
    }
    assert all(one["error_message"] for one in made.values() if one["error_code"])
    wait_for(lambda: partition_count(wire, topic), 1)
    assert not any(partition_count(wire, entry["name"]) for code, entry in entries.items() if code)


def test_a_name_given_twice_is_refused_once_and_the_others_are_made(wire: WireClient, topic: str) -> None:
    made = create(wire, new_topic_entry(topic), new_topic_entry(topic, 2), new_topic_entry(f"{topic}-other"))
    assert made[topic]["error_code"] == INVALID_REQUEST
    assert made[f"{topic}-other"]["error_code"] == 0
    assert partition_count(wire, topic) == 0


def test_names_that_metrics_could_not_tell_apart_collide(wire: WireClient, topic: str) -> None:
    create(wire, new_topic_entry(f"{topic}.a_b"))
    wait_for(lambda: partition_count(wire, f"{topic}.a_b"), 1)
    assert create(wire, new_topic_entry(f"{topic}_a.b"))[f"{topic}_a.b"]["error_code"] == INVALID_TOPIC


def test_too_many_partitions_at_once_refuse_the_whole_request(wire: WireClient, topic: str) -> None:
    made = create(wire, new_topic_entry(f"{topic}-a", 9_999), new_topic_entry(f"{topic}-b", 2))
    assert [one["error_code"] for one in made.values()] == [POLICY_VIOLATION] * 2
    assert partition_count(wire, f"{topic}-b") == 0


def test_an_existing_topic_is_refused_for_that_first(wire: WireClient, new_topic: NewTopic) -> None:
    name = new_topic()
    entries = [new_topic_entry(name, 0), new_topic_entry(name, no_such_config="1")]
    assert [create(wire, entry)[name]["error_code"] for entry in entries] == [TOPIC_EXISTS] * 2


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_name_in_every_version(
    wire: WireClient, new_topic: NewTopic, topic: str, version: int
) -> None:
    name = new_topic(2)
    deleted = {one["name"]: one for one in delete(wire, (name, None), (f"{topic}-never", None), version=version)}
    assert deleted[name]["error_code"] == 0
    assert deleted[f"{topic}-never"]["error_code"] == UNKNOWN_TOPIC
    if version >= 5:
        assert deleted[f"{topic}-never"]["error_message"]
    wait_for(lambda: partition_count(wire, name), 0)


def test_topics_are_deleted_by_id_once(wire: WireClient, topic: str) -> None:
    topic_id = create(wire, new_topic_entry(topic))[topic]["topic_id"]
    wait_for(lambda: partition_count(wire, topic), 1)
    (deleted,) = delete(wire, (None, topic_id))
    assert (deleted["name"], deleted["topic_id"], deleted["error_code"]) == (topic, topic_id, 0)
    wait_for(lambda: delete(wire, (None, topic_id))[0]["error_code"], UNKNOWN_ID)
    assert delete(wire, (None, uuid.UUID(int=5)))[0]["error_code"] == UNKNOWN_ID


def test_a_contradictory_deletion_deletes_nothing(wire: WireClient, topic: str) -> None:
    topic_id = create(wire, new_topic_entry(topic))[topic]["topic_id"]
    wait_for(lambda: partition_count(wire, topic), 1)
    for wishes in (
        [(topic, None), (topic, None)],
        [(None, topic_id), (None, topic_id)],
        [(topic, None), (None, topic_id)],
        [(topic, topic_id)],
        [(None, None)],
    ):
        assert {one["error_code"] for one in delete(wire, *wishes)} == {INVALID_REQUEST}, wishes
    assert partition_count(wire, topic) == 1


def test_deletion_can_be_forbidden(database_url: str, tmp_path: Path) -> None:
    settings = {"TABLEWIRE_DELETE_TOPIC_ENABLE": "false"}
    with (
        GatewayProcess(database_url, directory=tmp_path, settings=settings) as gateway,
        WireClient(gateway.bootstrap) as wire,
    ):
        create(wire, new_topic_entry("kept"))
        assert delete(wire, ("kept", None))[0]["error_code"] == DELETION_DISABLED
        assert delete(wire, ("kept", None), version=2)[0]["error_code"] == INVALID_REQUEST
        assert partition_count(wire, "kept") == 1


@pytest.mark.parametrize("version", range(0, 4))
def test_partitions_are_added_in_every_version(wire: WireClient, new_topic: NewTopic, version: int) -> None:
    name = new_topic(2)
    assert grow(wire, name, 5, version=version, validate_only=True) == 0
    assert partition_count(wire, name) == 2
    assert grow(wire, name, 5, version=version) == 0
    wait_for(lambda: partition_count(wire, name), 5)


def test_partitions_only_grow_and_only_where_they_can(wire: WireClient, new_topic: NewTopic, topic: str) -> None:
    name = new_topic(2)
    assert [grow(wire, name, count) for count in (2, 1, 0, -1)] == [INVALID_PARTITIONS] * 4
    assert grow(wire, f"{topic}-never", 3) == UNKNOWN_TOPIC
    assert grow(wire, name, 3, assignments=[]) == BAD_ASSIGNMENT
    assert grow(wire, name, 3, assignments=[{"broker_ids": [987_654]}]) == BAD_ASSIGNMENT
    twice = [{"name": name, "count": 3, "assignments": None}] * 2
    answer = wire.call("CreatePartitions", 3, topics=twice, timeout_ms=10_000, validate_only=False)
    assert {one["error_code"] for one in answer["results"]} == {INVALID_REQUEST}
    assert partition_count(wire, name) == 2


def test_too_many_partitions_are_not_added(wire_gateway: GatewayProcess, new_topic: NewTopic) -> None:
    name = new_topic()
    with WireClient(wire_gateway.bootstrap) as wire:
        assert grow(wire, name, 2**31 - 1) == POLICY_VIOLATION
        assert partition_count(wire, name) == 1


def test_two_gateways_add_partitions_once(database_url: str, topic: str, tmp_path: Path) -> None:
    name = topic
    with (
        GatewayProcess(database_url, directory=tmp_path) as one,
        GatewayProcess(database_url, directory=tmp_path, name="other") as other,
        WireClient(one.bootstrap) as wire,
        WireClient(other.bootstrap) as elsewhere,
    ):
        wire.call("CreateTopics", 7, topics=[new_topic_entry(name)], timeout_ms=9000, validate_only=False)
        assert grow(elsewhere, name, 3) == 0
        assert grow(wire, name, 3) == INVALID_PARTITIONS
        assert partition_count(wire, name) == 3
