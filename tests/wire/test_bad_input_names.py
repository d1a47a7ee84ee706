"""Names and contents that a database may choke on (P11, P12 of the test matrix): kept faithfully or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.record import MemoryRecords

from tests.support.attack import Sent, Target, fetch_on, make_batch, with_payload
from tests.support.gateway_process import GatewayProcess
from tests.support.raw_connection import decode_answer, request_frame
from tests.support.waiting import wait_for

UNKNOWN_TOPIC = 3
INVALID_TOPIC = 17
INVALID_GROUP_ID = 24
INVALID_REQUEST = 42
INVALID_RECORD = 87


@pytest.fixture(scope="module")
def target(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("bad-names")
    with GatewayProcess(module_database_url, directory=directory) as process:
        target = Target(process)
        target.require_service()
        yield target


# --- P11: what records and ids may hold -----------------------------------------------------

FAITHFUL = {
    "null key": Sent(b"v", None),
    "null value": Sent(None, b"k"),
    "null both": Sent(None, None),
    "empty both": Sent(b"", b""),
    "NUL bytes": Sent(b"\0", b"\0\0"),
    "every byte": Sent(bytes(range(256)), bytes(range(256))),
    "empty header name": Sent(headers=(("", b"x"),)),
    "null header value": Sent(headers=(("h", None),)),
    "empty header value": Sent(headers=(("h", b""),)),
    "equal header names": Sent(headers=(("h", b"1"), ("h", b"2"), ("h", None))),
    "header names for SQL": Sent(headers=(("'; DROP TABLE x--", b"1"), ('"', b"2"), ("{a,b}", b"3"), ("NULL", b"4"))),
    "header names in unicode": Sent(headers=(("naïve-日本-😀", b"1"),)),
    "backslashes": Sent(b"\\N\\.\t\n", b"\\", headers=(("\\", b"\\N"), ("\t\n", b"\r"))),
}


@pytest.mark.parametrize("sent", FAITHFUL.values(), ids=FAITHFUL)
def test_a_record_comes_back_as_it_was_sent(target: Target, sent: Sent) -> None:
    topic = target.new_topic()
    assert target.produce(make_batch([sent]), topic=topic)["error_code"] == 0
    with target.connect() as connection:
        (found,) = fetch_on(connection, [(topic, 0, 0)])
    (record,) = list(MemoryRecords(bytes(found["records"])).next_batch())
    assert (record.key, record.value, tuple(record.headers)) == (sent.key, sent.value, sent.headers)
    (row,) = target.rows(
        "SELECT key, value, header_names, header_values FROM kafka.messages JOIN kafka.topics USING (topic_id)"
        " WHERE name = %s",
        topic,
    )
    key, value, names, values = row
    assert (key, value, tuple(zip(names or (), values or (), strict=True))) == (sent.key, sent.value, sent.headers)


# Attributes, timestamp delta, offset delta, no key, value "v", one header.
WITH_ONE_HEADER = bytes([0, 0, 0, 1, 2]) + b"v" + b"\2"


def record_with_header(name: bytes) -> bytes:
    body = WITH_ONE_HEADER + bytes([2 * len(name)]) + name + b"\2x"
    return with_payload(bytes([2 * len(body)]) + body, count=1)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"a\0b", b"\0"])
def test_a_header_name_that_is_no_text_for_postgresql_is_refused(target: Target, name: bytes) -> None:
    with target.unharmed():
        assert target.produce(record_with_header(name))["error_code"] == INVALID_RECORD
    assert target.produce(record_with_header(b"fine"))["error_code"] == 0


@pytest.mark.parametrize("client_id", ["\0", "a\0b", "'; DROP TABLE kafka.topics;--", "日本", "", None, "x" * 30_000])
def test_any_client_id_may_ask_for_a_producer_id(target: Target, client_id: str | None) -> None:
    with target.connect() as connection:
        fields = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        connection.send(request_frame("InitProducerId", 1, fields, client_id=client_id))
        answer = decode_answer("InitProducerId", 1, connection.receive())
    assert answer["error_code"] == 0
    assert answer["producer_id"] > 0
    target.require_service()
    target.process.require_clean_log()


def commit_offset(target: Target, group: str, metadata: str) -> int:
    partition = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    topics = [{"name": target.topic, "partitions": [partition]}]
    with target.connect() as connection:
        answer = connection.call(
            "OffsetCommit",
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=topics,
        )
    code: int = answer["topics"][0]["partitions"][0]["error_code"]
    return code


def committed_offsets(target: Target) -> list[tuple[Any, ...]]:
    return target.rows("SELECT group_id, metadata FROM kafka.consumer_offsets ORDER BY 1")


def test_a_group_or_metadata_with_nul_is_refused(target: Target) -> None:
    before = committed_offsets(target)
    with target.unharmed():
        assert commit_offset(target, "a\0b", "") == INVALID_GROUP_ID
        assert commit_offset(target, "bad-group", "a\0b") == INVALID_REQUEST
        for changed in ({"group_id": "a\0b"}, {"group_instance_id": "a\0b"}, {"protocol_type": "a\0b"}):
            assert join(target, **changed) in (INVALID_GROUP_ID, INVALID_REQUEST)
        assert join(target, protocols=[{"name": "a\0b", "metadata": b""}]) == INVALID_REQUEST
    assert committed_offsets(target) == before


@pytest.mark.parametrize("text", ["'; DROP TABLE kafka.topics;--", '"', "%s {rows} \\", "日本 😀", "\n\t"])
def test_a_group_and_metadata_may_be_any_other_text(target: Target, text: str) -> None:
    assert commit_offset(target, f"bad-{text}", text) == 0
    assert (f"bad-{text}", text) in committed_offsets(target)
    target.process.require_clean_log()


def join(target: Target, **changed: Any) -> int:
    fields: dict[str, Any] = {
        "group_id": "bad-join",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    with target.connect() as connection:
        code: int = connection.call("JoinGroup", 7, **(fields | changed))["error_code"]
    return code


# --- P12: names of topics -------------------------------------------------------------------

INVALID_NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "250 characters": "x" * 250,
    "30000 characters": "x" * 30_000,
    "space": "a b",
    "slash": "a/b",
    "quote": 'a"b',
    "apostrophe": "a'b",
    "sql": "'; DROP TABLE kafka.topics;--",
    "percent": "%(name)s",
    "braces": "{rows}",
    "NUL": "a\0b",
    "newline": "a\nb",
    "unicode": "naïve",
    "emoji": "😀",
    "right to left": "\u202eabc",
}


def create(target: Target, name: str) -> int:
    entry = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with target.connect() as connection:
        answer = connection.call("CreateTopics", 7, topics=[entry], timeout_ms=20_000, validate_only=False)
    code: int = answer["topics"][0]["error_code"]
    return code


def describe(target: Target, name: str, *, version: int = 8, may_create: bool = True) -> dict[str, Any]:
    with target.connect() as connection:
        answer = connection.call("Metadata", version, topics=[{"name": name}], allow_auto_topic_creation=may_create)
    one: dict[str, Any] = answer["topics"][0]
    return one


@pytest.mark.parametrize("name", INVALID_NAMES.values(), ids=INVALID_NAMES)
def test_a_topic_cannot_have_this_name(target: Target, name: str) -> None:
    with target.unharmed():
        assert create(target, name) == INVALID_TOPIC
        found = describe(target, name)
        assert (found["error_code"], found["partitions"]) == (INVALID_TOPIC, [])
        assert target.produce(make_batch([Sent()]), topic=name)["error_code"] in (UNKNOWN_TOPIC, INVALID_TOPIC)
        with target.connect() as connection:
            (fetched,) = fetch_on(connection, [(name, 0, 0)])
            assert fetched["error_code"] in (UNKNOWN_TOPIC, INVALID_TOPIC)
            listed = connection.call(
                "ListOffsets",
                5,
                replica_id=-1,
                isolation_level=0,
                topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            )
            assert listed["topics"][0]["partitions"][0]["error_code"] in (UNKNOWN_TOPIC, INVALID_TOPIC)
            deleted = connection.call("DeleteTopics", 5, topic_names=[name], timeout_ms=20_000)
            assert deleted["responses"][0]["error_code"] in (UNKNOWN_TOPIC, INVALID_TOPIC)


@pytest.mark.parametrize("name", ["a", "-", "_", "...", "x" * 249, "A.b_C-9", "__consumer_offsets_not"])
def test_a_topic_may_have_this_name(target: Target, name: str) -> None:
    assert create(target, name) == 0
    assert target.produce(make_batch([Sent()]), topic=name)["error_code"] == 0
    with target.connect() as connection:
        deleted = connection.call("DeleteTopics", 5, topic_names=[name], timeout_ms=20_000)
    assert deleted["responses"][0]["error_code"] == 0
    tables = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'kafka.messages'::regclass"
    # Its rows are gone: whoever counts rows next must not count them.
    wait_for(lambda: target.rows(tables) == target.rows("SELECT count(*) FROM kafka.topics"), wanted=True)


def test_names_that_differ_in_dot_and_underscore_collide(target: Target) -> None:
    """Kafka refuses the second: metrics names would be the same."""
    assert create(target, "bad.input_collides") == 0
    with target.unharmed():
        assert create(target, "bad_input.collides") == INVALID_TOPIC


def test_a_name_that_nobody_created_is_not_created_by_produce_or_fetch(target: Target) -> None:
    with target.unharmed():
        assert target.produce(make_batch([Sent()]), topic="bad-never-created")["error_code"] == UNKNOWN_TOPIC
        with target.connect() as connection:
            (found,) = fetch_on(connection, [("bad-never-created", 0, 0)])
        assert found["error_code"] == UNKNOWN_TOPIC
        assert describe(target, "bad-never-created", may_create=False)["error_code"] == UNKNOWN_TOPIC


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1, -(2**31)])
def test_a_partition_that_is_not_there_is_unknown(target: Target, partition: int) -> None:
    with target.unharmed(), target.connect() as connection:
        (found,) = fetch_on(connection, [(target.topic, partition, 0)])
        assert found["error_code"] == UNKNOWN_TOPIC
        answer = connection.call(
            "Produce",
            9,
            transactional_id=None,
            acks=1,
            timeout_ms=1000,
            topic_data=[
                {"name": target.topic, "partition_data": [{"index": partition, "records": make_batch([Sent()])}]}
            ],
        )
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == UNKNOWN_TOPIC
