"""Connections: order, limits, deadlines and the drain, against a real gateway with small limits."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.support.attack import (
    MIB,
    Sent,
    Target,
    bounded_memory,
    fetch_fields,
    make_batch,
    produce_fields,
    produce_on,
    resident_bytes,
)
from tests.support.gateway_process import GatewayProcess
from tests.support.raw_connection import RawConnection, decode_answer, request_frame
from tests.support.waiting import wait_for

Start = Callable[..., Target]


@pytest.fixture
def start(module_database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start a gateway with settings of the test's own; it must stop cleanly afterwards."""
    with contextlib.ExitStack() as stack:

        def begin(**settings: int | str) -> Target:
            variables = {f"TABLEWIRE_{name.upper()}": str(value) for name, value in settings.items()}
            process = GatewayProcess(module_database_url, directory=tmp_path, settings=variables)
            return Target(stack.enter_context(process))

        yield begin


@pytest.fixture(scope="module")
def target(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One gateway with the usual limits for the tests that need no others."""
    with GatewayProcess(module_database_url, directory=tmp_path_factory.mktemp("connections")) as process:
        yield Target(process)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@contextlib.contextmanager
def locked_partitions(target: Target) -> Iterator[None]:
    """Nothing can be written meanwhile: somebody else holds the table of partitions."""
    with psycopg.connect(target.process.database_url) as holder:
        holder.execute("LOCK TABLE kafka.partitions IN EXCLUSIVE MODE")
        yield
        holder.rollback()


# --- order ----------------------------------------------------------------------------------


def test_responses_come_in_the_order_of_requests_whatever_takes_long(target: Target) -> None:
    """A long poll, writes, metadata, offsets, all in flight at once on one connection."""
    empty = target.new_topic()
    kinds: list[str] = []
    with target.connect() as connection:
        for round_number in range(8):
            poll = fetch_fields([(empty, 0, 0)], min_bytes=1, max_wait_ms=150)
            batch = make_batch([Sent(b"%d" % round_number)])
            asked = [{"name": target.topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            connection.request("Fetch", 11, **poll)
            connection.request("Produce", 9, **produce_fields(batch, topic=target.topic))
            connection.request("Metadata", 8, topics=[{"name": target.topic}], allow_auto_topic_creation=False)
            connection.request("ListOffsets", 5, replica_id=-1, isolation_level=0, topics=asked)
            connection.request("ApiVersions", 0)
            kinds += ["Fetch", "Produce", "Metadata", "ListOffsets", "ApiVersions"]
        versions = {"Fetch": 11, "Produce": 9, "Metadata": 8, "ListOffsets": 5, "ApiVersions": 0}
        offsets = []
        for expected_id, kind in enumerate(kinds, start=1):
            frame = connection.receive()
            assert struct.unpack_from(">i", frame) == (expected_id,)
            answer = decode_answer(kind, versions[kind], frame)
            if kind == "Produce":
                offsets.append(answer["responses"][0]["partition_responses"][0]["base_offset"])
    assert offsets == list(range(offsets[0], offsets[0] + 8)), "and writes keep their order too"


def test_writes_behind_a_long_poll_are_durable_before_it_ends(target: Target) -> None:
    """Requests are begun as they come; only their answers wait their turn."""
    empty = target.new_topic()
    with target.connect() as connection:
        connection.request("Fetch", 11, **fetch_fields([(empty, 0, 0)], min_bytes=1, max_wait_ms=120_000))
        connection.request("Produce", 9, **produce_fields(make_batch([Sent(b"early")]), topic=target.topic))
        wait_for(lambda: target.rows("SELECT count(*) FROM kafka.messages WHERE value = 'early'")[0][0], 1)
        assert not connection.has_answer(timeout_s=0.1)
        assert target.produce(make_batch([Sent()]), topic=empty)["error_code"] == 0, "which ends the poll"
        assert [connection.receive_id(), connection.receive_id()] == [1, 2]


def test_acks_0_gets_no_response_and_is_written_in_order(target: Target) -> None:
    topic = target.new_topic()
    with target.connect() as connection:
        for index in range(20):
            batch = make_batch([Sent(b"%d" % index)])
            connection.request("Produce", 9, **produce_fields(batch, topic=topic, acks=0))
        connection.request("ApiVersions", 0)
        assert connection.receive_id() == 21, "the first answer is that to the last request"
        wait_for(
            lambda: [
                bytes(value)
                for (value,) in target.rows(
                    "SELECT value FROM kafka.messages JOIN kafka.topics USING (topic_id)"
                    ' WHERE name = %s ORDER BY "offset"',
                    topic,
                )
            ],
            [b"%d" % index for index in range(20)],
        )


def test_acks_0_that_is_refused_closes_the_connection(target: Target) -> None:
    with target.connect() as connection:
        batch = make_batch([Sent(b"nowhere")])
        connection.request("Produce", 9, **produce_fields(batch, topic="no-such-topic", acks=0))
        assert connection.is_closed_by_peer()


def test_a_peer_that_goes_away_while_its_write_is_in_flight_is_not_missed(target: Target) -> None:
    topic = target.new_topic()
    with locked_partitions(target):
        for _ in range(5):
            with target.connect() as connection:
                connection.request("Produce", 9, **produce_fields(make_batch([Sent()]), topic=topic))
                connection.request("Produce", 9, **produce_fields(b"", topic=topic))
                time.sleep(0.05)
    target.require_service()
    target.process.require_clean_log()


# --- limits ---------------------------------------------------------------------------------


def accepts(connection: RawConnection, data: bytes, *, timeout_s: float = 1.5) -> bool:
    """Whether the peer takes all of the data; False once it has taken nothing for a while."""
    connection.socket.settimeout(timeout_s)
    view = memoryview(data)
    try:
        while view:
            view = view[connection.socket.send(view) :]
    except TimeoutError:
        return False
    finally:
        connection.socket.settimeout(20)
    return True


def test_reading_stops_at_the_requests_in_flight_and_goes_on_when_they_are_answered(start: Start) -> None:
    target = start(connection_max_inflight_requests=3)
    batch = make_batch([Sent(bytes(700_000))])
    with target.connect() as connection, locked_partitions(target):
        frames = [
            request_frame("Produce", 9, produce_fields(batch, topic=target.topic), correlation_id=index)
            for index in range(30)
        ]
        with bounded_memory(target.process.pid, limit_bytes=40 * MIB):
            sender = threading.Thread(target=connection.send, args=(b"".join(frames),), daemon=True)
            connection.socket.settimeout(60)
            sender.start()
            sender.join(1.5)
            assert sender.is_alive(), "twenty megabytes were taken although three requests are the limit"
            target.require_topic_is_served()
    # The lock is gone but so is the connection: the same again, this time to the end.
    with target.connect() as connection:
        connection.socket.settimeout(60)
        sender = threading.Thread(target=connection.send, args=(b"".join(frames),), daemon=True)
        sender.start()
        assert [connection.receive_id() for _ in range(30)] == list(range(30))
        sender.join(60)
        assert not sender.is_alive()


def test_reading_stops_at_the_gateways_total_and_goes_on(start: Start) -> None:
    """Each connection is within its own limit, all together are not. (The kernel takes some 10 MB of each.)"""
    target = start(queued_max_request_bytes=4 * MIB, connection_max_inflight_requests=50)
    batch = make_batch([Sent(bytes(900_000))])
    frames = b"".join(
        request_frame("Produce", 9, produce_fields(batch, topic=target.topic), correlation_id=index)
        for index in range(20)
    )
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(target.connect()) for _ in range(4)]
        threads = [threading.Thread(target=one.send, args=(frames,), daemon=True) for one in connections]
        with locked_partitions(target), bounded_memory(target.process.pid, limit_bytes=60 * MIB):
            for connection, thread in zip(connections, threads, strict=True):
                connection.socket.settimeout(60)
                thread.start()
            deadline = time.monotonic() + 2
            for thread in threads:
                thread.join(max(0, deadline - time.monotonic()))
            assert any(thread.is_alive() for thread in threads), "72 MB were taken where 4 are the limit"
            with target.connect() as other:
                assert other.call("ApiVersions", 0)["error_code"] == 0, "who holds nothing is still served"
        for connection in connections:
            assert [connection.receive_id() for _ in range(20)] == list(range(20))


def test_frames_that_fill_the_total_without_any_being_complete_do_not_wait_for_each_other(start: Start) -> None:
    """Twelve half frames are 48 MB where 2 are the limit; one after the other is let through to its end."""
    target = start(queued_max_request_bytes=2 * MIB)
    frame = request_frame("Produce", 9, produce_fields(make_batch([Sent(bytes(8 * MIB))]), topic=target.topic))
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(target.connect()) for _ in range(12)]
        with bounded_memory(target.process.pid, limit_bytes=24 * MIB):
            for connection in connections:
                accepts(connection, frame[: len(frame) // 2], timeout_s=0.2)
            target.require_topic_is_served()
        for connection in connections:
            connection.close()
        wait_for(lambda: served(target), True)
        connections = [stack.enter_context(target.connect()) for _ in range(12)]
        threads = [threading.Thread(target=one.send, args=(frame,), daemon=True) for one in connections]
        for connection, thread in zip(connections, threads, strict=True):
            connection.socket.settimeout(60)
            thread.start()
        assert [one.receive_id() for one in connections] == [1] * 12


def served(target: Target) -> bool:
    target.require_topic_is_served()
    return True


def test_thousands_of_requests_in_one_piece_are_not_all_begun_at_once(start: Start) -> None:
    """15,000 requests fit into one read of the socket; their answers, all made before the first is sent, do not."""
    target = start(connection_max_inflight_requests=20)
    count = 15_000
    frames = b"".join(request_frame("ApiVersions", 0, {}, correlation_id=index) for index in range(count))
    with target.connect() as connection:
        with bounded_memory(target.process.pid, limit_bytes=16 * MIB):
            sender = threading.Thread(target=connection.send, args=(frames,), daemon=True)
            sender.start()
            assert [connection.receive_id() for _ in range(count)] == list(range(count))
        sender.join(60)


def test_a_peer_that_does_not_read_costs_one_answer(start: Start) -> None:
    target = start(connection_max_inflight_requests=30)
    topic = target.new_topic()
    with target.connect() as connection:
        for _ in range(12):
            assert produce_on(connection, make_batch([Sent(bytes(1_000_000))]), topic=topic)["error_code"] == 0
    with target.connect(receive_buffer_bytes=4096) as slow:
        wanted = fetch_fields([(topic, 0, 0)], max_bytes=20 * MIB, partition_max_bytes=20 * MIB)
        with bounded_memory(target.process.pid, limit_bytes=60 * MIB):
            for _ in range(30):
                slow.request("Fetch", 11, **wanted)
            time.sleep(1.5)  # what must not happen has no moment of its own
            target.require_topic_is_served()
        answer = decode_answer("Fetch", 11, slow.receive())
        assert len(answer["responses"][0]["partitions"][0]["records"]) > 10 * MIB


def test_memory_is_given_back_when_peers_go(start: Start) -> None:
    target = start(queued_max_request_bytes=8 * MIB)
    half = struct.pack(">i", 3 * MIB) + bytes(2 * MIB)
    before = resident_bytes(target.process.pid)
    for _ in range(5):
        connections = [target.connect() for _ in range(3)]
        for connection in connections:
            accepts(connection, half, timeout_s=0.3)
        for connection in connections:
            connection.close()
        # If the budget had not been given back, a request of more than a little would now wait for ever.
        assert target.produce(make_batch([Sent(bytes(900_000))]))["error_code"] == 0
    assert resident_bytes(target.process.pid) - before < 48 * MIB


def test_no_more_connections_than_allowed(start: Start) -> None:
    target = start(max_connections=5)
    connections = [target.connect() for _ in range(5)]
    for connection in connections:
        assert connection.call("ApiVersions", 0)["error_code"] == 0
    with target.connect() as refused:
        assert refused.is_closed_by_peer()
    for connection in connections:
        assert connection.call("ApiVersions", 0)["error_code"] == 0, "those that were there are not disturbed"
    connections.pop().close()
    wait_for(lambda: can_talk(target), True)
    for connection in connections:
        connection.close()


def can_talk(target: Target) -> bool:
    with target.connect() as connection:
        try:
            return bool(connection.call("ApiVersions", 0)["error_code"] == 0)
        except ConnectionError:
            return False


def test_no_more_connections_of_one_address_than_allowed(start: Start) -> None:
    target = start(max_connections_per_ip=3)
    connections = [target.connect() for _ in range(3)]
    for connection in connections:
        assert connection.call("ApiVersions", 0)["error_code"] == 0
    with target.connect() as refused:
        assert refused.is_closed_by_peer()
    with socket.socket() as other:  # another address of this machine
        other.bind(("127.0.0.2", 0))
        other.settimeout(10)
        other.connect(("127.0.0.1", target.process.port))
        other.sendall(request_frame("ApiVersions", 0, {}))
        assert other.recv(4)
    for connection in connections:
        connection.close()


# --- deadlines ------------------------------------------------------------------------------


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(start: Start) -> None:
    target = start(connections_max_idle_ms=3000)
    topic = target.new_topic()
    with target.connect() as idle, target.connect() as busy, target.connect() as waiting:
        waiting.request("Fetch", 11, **fetch_fields([(topic, 0, 0)], min_bytes=1, max_wait_ms=120_000))
        idle.call("ApiVersions", 0)
        deadline = time.monotonic() + 30
        while not idle.is_closed_by_peer(timeout_s=0.2):
            assert busy.call("ApiVersions", 0)["error_code"] == 0
            assert time.monotonic() < deadline
        assert busy.call("ApiVersions", 0)["error_code"] == 0
        assert not waiting.has_answer(timeout_s=0.1)
        assert target.produce(make_batch([Sent()]), topic=topic)["error_code"] == 0
        assert waiting.receive_id() == 1, "who waits for an answer is not idle"


def test_a_peer_that_takes_nothing_is_closed_as_idle(start: Start) -> None:
    target = start(connections_max_idle_ms=2000)
    topic = target.new_topic()
    for _ in range(12):
        assert target.produce(make_batch([Sent(bytes(1_000_000))]), topic=topic)["error_code"] == 0
    wanted = fetch_fields([(topic, 0, 0)], max_bytes=20 * MIB, partition_max_bytes=20 * MIB)
    with target.connect(receive_buffer_bytes=4096) as stuck:
        assert connections_of(target) >= 1
        stuck.request("Fetch", 11, **wanted)
        wait_for(lambda: connections_of(target), 0)


def connections_of(target: Target) -> int:
    """Sockets of the gateway's port that are established, as the kernel counts them."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, _, state = line.split()[1:4]
        if int(local.split(":")[1], 16) == target.process.port and state == "01":
            found += 1
    return found


def test_a_frame_whose_reading_was_paused_gets_its_time_anew(start: Start) -> None:
    """The deadline is for slow peers; while the gateway itself does not read, the peer is not to blame."""
    target = start(frame_timeout_ms=2500, connection_max_inflight_requests=1)
    batch = make_batch([Sent(bytes(900_000))])
    frames = b"".join(
        request_frame("Produce", 9, produce_fields(batch, topic=target.topic), correlation_id=index)
        for index in range(8)
    )
    with target.connect() as connection:
        with locked_partitions(target):
            sender = threading.Thread(target=connection.send, args=(frames,), daemon=True)
            connection.socket.settimeout(60)
            sender.start()
            sender.join(4)
        assert [connection.receive_id() for _ in range(8)] == list(range(8))


# --- the drain ------------------------------------------------------------------------------


NEVER_MS = 300_000
"""Whoever drains for that long is killed by the test."""


def stop_before_the_drain_is_over(target: Target) -> None:
    assert target.process.terminate(timeout_s=30) == 0
    target.process.require_clean_log()


def test_sigterm_answers_what_is_in_flight_and_releases_long_polls(start: Start, pool: ThreadPoolExecutor) -> None:
    target = start(drain_timeout_ms=NEVER_MS)
    topic = target.new_topic()
    with target.connect() as poller, target.connect() as producer, target.connect() as idle:
        idle.call("ApiVersions", 0)
        poller.request("Fetch", 11, **fetch_fields([(topic, 0, 0)], min_bytes=1, max_wait_ms=600_000))
        assert not poller.has_answer(timeout_s=0.3)
        with locked_partitions(target):
            for index in range(5):
                batch = make_batch([Sent(b"%d" % index)])
                producer.request("Produce", 9, **produce_fields(batch, topic=topic))
            wait_for(lambda: waiting_writers(target), True)
            stopping = pool.submit(stop_before_the_drain_is_over, target)
            assert poller.receive_id() == 1
        codes = []
        for _ in range(5):
            answer = decode_answer("Produce", 9, producer.receive())
            codes.append(answer["responses"][0]["partition_responses"][0]["error_code"])
        assert codes == [0] * 5
        for connection in (poller, producer, idle):
            assert connection.is_closed_by_peer()
        stopping.result(60)
    assert target.process.terminate() == 0
    with pytest.raises(ConnectionRefusedError):
        target.connect()
    assert target.rows(
        "SELECT count(*) FROM kafka.messages JOIN kafka.topics USING (topic_id) WHERE name = %s", topic
    ) == [(5,)]


def waiting_writers(target: Target) -> bool:
    (found,) = target.rows(
        "SELECT count(*) > 0 FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND application_name LIKE 'tablewire%%' AND datname = current_database()"
    )
    return bool(found[0])


def test_sigterm_hands_over_a_large_answer_before_it_closes(start: Start, pool: ThreadPoolExecutor) -> None:
    target = start(drain_timeout_ms=NEVER_MS)
    topic = target.new_topic()
    for _ in range(12):
        assert target.produce(make_batch([Sent(bytes(1_000_000))]), topic=topic)["error_code"] == 0
    wanted = fetch_fields([(topic, 0, 0)], max_bytes=20 * MIB, partition_max_bytes=20 * MIB)
    with target.connect(receive_buffer_bytes=4096) as slow:
        slow.request("Fetch", 11, **wanted)
        assert slow.has_answer(timeout_s=10)
        stopping = pool.submit(stop_before_the_drain_is_over, target)
        answer = decode_answer("Fetch", 11, slow.receive())
        assert len(answer["responses"][0]["partitions"][0]["records"]) > 10 * MIB
        stopping.result(60)
    assert target.process.terminate() == 0


def test_sigterm_does_not_wait_for_peers_that_say_nothing(start: Start) -> None:
    target = start(drain_timeout_ms=NEVER_MS)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(target.connect()).send(struct.pack(">i", 1000) + bytes(10))
        stop_before_the_drain_is_over(target)
