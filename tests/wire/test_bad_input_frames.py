"""Bad input below the level of requests: noise, frames, headers, counts (P1 to P4, P13 of the test matrix).

Each case must close the connection or get Kafka's error; nothing crashes, hangs, grows or writes, and an ordinary
client is served afterwards.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import ssl
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attack import MIB, Target, bounded_memory, produce_fields
from tests.support.gateway_process import GatewayProcess
from tests.support.raw_connection import decode_answer, framed, request_frame
from tests.support.waiting import wait_for

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
UNSUPPORTED_VERSION = 35
UNKNOWN_TOPIC = 3


@pytest.fixture(scope="module")
def target(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("bad-frames")
    settings = {"TABLEWIRE_AUTO_CREATE_TOPICS_ENABLE": "false"}
    with GatewayProcess(module_database_url, directory=directory, settings=settings) as process:
        target = Target(process)
        target.require_service()
        yield target


@pytest.fixture(scope="module")
def hasty(clients_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A gateway that gives a frame one second, which may be too little for sound ones on a busy machine. On another
    database: `target` counts the rows of its own."""
    settings = {"TABLEWIRE_FRAME_TIMEOUT_MS": "1000"}
    directory = tmp_path_factory.mktemp("hasty")
    with GatewayProcess(clients_database_url, directory=directory, settings=settings) as process:
        yield Target(process)


@pytest.fixture(autouse=True)
def unharmed(target: Target) -> Iterator[None]:
    with target.unharmed():
        yield


def head(api_key: int, version: int, *, flexible: bool = False, client: bytes = b"c") -> bytes:
    tags = b"\0" if flexible else b""
    return struct.pack(">hhih", api_key, version, 7, len(client)) + client + tags


def varint(value: int) -> bytes:
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


# --- P1: what is not Kafka at all -----------------------------------------------------------


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(tls_hello(), id="tls"),
        pytest.param(b"SSH-2.0-OpenSSH_9.7\r\n", id="ssh"),
        pytest.param(b"\xff" * 4096, id="ones"),
        pytest.param(bytes(4096), id="zeros"),
    ],
)
def test_another_protocol_is_closed_with_one_line_in_the_log(target: Target, noise: bytes) -> None:
    before = told(target)
    with target.connect() as connection:
        connection.send(noise)
        assert connection.is_closed_by_peer()
    wait_for(lambda: told(target), (before[0] + 1, before[1] + 1))


def told(target: Target) -> tuple[int, int]:
    """How often log and metrics say that a peer sent no request."""
    with urllib.request.urlopen(f"{target.process.http_url}/metrics", timeout=60) as answer:
        (counted,) = re.findall(r"^tablewire_malformed_total (\S+)$", answer.read().decode(), re.MULTILINE)
    return target.process.log_text().count("not a request"), int(float(counted))


def test_random_bytes_are_closed(target: Target) -> None:
    before = told(target)
    for seed in range(20):
        with target.connect() as connection:
            # Noise that by chance announces an allowed length would be waited for.
            connection.send(b"\x7f" + random.Random(seed).randbytes(2000))
            assert connection.is_closed_by_peer(), f"seed {seed}"
    wait_for(lambda: told(target), (before[0] + 20, before[1] + 20))


def test_random_bytes_in_a_sound_frame_are_closed(target: Target) -> None:
    before = told(target)
    for seed in range(20):
        with target.connect() as connection:
            connection.send(framed(random.Random(seed).randbytes(200)))
            assert connection.is_closed_by_peer(), f"seed {seed}"
    wait_for(lambda: told(target), (before[0] + 20, before[1] + 20))


# --- P2: lengths ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2**31 - 1, 100 * MIB + 1, -1, -(2**31), 0])
def test_a_length_that_is_not_allowed_closes_at_once(target: Target, size: int) -> None:
    with target.connect() as connection:
        connection.send(struct.pack(">i", size))
        assert connection.is_closed_by_peer()


def test_announcing_much_and_sending_little_takes_no_memory(target: Target) -> None:
    connections = [target.connect() for _ in range(50)]
    with bounded_memory(target.process.pid, limit_bytes=16 * MIB):
        for connection in connections:
            connection.send(struct.pack(">i", 100 * MIB) + bytes(100))
        target.require_topic_is_served()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("sent", [b"\0", struct.pack(">i", 100), struct.pack(">i", 100) + bytes(99)])
def test_a_frame_that_never_ends_is_closed_by_its_deadline(hasty: Target, sent: bytes) -> None:
    with hasty.unharmed(), hasty.connect() as connection:
        connection.send(sent)
        assert connection.is_closed_by_peer()


def test_a_byte_now_and_then_does_not_extend_the_deadline(hasty: Target) -> None:
    """A slow sender must finish its frame in time, not just be alive."""
    with hasty.unharmed(), hasty.connect() as connection:
        connection.send(struct.pack(">i", 1_000_000))
        for _ in range(150):  # fifteen seconds, if the gateway let it
            try:
                connection.send(b"\0")
            except ConnectionError:
                return
            if connection.is_closed_by_peer(timeout_s=0.1):
                return
    pytest.fail("the frame was still welcome after fifteen times the deadline")


def test_a_connection_without_a_frame_has_no_deadline(hasty: Target) -> None:
    with hasty.unharmed(), hasty.connect() as connection:
        assert not connection.is_closed_by_peer(timeout_s=2.5)
        assert connection.call("ApiVersions", 0)["error_code"] == 0


@pytest.mark.parametrize("cut", [1, 4, 9, 20])
def test_a_peer_that_goes_away_inside_a_frame_leaves_nothing(target: Target, cut: int) -> None:
    frame = request_frame("Produce", 9, produce_fields(bytes(100), topic=target.topic))
    with target.connect() as connection:
        connection.send(frame[:cut])


# --- P3: keys and versions ------------------------------------------------------------------


@pytest.mark.parametrize("api_key", [4, 5, 6, 7, 27, 58, 67, 1000, 32767, -1, -32768])
def test_an_api_that_is_not_served_is_closed(target: Target, api_key: int) -> None:
    with target.connect() as connection:
        connection.send(framed(head(api_key, 0)))
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        *((PRODUCE, version) for version in (0, 1, 2, 14, -1)),
        *((FETCH, version) for version in (0, 3, 99)),
        *((METADATA, version) for version in (14, -1, 32767)),
    ],
)
def test_a_version_that_is_not_served_is_closed(target: Target, api_key: int, version: int) -> None:
    with target.connect() as connection:
        connection.send(framed(head(api_key, version) + bytes(20)))
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_old_produce_request_of_a_real_encoder_is_closed(target: Target, version: int) -> None:
    with target.connect() as connection:
        connection.send(request_frame("Produce", version, produce_fields(b"", topic=target.topic)))
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_api_versions_is_answered_in_its_version(target: Target, version: int) -> None:
    fields = {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
    with target.connect() as connection:
        answer = connection.call("ApiVersions", version, **fields)
    assert answer["error_code"] == 0
    served = {one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_keys"]}
    assert served[PRODUCE] == (0, 13)
    assert served[FETCH] == (4, 18)
    assert served[API_VERSIONS] == (0, 4)


@pytest.mark.parametrize(
    ("version", "rest"),
    [(5, b"\0\x05java\x064.4.0\0"), (6, b""), (99, b"\xff" * 30), (32767, b"\0"), (-1, b"\0")],
)
def test_an_unknown_api_versions_version_is_answered_as_v0(target: Target, version: int, rest: bytes) -> None:
    """KIP-511: whatever the newer version holds, the answer is v0 with error 35 and the versions to choose from."""
    with target.connect() as connection:
        connection.send(framed(head(API_VERSIONS, version) + rest))
        frame = connection.receive()
        assert struct.unpack_from(">ih", frame) == (7, UNSUPPORTED_VERSION)
        answer = decode_answer("ApiVersions", 0, frame)
        assert {"api_key": API_VERSIONS, "min_version": 0, "max_version": 4} in answer["api_keys"]
        assert connection.call("ApiVersions", 0)["error_code"] == 0, "the client goes on with a version it was told"


# --- P4: lengths and counts inside a request ------------------------------------------------

MALFORMED = {
    "array of 2^31-1": head(METADATA, 1) + struct.pack(">i", 2**31 - 1),
    "array of -2": head(METADATA, 1) + struct.pack(">i", -2),
    "string of -2": head(METADATA, 1) + struct.pack(">ih", 1, -2),
    "string beyond the end": head(METADATA, 1) + struct.pack(">ih", 1, 32767),
    "name is no text": head(METADATA, 1) + struct.pack(">ih", 1, 2) + b"\xff\xfe",
    "client id is no text": head(METADATA, 1, client=b"\xff\xfe") + struct.pack(">i", 0),
    "client id of -2": struct.pack(">hhih", METADATA, 1, 7, -2) + bytes(4),
    "header only": struct.pack(">hhi", METADATA, 1, 7),
    "half a header": struct.pack(">hh", METADATA, 1),
    "compact array of 2^32-2": head(METADATA, 9, flexible=True) + varint(2**32 - 1),
    "compact array of 2^31-2": head(METADATA, 9, flexible=True) + varint(2**31 - 1),
    "compact string of 2^32-2": head(METADATA, 9, flexible=True) + b"\x02" + varint(2**32 - 1),
    "compact string beyond the end": head(METADATA, 9, flexible=True) + b"\x02" + varint(1000) + b"t",
    "compact records of 2^32-2": head(PRODUCE, 9, flexible=True)
    + b"\0"
    + struct.pack(">hi", 1, 1000)
    + b"\x02\x02t\x02"
    + bytes(4)
    + varint(2**32 - 1),
    "varint of 6 bytes": head(METADATA, 9, flexible=True) + b"\xff" * 5 + b"\x01",
    "varint of 11 bytes": head(METADATA, 9, flexible=True) + b"\x80" * 10 + b"\x01",
    "null where none may be": head(METADATA, 9, flexible=True) + b"\x02\x00\x00" + bytes(4),
    "2^31-1 tags": head(METADATA, 9, flexible=True) + b"\x01" + bytes(3) + varint(2**31 - 1),
    "2^31-1 tags in the header": head(METADATA, 9) + varint(2**31 - 1) + bytes(50),
    "a tag twice": head(METADATA, 9, flexible=True) + b"\x01" + bytes(3) + b"\x02\x05\x00\x05\x00",
    "a tag of 2^31-1 bytes": head(METADATA, 9, flexible=True) + b"\x01" + bytes(3) + b"\x01\x05" + varint(2**31 - 1),
    "records of 2^31-1": head(PRODUCE, 3)
    + struct.pack(">hhiih", -1, 1, 1000, 1, 1)
    + b"t"
    + struct.pack(">iii", 1, 0, 2**31 - 1),
    "records of -2": head(PRODUCE, 3) + struct.pack(">hhiih", -1, 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, -2),
    "nested array of 2^31-1": head(FETCH, 4)
    + struct.pack(">iiiibih", -1, 0, 0, 100, 0, 1, 1)
    + b"t"
    + struct.pack(">i", 2**31 - 1),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_length_or_count_that_does_not_fit_is_closed(target: Target, content: bytes) -> None:
    with target.connect() as connection:
        connection.send(framed(content))
        assert connection.is_closed_by_peer()


def test_tags_that_nobody_knows_are_ignored(target: Target) -> None:
    """KIP-482: a newer client may send them."""
    topics, flags = b"\x01", b"\x00\x00\x00"
    tags = b"\x02\x05\x01x\x64\x03abc"
    with target.connect() as connection:
        connection.send(framed(head(METADATA, 9) + tags + topics + flags + tags))
        assert decode_answer("Metadata", 9, connection.receive())["topics"] == []


def test_what_follows_a_malformed_request_is_not_answered(target: Target) -> None:
    answered = []
    with target.connect() as connection:
        connection.send(
            request_frame("ApiVersions", 0, {}, correlation_id=1)
            + framed(MALFORMED["array of 2^31-1"])
            + request_frame("ApiVersions", 0, {}, correlation_id=3)
        )
        with contextlib.suppress(ConnectionError):
            while True:
                answered.append(connection.receive_id())
    assert answered in ([], [1])


# --- P13: many of everything ----------------------------------------------------------------


def test_ten_thousand_unknown_topics_are_answered_one_by_one(target: Target) -> None:
    names = [{"name": f"no-such-{index}"} for index in range(10_000)]
    with target.connect() as connection:
        answer = connection.call("Metadata", 8, topics=names, allow_auto_topic_creation=True)
    assert {topic["error_code"] for topic in answer["topics"]} == {UNKNOWN_TOPIC}
    assert len(answer["topics"]) == 10_000


def test_a_hundred_thousand_partitions_in_one_request_are_refused(target: Target) -> None:
    partitions = [{"index": index, "records": None} for index in range(100_000)]
    fields = produce_fields(None, topic=target.topic)
    fields["topic_data"][0]["partition_data"] = partitions
    with target.connect() as connection:
        connection.send(request_frame("Produce", 9, fields))
        assert connection.is_closed_by_peer()


def test_ten_thousand_partitions_of_one_topic_are_answered_one_by_one(target: Target) -> None:
    partitions = [{"index": index + 1, "records": None} for index in range(10_000)]
    fields = produce_fields(None, topic=target.topic)
    fields["topic_data"][0]["partition_data"] = partitions
    with target.connect() as connection:
        answer = connection.call("Produce", 9, **fields)
    found = answer["responses"][0]["partition_responses"]
    assert [one["index"] for one in found] == list(range(1, 10_001))
    assert {one["error_code"] for one in found} == {UNKNOWN_TOPIC}


def test_a_topic_of_a_hundred_thousand_partitions_is_refused(target: Target) -> None:
    entry = {"name": "huge", "num_partitions": 100_000, "replication_factor": 1, "assignments": [], "configs": []}
    with target.connect() as connection:
        answer = connection.call("CreateTopics", 7, topics=[entry], timeout_ms=20_000, validate_only=False)
    assert answer["topics"][0]["error_code"] in (37, 44)  # INVALID_PARTITIONS, POLICY_VIOLATION


def test_the_same_topic_many_times_is_one_answer_or_an_error_each(target: Target) -> None:
    with target.connect() as connection:
        answer = connection.call(
            "Metadata", 8, topics=[{"name": target.topic}] * 5_000, allow_auto_topic_creation=False
        )
    assert len(answer["topics"]) in (1, 5_000)


def test_random_mutations_of_sound_requests_end_in_an_answer_or_a_close(target: Target) -> None:
    """P15 over the wire, a handful; tests/unit/protocol/test_messages.py tries many."""
    seed = int(os.environ.get("TABLEWIRE_TEST_SEED", "20"))
    chance = random.Random(seed)
    sound = request_frame("Metadata", 9, {"topics": [{"name": target.topic}], "allow_auto_topic_creation": False})
    for _ in range(100):
        content = bytearray(sound[4:])
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(8, len(content))] = chance.randrange(256)
        with target.connect() as connection:
            connection.send(framed(bytes(content)))
            try:
                connection.receive()
            except ConnectionError:
                continue
            except TimeoutError:
                pytest.fail(f"neither answer nor end, seed {seed}: {bytes(content)!r}")
