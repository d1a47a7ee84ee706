"""DescribeCluster, DescribeTopicPartitions, authorized operations; what admins are told while PostgreSQL is away."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.support.gateway_process import GatewayProcess
from tests.support.wire_client import WireClient, new_topic_entry, partition_count

NewTopic = Callable[..., str]

UNKNOWN_TOPIC, NOT_LEADER, TIMED_OUT, INVALID_TOPIC, INVALID_REQUEST = 3, 6, 7, 17, 42
UNKNOWN_ID, MISMATCHED_ENDPOINT, UNSUPPORTED_ENDPOINT = 100, 114, 115
ALL_OF_A_CLUSTER = [5, 7, 8, 9, 10, 11, 12]
ALL_OF_A_TOPIC = 3576


@pytest.mark.parametrize("version", range(0, 3))
def test_the_cluster_is_described_in_every_version(wire: WireClient, wire_bootstrap: str, version: int) -> None:
    cluster = wire.call("DescribeCluster", version, include_cluster_authorized_operations=True)
    assert cluster["error_code"] == 0
    assert len(cluster["cluster_id"]) == 22
    assert wire_bootstrap in [f"{one['host']}:{one['port']}" for one in cluster["brokers"]]
    assert cluster["controller_id"] in [one["broker_id"] for one in cluster["brokers"]]
    assert sorted(cluster["authorized_operations"]) == ALL_OF_A_CLUSTER
    if version >= 2:
        assert not any(one["is_fenced"] for one in cluster["brokers"])


@pytest.mark.parametrize(
    ("endpoint_type", "error_code"), [(2, MISMATCHED_ENDPOINT), (0, UNSUPPORTED_ENDPOINT), (7, UNSUPPORTED_ENDPOINT)]
)
def test_a_gateway_is_no_controller(wire: WireClient, endpoint_type: int, error_code: int) -> None:
    answer = wire.call("DescribeCluster", 1, include_cluster_authorized_operations=False, endpoint_type=endpoint_type)
    assert answer["error_code"] == error_code
    assert answer["error_message"]
    assert answer["brokers"] == []


@pytest.mark.parametrize("version", [8, 10, 13])
def test_metadata_tells_authorized_operations_where_asked(wire: WireClient, new_topic: NewTopic, version: int) -> None:
    name = new_topic()
    wants: dict[str, Any] = {"include_topic_authorized_operations": True}
    if version <= 10:
        wants["include_cluster_authorized_operations"] = True
    told = wire.call("Metadata", version, topics=[{"name": name}], allow_auto_topic_creation=False, **wants)
    assert sum(1 << bit for bit in told["topics"][0]["authorized_operations"]) == ALL_OF_A_TOPIC
    if version <= 10:
        assert sorted(told["authorized_operations"]) == ALL_OF_A_CLUSTER


@pytest.mark.parametrize("version", [10, 11, 12, 13])
@pytest.mark.parametrize("name", [None, ""])
def test_metadata_by_id_takes_whatever_name_comes_with_it(
    wire: WireClient, new_topic: NewTopic, version: int, name: str | None
) -> None:
    made = new_topic(2)
    topic_id = page(wire, [made], 10)["topics"][0]["topic_id"]
    unknown = str(uuid.UUID(int=5))
    told = wire.call(
        "Metadata",
        version,
        topics=[{"name": name, "topic_id": topic_id}, {"name": name, "topic_id": unknown}],
        allow_auto_topic_creation=True,
    )
    by_id = {one["topic_id"]: one for one in told["topics"]}
    assert (by_id[topic_id]["name"], len(by_id[topic_id]["partitions"])) == (made, 2)
    no_name = None if version >= 12 else ""  # the answer's name may not be null before
    assert (by_id[unknown]["name"], by_id[unknown]["error_code"]) == (no_name, UNKNOWN_ID)


def page(wire: WireClient, names: list[str], limit: int, cursor: tuple[str, int] | None = None) -> dict[str, Any]:
    place = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return wire.call(
        "DescribeTopicPartitions",
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=place,
    )


def listed(answer: dict[str, Any]) -> list[tuple[str, int, list[int]]]:
    return [
        (topic["name"], topic["error_code"], [one["partition_index"] for one in topic["partitions"]])
        for topic in answer["topics"]
    ]


def test_partitions_are_described_a_page_at_a_time(wire: WireClient, new_topic: NewTopic) -> None:
    first, second = new_topic(2), new_topic(3)
    start = page(wire, [second, first], 3)
    assert listed(start) == [(first, 0, [0, 1]), (second, 0, [0])]
    assert start["next_cursor"] == {"topic_name": second, "partition_index": 1}
    rest = page(wire, [second, first], 3, (second, 1))
    assert listed(rest) == [(second, 0, [1, 2])]
    assert rest["next_cursor"] is None
    exact = page(wire, [second, first], 2)
    assert exact["next_cursor"] == {"topic_name": second, "partition_index": 0}
    assert listed(page(wire, [first, first], 0)) == [(first, 0, [0])], "there is always room for one"
    partition = start["topics"][0]["partitions"][0]
    assert partition["isr_nodes"] == partition["replica_nodes"] == [partition["leader_id"]]
    assert start["topics"][0]["topic_authorized_operations"] == ALL_OF_A_TOPIC


def test_unknown_topics_are_described_as_such(wire: WireClient, new_topic: NewTopic, topic: str) -> None:
    name = new_topic()
    assert listed(page(wire, [f"{topic}-zz", name, "a b"], 100)) == [
        ("a b", INVALID_TOPIC, []),
        (name, 0, [0]),
        (f"{topic}-zz", UNKNOWN_TOPIC, []),
    ]


def test_all_topics_are_described_page_by_page(wire: WireClient, new_topic: NewTopic) -> None:
    made = [new_topic(2), new_topic(3)]
    seen: dict[str, list[int]] = {}
    cursor: tuple[str, int] | None = (made[0], 0)
    while cursor is not None:
        answer = page(wire, [], 2, cursor)
        for name, _, partitions in listed(answer):
            seen.setdefault(name, []).extend(partitions)
        following = answer["next_cursor"]
        cursor = None if following is None else (following["topic_name"], following["partition_index"])
    assert [seen[name] for name in made] == [[0, 1], [0, 1, 2]]
    assert list(seen) == sorted(seen)


def test_a_cursor_that_points_nowhere_is_refused(wire: WireClient, new_topic: NewTopic) -> None:
    name = new_topic(2)
    for cursor in ((f"{name}-later", 0), ("earlier", 0), (name, -1)):
        assert listed(page(wire, [name], 10, cursor)) == [(name, INVALID_REQUEST, [])]
    assert listed(page(wire, [name], 10, (name, 9))) == [(name, 0, [])]


def test_admins_are_told_to_try_again_while_the_database_is_away(
    database_url: str, server_url: str, tmp_path: Path
) -> None:
    settings = {"TABLEWIRE_DATABASE_TIMEOUT_MS": "700"}
    name = sql.Identifier(urlsplit(database_url).path.lstrip("/"))
    with (
        GatewayProcess(database_url, directory=tmp_path, settings=settings) as gateway,
        WireClient(gateway.bootstrap) as wire,
        psycopg.connect(server_url, autocommit=True) as server,
    ):
        wire.call("CreateTopics", 7, topics=[new_topic_entry("kept")], timeout_ms=9000, validate_only=False)
        assert partition_count(wire, "kept") == 1
        server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            [urlsplit(database_url).path.lstrip("/")],
        )
        codes = list(_ask_everything(wire))
        server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
    assert {code for _, code in codes} <= {NOT_LEADER, TIMED_OUT}, codes


def _ask_everything(wire: WireClient) -> Any:
    """The error code of each admin API, as it answers for one topic."""
    create = wire.call("CreateTopics", 7, topics=[new_topic_entry("new")], timeout_ms=9000, validate_only=False)
    yield "CreateTopics", create["topics"][0]["error_code"]
    gone = wire.call("DeleteTopics", 6, topics=[{"name": "kept", "topic_id": None}], timeout_ms=9000)
    yield "DeleteTopics", gone["responses"][0]["error_code"]
    more = [{"name": "kept", "count": 3, "assignments": None}]
    grown = wire.call("CreatePartitions", 3, topics=more, timeout_ms=9000, validate_only=False)
    yield "CreatePartitions", grown["results"][0]["error_code"]
    topic = {"resource_type": 2, "resource_name": "kept"}
    described = wire.call(
        "DescribeConfigs",
        4,
        resources=[{**topic, "configuration_keys": None}],
        include_synonyms=False,
        include_documentation=False,
    )
    yield "DescribeConfigs", described["results"][0]["error_code"]
    replaced = wire.call("AlterConfigs", 2, resources=[{**topic, "configs": []}], validate_only=False)
    yield "AlterConfigs", replaced["responses"][0]["error_code"]
    altered = wire.call("IncrementalAlterConfigs", 1, resources=[{**topic, "configs": []}], validate_only=False)
    yield "IncrementalAlterConfigs", altered["responses"][0]["error_code"]
    partition = {"partition_index": 0, "offset": -1}
    records = [{"name": "kept", "partitions": [partition]}]
    deleted = wire.call("DeleteRecords", 2, topics=records, timeout_ms=9000)
    yield "DeleteRecords", deleted["topics"][0]["partitions"][0]["error_code"]
    yield "DescribeLogDirs", wire.call("DescribeLogDirs", 4, topics=None)["results"][0]["error_code"]
    yield "DescribeTopicPartitions", page(wire, ["kept"], 10)["topics"][0]["error_code"]
    epoch = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    epochs = [{"topic": "kept", "partitions": [epoch]}]
    ended = wire.call("OffsetForLeaderEpoch", 4, replica_id=-1, topics=epochs)
    yield "OffsetForLeaderEpoch", ended["topics"][0]["partitions"][0]["error_code"]
