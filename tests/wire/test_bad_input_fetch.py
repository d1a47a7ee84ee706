"""Fetch at its edges (P14 of the test matrix): limits, offsets, sessions, crowds; and who gets what under a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.attack import MIB, Sent, Target, fetch_fields, fetch_on, make_batch, produce_on
from tests.support.gateway_process import GatewayProcess
from tests.support.raw_connection import RawConnection, decode_answer

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
SESSION_NOT_FOUND, INVALID_SESSION_EPOCH = 70, 71
UNKNOWN_LEADER_EPOCH = 75
UNKNOWN_TOPIC_ID = 100


@pytest.fixture(scope="module")
def target(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("bad-fetch")
    with GatewayProcess(module_database_url, directory=directory) as process:
        target = Target(process)
        target.require_service()
        yield target


@pytest.fixture(scope="module")
def cold(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A second gateway on the same database; without a tail it reads rows only."""
    directory: Path = tmp_path_factory.mktemp("bad-fetch-cold")
    settings = {"TABLEWIRE_TAIL_CACHE_BYTES": "0"}
    with GatewayProcess(target.process.database_url, directory=directory, settings=settings) as process:
        yield process


@pytest.fixture(params=["memory", "rows"])
def reader(request: pytest.FixtureRequest, target: Target, cold: GatewayProcess) -> Iterator[RawConnection]:
    """A connection to the gateway that holds what was written, and to one that must read rows."""
    with RawConnection((target.process if request.param == "memory" else cold).port) as connection:
        yield connection


# --- limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [0, -1, -(2**31), 1, 2**31 - 1])
@pytest.mark.parametrize("partition_max_bytes", [0, -1, 1, 2**31 - 1])
def test_any_limit_gets_an_answer_and_no_error(
    target: Target, reader: RawConnection, max_bytes: int, partition_max_bytes: int
) -> None:
    (found,) = fetch_on(reader, [(target.topic, 0, 0)], max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
    assert found["error_code"] == 0
    assert found["high_watermark"] > 0


@pytest.mark.parametrize("limits", [{"max_bytes": 1}, {"partition_max_bytes": 1}], ids=str)
def test_a_first_record_larger_than_the_limit_is_delivered(
    target: Target, reader: RawConnection, limits: dict[str, int]
) -> None:
    topic = target.new_topic()
    value = bytes(100_000)
    for _ in range(2):
        assert target.produce(make_batch([Sent(value)]), topic=topic)["error_code"] == 0
    (found,) = fetch_on(reader, [(topic, 0, 0)], **limits)
    assert value in bytes(found["records"])
    assert len(found["records"]) < 2 * len(value), "and only that one"


def test_a_response_is_bounded_whatever_the_client_asks_for(target: Target, reader: RawConnection) -> None:
    """Seventy MiB are there; a broker gives 55 at most."""
    topic = target.new_topic(partitions=7)
    batch = make_batch([Sent(bytes(1_000_000))])
    with target.connect() as connection:
        for _ in range(10):
            for partition in range(7):
                fields = {"index": partition, "records": batch}
                connection.call(
                    "Produce",
                    9,
                    transactional_id=None,
                    acks=1,
                    timeout_ms=20_000,
                    topic_data=[{"name": topic, "partition_data": [fields]}],
                )
    wanted = [(topic, partition, 0) for partition in range(7)]
    found = fetch_on(reader, wanted, max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
    size = sum(len(one["records"]) for one in found)
    assert 0 < size <= 56 * MIB


def test_no_partition_starves_under_a_small_limit(target: Target, reader: RawConnection) -> None:
    """A client that always asks in the same order gets from every partition before long."""
    topic = target.new_topic(partitions=5)
    with target.connect() as connection:
        for partition in range(5):
            answer = connection.call(
                "Produce",
                9,
                transactional_id=None,
                acks=1,
                timeout_ms=20_000,
                topic_data=[
                    {
                        "name": topic,
                        "partition_data": [{"index": partition, "records": make_batch([Sent(bytes(5000))] * 20)}],
                    }
                ],
            )
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    wanted = [(topic, partition, 0) for partition in range(5)]
    served: set[int] = set()
    for _ in range(10):
        for one in fetch_on(reader, wanted, max_bytes=1000):
            if one["records"]:
                served.add(one["partition_index"])
    assert served == {0, 1, 2, 3, 4}


# --- offsets and epochs ---------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-5, -1, -(2**63), 1_000_000, 2**63 - 1])
def test_an_offset_outside_the_log_is_out_of_range(target: Target, reader: RawConnection, offset: int) -> None:
    started = time.monotonic()
    with target.unharmed():
        (found,) = fetch_on(reader, [(target.topic, 0, offset)], max_wait_ms=10_000, min_bytes=1)
    assert found["error_code"] == OFFSET_OUT_OF_RANGE
    assert not found["records"]
    assert time.monotonic() - started < 8, "an error does not wait for records"


def test_the_end_of_the_log_is_not_out_of_range(target: Target, reader: RawConnection) -> None:
    end = target.produce(make_batch([Sent()]))["base_offset"] + 1
    (found,) = fetch_on(reader, [(target.topic, 0, end)])
    assert (found["error_code"], found["high_watermark"]) == (0, end)
    assert not found["records"]


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, 0), (0, 0), (5, UNKNOWN_LEADER_EPOCH), (2**31 - 1, UNKNOWN_LEADER_EPOCH)]
)
def test_a_leader_epoch_is_compared(target: Target, reader: RawConnection, epoch: int, code: int) -> None:
    fields = fetch_fields([(target.topic, 0, 0)])
    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
    answer = reader.call("Fetch", 11, **fields)
    assert answer["responses"][0]["partitions"][0]["error_code"] == code


# --- sessions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_id", "session_epoch"), [(1, 1), (2**31 - 1, 5), (-1, 7), (-(2**31), 2**31 - 1), (99, -2)]
)
def test_a_session_that_was_never_given_is_not_found(target: Target, session_id: int, session_epoch: int) -> None:
    with target.unharmed(), target.connect() as connection:
        fields = fetch_fields([(target.topic, 0, 0)], session_id=session_id, session_epoch=session_epoch)
        answer = connection.call("Fetch", 11, **fields)
        assert answer["error_code"] in (SESSION_NOT_FOUND, INVALID_SESSION_EPOCH)
        assert answer["responses"] == []


@pytest.mark.parametrize(("session_id", "session_epoch"), [(0, 0), (0, -1), (5, -1), (5, 0)])
def test_a_request_outside_a_session_is_answered_without_one(
    target: Target, session_id: int, session_epoch: int
) -> None:
    """Epoch 0 asks for a new session, -1 for none; both name all partitions, and no session is given."""
    with target.connect() as connection:
        fields = fetch_fields([(target.topic, 0, 0)], session_id=session_id, session_epoch=session_epoch)
        answer = connection.call("Fetch", 11, **fields)
    assert (answer["error_code"], answer["session_id"]) == (0, 0)
    assert answer["responses"][0]["partitions"][0]["records"]


# --- crowds ---------------------------------------------------------------------------------


def test_ten_thousand_partitions_are_answered_one_by_one(target: Target) -> None:
    wanted = [(target.topic, partition, 0) for partition in range(10_000)]
    with target.unharmed(), target.connect() as connection:
        found = fetch_on(connection, wanted, max_wait_ms=100)
    assert [one["partition_index"] for one in found] == list(range(10_000))
    assert [one["error_code"] for one in found[:3]] == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC]


def test_ten_thousand_topics_are_answered_one_by_one(target: Target) -> None:
    wanted = [(f"bad-none-{index}", 0, 0) for index in range(10_000)]
    with target.unharmed(), target.connect() as connection:
        found = fetch_on(connection, wanted, max_wait_ms=100)
    assert {one["error_code"] for one in found} == {UNKNOWN_TOPIC}
    assert len(found) == 10_000


def test_one_partition_asked_for_many_times_is_bounded(target: Target, reader: RawConnection) -> None:
    """Each repetition is paid from the same max_bytes."""
    topic = target.new_topic()
    assert target.produce(make_batch([Sent(bytes(500_000))]), topic=topic)["error_code"] == 0
    found = fetch_on(reader, [(topic, 0, 0)] * 100, max_bytes=2 * MIB)
    assert sum(len(one["records"] or b"") for one in found) <= 3 * MIB


def test_a_topic_id_that_nobody_has_is_unknown(target: Target) -> None:
    fields = fetch_fields([("", 0, 0)])
    topics = [{"topic_id": uuid4(), "partitions": fields["topics"][0]["partitions"]}]
    with target.unharmed(), target.connect() as connection:
        answer = connection.call("Fetch", 13, **(fields | {"topics": topics}))
    assert answer["responses"][0]["partitions"][0]["error_code"] == UNKNOWN_TOPIC_ID


# --- long polls -----------------------------------------------------------------------------


def poll(connection: RawConnection, topic: str, **options: Any) -> list[dict[str, Any]]:
    return fetch_on(connection, [(topic, 0, 0)], **options)


def test_an_empty_poll_waits_as_long_as_it_may(target: Target, reader: RawConnection) -> None:
    topic = target.new_topic()
    started = time.monotonic()
    (found,) = poll(reader, topic, min_bytes=1, max_wait_ms=600)
    assert time.monotonic() - started >= 0.6
    assert (found["error_code"], bytes(found["records"] or b"")) == (0, b"")


def test_a_poll_for_nothing_is_answered_at_once(target: Target, reader: RawConnection) -> None:
    topic = target.new_topic()
    started = time.monotonic()
    poll(reader, topic, min_bytes=0, max_wait_ms=60_000)
    assert time.monotonic() - started < 20


def test_a_poll_is_woken_by_a_write_through_any_gateway(target: Target, reader: RawConnection) -> None:
    """The reader's gateway wrote it itself, or another one did: both end a wait of a minute."""
    topic = target.new_topic()
    found: list[dict[str, Any]] = []
    reader.socket.settimeout(60)
    waiting = threading.Thread(target=lambda: found.extend(poll(reader, topic, min_bytes=1, max_wait_ms=60_000)))
    waiting.start()
    time.sleep(0.3)  # so that it waits; were it late, the records would be there and it would not wait at all
    assert target.produce(make_batch([Sent(b"wake")]), topic=topic)["error_code"] == 0
    waiting.join(60)
    assert not waiting.is_alive()
    assert b"wake" in bytes(found[0]["records"])


def test_min_bytes_is_waited_for_over_several_writes(target: Target, reader: RawConnection) -> None:
    topic = target.new_topic()
    reader.request("Fetch", 11, **fetch_fields([(topic, 0, 0)], min_bytes=3000, max_wait_ms=60_000))
    with target.connect() as producer:
        for index in range(3):
            assert not reader.has_answer(timeout_s=0.4), f"answered after {index} writes"
            assert produce_on(producer, make_batch([Sent(bytes(1200))]), topic=topic)["error_code"] == 0
    answer = decode_answer("Fetch", 11, reader.receive())
    assert len(answer["responses"][0]["partitions"][0]["records"]) >= 3000


def test_a_poll_of_several_partitions_is_woken_by_the_last(target: Target, reader: RawConnection) -> None:
    topic = target.new_topic(partitions=20)
    wanted = [(topic, partition, 0) for partition in range(20)]
    reader.request("Fetch", 11, **fetch_fields(wanted, min_bytes=1, max_wait_ms=60_000))
    assert not reader.has_answer(timeout_s=0.4)
    with target.connect() as producer:
        producer.call(
            "Produce",
            9,
            transactional_id=None,
            acks=1,
            timeout_ms=20_000,
            topic_data=[{"name": topic, "partition_data": [{"index": 19, "records": make_batch([Sent(b"last")])}]}],
        )
    answer = decode_answer("Fetch", 11, reader.receive())
    (found,) = [one for one in answer["responses"][0]["partitions"] if one["records"]]
    assert found["partition_index"] == 19


@pytest.mark.parametrize("max_wait_ms", [-1, -(2**31)])
def test_a_negative_wait_is_no_wait(target: Target, reader: RawConnection, max_wait_ms: int) -> None:
    topic = target.new_topic()
    (found,) = poll(reader, topic, min_bytes=1, max_wait_ms=max_wait_ms)
    assert found["error_code"] == 0


def test_polls_of_peers_that_went_away_leave_nothing(target: Target) -> None:
    """Their answers are made by nobody, and nothing is said about that in the log."""
    topic = target.new_topic()
    with target.unharmed():
        for _ in range(20):
            with target.connect() as connection:
                for _ in range(5):
                    connection.request("Fetch", 11, **fetch_fields([(topic, 0, 0)], min_bytes=1, max_wait_ms=600_000))
                connection.request("ApiVersions", 0)


def test_deleting_the_topic_ends_the_wait(target: Target, reader: RawConnection) -> None:
    topic = target.new_topic()
    reader.request("Fetch", 11, **fetch_fields([(topic, 0, 0)], min_bytes=1, max_wait_ms=60_000))
    assert not reader.has_answer(timeout_s=0.4)
    with target.connect() as connection:
        connection.call("DeleteTopics", 5, topic_names=[topic], timeout_ms=20_000)
    answer = decode_answer("Fetch", 11, reader.receive())
    assert answer["responses"][0]["partitions"][0]["error_code"] == UNKNOWN_TOPIC
