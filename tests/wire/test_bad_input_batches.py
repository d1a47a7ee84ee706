"""Bad record batches over the wire (P6 to P10, P16 of the test matrix): each gets Kafka's code and leaves no row."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from tests.support.attack import (
    MIB,
    Sent,
    Target,
    bounded_memory,
    fetch_on,
    make_batch,
    patched,
    produce_fields,
    with_payload,
)
from tests.support.gateway_process import GatewayProcess

CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_REQUIRED_ACKS = 21
INVALID_TIMESTAMP = 32
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
UNSUPPORTED_COMPRESSION = 76
INVALID_RECORD = 87

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
BATCH_LENGTH, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA = 8, 16, 17, 21, 23
PRODUCER_ID, RECORD_COUNT = 43, 57
CAP_BYTES = 8 * MIB
LAST_MS = 9_224_318_015_999_999
"""The last millisecond that timestamptz holds."""

GOOD = make_batch([Sent(b"one"), Sent(b"two"), Sent(b"three")])


@pytest.fixture(scope="module")
def target(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("bad-batches")
    settings = {"TABLEWIRE_MAX_DECOMPRESSED_MESSAGE_BYTES": str(CAP_BYTES)}
    with GatewayProcess(module_database_url, directory=directory, settings=settings) as process:
        target = Target(process)
        target.require_service()
        yield target


def without_crc(batch: bytes, layout: str, position: int, value: int) -> bytes:
    data = bytearray(batch)
    struct.pack_into(f">{layout}", data, position, value)
    return bytes(data)


def legacy(magic: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, 1_700_000_000_000, b"key", b"value")
    return bytes(builder.build())


# --- P6: damaged or mismatched --------------------------------------------------------------

DAMAGED = {
    "crc wrong": (without_crc(GOOD, "I", CRC, 1), {CORRUPT_MESSAGE}),
    "content changed": (without_crc(GOOD, "b", len(GOOD) - 2, 1), {CORRUPT_MESSAGE}),
    "magic 0": (legacy(0), {INVALID_RECORD}),
    "magic 1": (legacy(1), {INVALID_RECORD}),
    "magic 3": (without_crc(GOOD, "b", MAGIC, 3), {CORRUPT_MESSAGE}),
    "magic -1": (without_crc(GOOD, "b", MAGIC, -1), {CORRUPT_MESSAGE}),
    "length too small": (without_crc(GOOD, "i", BATCH_LENGTH, 10), {CORRUPT_MESSAGE}),
    "length negative": (without_crc(GOOD, "i", BATCH_LENGTH, -1), {CORRUPT_MESSAGE}),
    "length too large": (without_crc(GOOD, "i", BATCH_LENGTH, len(GOOD)), {INVALID_RECORD}),
    "length 2^31-1": (without_crc(GOOD, "i", BATCH_LENGTH, 2**31 - 1), {INVALID_RECORD, MESSAGE_TOO_LARGE}),
    "cut off": (GOOD[:-1], {INVALID_RECORD}),
    "header only": (GOOD[:61], {INVALID_RECORD, CORRUPT_MESSAGE}),
    "ten bytes": (GOOD[:10], {INVALID_RECORD}),
    "empty": (b"", {INVALID_RECORD}),
    "null": (None, {INVALID_RECORD}),
    "trailing byte": (GOOD + b"\0", {INVALID_RECORD}),
    "more records than it holds": (
        patched(patched(GOOD, "i", RECORD_COUNT, 4), "i", LAST_OFFSET_DELTA, 3),
        {INVALID_RECORD},
    ),
    "fewer records than it holds": (
        patched(patched(GOOD, "i", RECORD_COUNT, 2), "i", LAST_OFFSET_DELTA, 1),
        {INVALID_RECORD},
    ),
    "2^31-1 records": (
        patched(patched(GOOD, "i", RECORD_COUNT, 2**31 - 1), "i", LAST_OFFSET_DELTA, 2**31 - 2),
        {INVALID_RECORD, MESSAGE_TOO_LARGE},
    ),
    "no records": (with_payload(b"", count=0), {INVALID_RECORD}),
    "-1 records": (patched(GOOD, "i", RECORD_COUNT, -1), {INVALID_RECORD}),
}

# --- P7: sound bytes that a client may not send ---------------------------------------------

# Length, attributes, timestamp delta, offset delta, no key, value "v", no headers.
RECORD = {delta: bytes([14, 0, 0, 2 * delta, 1, 2]) + b"v" + b"\0" for delta in range(4)}
NOT_ALLOWED = {
    "last offset delta": (patched(GOOD, "i", LAST_OFFSET_DELTA, 5), {INVALID_RECORD}),
    "deltas with a gap": (with_payload(RECORD[0] + RECORD[2], count=2), {INVALID_RECORD}),
    "deltas backwards": (with_payload(RECORD[1] + RECORD[0], count=2), {INVALID_RECORD}),
    "deltas all 0": (with_payload(RECORD[0] * 2, count=2), {INVALID_RECORD}),
    "control batch": (patched(GOOD, "h", ATTRIBUTES, 0x20), {INVALID_RECORD}),
    "log append time": (patched(GOOD, "h", ATTRIBUTES, 0x08), {INVALID_TIMESTAMP}),
    "two batches": (GOOD + GOOD, {INVALID_RECORD}),
    # Apache Kafka's own answer: without an id nobody can be authorized for the transaction.
    "transactional without an id": (
        make_batch([Sent(b"t")], is_transactional=True),
        {TRANSACTIONAL_ID_AUTHORIZATION_FAILED},
    ),
    "producer without an epoch": (patched(GOOD, "q", PRODUCER_ID, 5), {INVALID_RECORD}),
    "record longer than the batch": (with_payload(b"\xfe\x01" + bytes(8), count=1), {INVALID_RECORD}),
    "varint without an end": (with_payload(b"\xff" * 20, count=1), {INVALID_RECORD}),
    "2^30 headers": (
        with_payload(bytes([22, 0, 0, 0, 1, 2]) + b"v" + b"\x80\x80\x80\x80\x08", count=1),
        {INVALID_RECORD, MESSAGE_TOO_LARGE},
    ),
}
REFUSED = DAMAGED | NOT_ALLOWED


@pytest.mark.parametrize(("records", "codes"), REFUSED.values(), ids=REFUSED)
def test_a_bad_batch_gets_its_code(target: Target, records: bytes | None, codes: set[int]) -> None:
    with target.unharmed():
        answer = target.produce(records)
    assert answer["error_code"] in codes
    assert answer["base_offset"] == -1


def test_a_bad_batch_does_not_harm_the_good_ones_of_its_request(target: Target) -> None:
    topic = target.new_topic(partitions=3)
    fields = produce_fields(None, topic=topic)
    bad = without_crc(GOOD, "I", CRC, 1)
    fields["topic_data"][0]["partition_data"] = [
        {"index": index, "records": records} for index, records in enumerate([GOOD, bad, GOOD])
    ]
    with target.connect() as connection:
        answer = connection.call("Produce", 9, **fields)
    found = answer["responses"][0]["partition_responses"]
    assert [(one["index"], one["error_code"]) for one in found] == [(0, 0), (1, CORRUPT_MESSAGE), (2, 0)]
    assert target.rows(
        "SELECT partition, count(*) FROM kafka.messages JOIN kafka.topics USING (topic_id)"
        " WHERE name = %s GROUP BY 1 ORDER BY 1",
        topic,
    ) == [(0, 3), (2, 3)]


@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
def test_acks_that_do_not_exist_are_refused(target: Target, acks: int) -> None:
    with target.unharmed():
        assert target.produce(GOOD, acks=acks)["error_code"] == INVALID_REQUIRED_ACKS


# --- P8: bombs ------------------------------------------------------------------------------

ZEROS = bytes(64 * MIB)


def xerial(*blocks: tuple[int, bytes]) -> bytes:
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", n) + b for n, b in blocks)


def snappy_bomb() -> bytes:
    """Snappy shrinks little, so the claim is the bomb: 2 GiB announced, ten bytes there."""
    return b"\xff\xff\xff\xff\x07" + bytes(10)


def nested(compress: object, levels: int) -> bytes:
    data = ZEROS
    for _ in range(levels):
        data = bytes(compress(data))  # type: ignore[operator]
    return data


BOMBS = {
    "gzip": (GZIP, gzip.compress(ZEROS)),
    "gzip of several members": (GZIP, gzip.compress(ZEROS[: 4 * MIB]) * 12),
    "gzip in gzip": (GZIP, nested(gzip.compress, 2)),
    "zstd": (ZSTD, bytes(cramjam.zstd.compress(ZEROS))),
    "zstd of several frames": (ZSTD, bytes(cramjam.zstd.compress(ZEROS[: 4 * MIB])) * 100),
    # Magic, no single segment, window descriptor 2 GiB, one empty last block.
    "zstd window of 2 GiB": (ZSTD, b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"),
    "zstd content size of 2^60": (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\0\0"),
    "lz4": (LZ4, bytes(cramjam.lz4.compress(ZEROS))),
    "snappy claims 2 GiB": (SNAPPY, snappy_bomb()),
    "snappy": (SNAPPY, bytes(cramjam.snappy.compress_raw(ZEROS[: 16 * MIB]))),
    "xerial block claims 2 GiB": (SNAPPY, xerial((2**31 - 1, b"x"))),
    "xerial block of -1": (SNAPPY, xerial((-1, b"x"))),
    "xerial block of 0": (SNAPPY, xerial((0, b""))),
    "xerial block lies about its content": (SNAPPY, xerial((len(snappy_bomb()), snappy_bomb()))),
    "gzip that ends early": (GZIP, gzip.compress(b"x" * 1000)[:-10]),
    "zlib, not gzip": (GZIP, zlib.compress(b"x" * 1000)),
    "noise as gzip": (GZIP, b"\x1f\x8b" + b"\xff" * 50),
    "noise as lz4": (LZ4, b"\xff" * 50),
    "noise as zstd": (ZSTD, b"\xff" * 50),
    "noise as snappy": (SNAPPY, b"\xff" * 50),
    "nothing as zstd": (ZSTD, b""),
}


@pytest.mark.parametrize(("codec", "payload"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_within_the_cap(target: Target, codec: int, payload: bytes) -> None:
    with target.unharmed(limit_bytes=2 * CAP_BYTES):
        answer = target.produce(with_payload(payload, count=1, codec=codec))
    assert answer["error_code"] in (MESSAGE_TOO_LARGE, INVALID_RECORD)


def test_many_bombs_at_once_stay_within_the_caps_of_those_being_read(target: Target) -> None:
    """Ten on ten connections: the pool of threads that decompresses is what bounds them."""
    bomb = with_payload(gzip.compress(ZEROS), count=1, codec=GZIP)
    with target.unharmed(limit_bytes=12 * CAP_BYTES):
        connections = [target.connect() for _ in range(10)]
        for connection in connections:
            connection.request("Produce", 9, **produce_fields(bomb, topic=target.topic))
        for connection in connections:
            connection.receive()
            connection.close()


# --- P9: too large --------------------------------------------------------------------------


def test_a_batch_over_the_topics_limit_is_refused(target: Target) -> None:
    topic = target.new_topic(max_message_bytes="2000")
    fits = make_batch([Sent(bytes(1800))])
    assert len(fits) <= 2000
    assert target.produce(fits, topic=topic)["error_code"] == 0
    with target.unharmed():
        answer = target.produce(make_batch([Sent(bytes(2000))]), topic=topic)
    assert answer["error_code"] == MESSAGE_TOO_LARGE


def test_a_batch_near_the_largest_request_is_refused(target: Target) -> None:
    """Frame, decoded request and one joining copy: three times its size, and not more."""
    batch = make_batch([Sent(bytes(90 * MIB))])
    with target.unharmed(limit_bytes=300 * MIB):
        assert target.produce(batch)["error_code"] == MESSAGE_TOO_LARGE


@pytest.mark.parametrize("length", [2**30, 2**31 - 1])
def test_a_value_that_claims_a_gigabyte_is_refused(target: Target, length: int) -> None:
    zigzag, encoded = 2 * length, b""
    while zigzag >= 0x80:
        encoded += bytes([zigzag & 0x7F | 0x80])
        zigzag >>= 7
    encoded += bytes([zigzag])
    body = bytes([0, 0, 0, 1]) + encoded + b"v" * 20
    with target.unharmed():
        answer = target.produce(with_payload(bytes([2 * len(body)]) + body, count=1))
    assert answer["error_code"] == INVALID_RECORD


# --- P10: codecs ----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_refused(target: Target, codec: int) -> None:
    with target.unharmed():
        answer = target.produce(patched(GOOD, "h", ATTRIBUTES, codec))
    assert answer["error_code"] == UNSUPPORTED_COMPRESSION


def test_zstd_is_refused_before_produce_v7_and_taken_from_it_on(target: Target) -> None:
    batch = with_payload(bytes(cramjam.zstd.compress(RECORD[0])), count=1, codec=ZSTD)
    for version in (3, 6):
        with target.unharmed():
            assert target.produce(batch, version=version)["error_code"] == UNSUPPORTED_COMPRESSION
    assert target.produce(batch, version=7)["error_code"] == 0


# --- P16: timestamps ------------------------------------------------------------------------


@pytest.mark.parametrize("timestamp_ms", [-2, -(2**40), -(2**63), LAST_MS + 1, 2**62, 2**63 - 1])
def test_a_timestamp_that_no_row_can_hold_is_refused(target: Target, timestamp_ms: int) -> None:
    batch = patched(make_batch([Sent(b"t")]), "q", 27, timestamp_ms)
    with target.unharmed():
        assert target.produce(batch)["error_code"] == INVALID_TIMESTAMP


@pytest.mark.parametrize("timestamp_ms", [0, 1, 253_402_300_799_999, 9_214_646_400_000_000, LAST_MS])
def test_a_timestamp_that_a_row_can_hold_comes_back(target: Target, timestamp_ms: int) -> None:
    """Year 1970 to 294276, beyond Python's datetime; found by time and as the largest one too."""
    topic = target.new_topic(
        message_timestamp_after_max_ms=str(2**63 - 1), message_timestamp_before_max_ms=str(2**63 - 1)
    )
    batch = make_batch([Sent(b"t", timestamp_ms=timestamp_ms)])
    assert target.produce(batch, topic=topic)["error_code"] == 0
    with target.connect() as connection:
        (found,) = fetch_on(connection, [(topic, 0, 0)])
        assert struct.unpack_from(">q", bytes(found["records"]), 27) == (timestamp_ms,)
        for asked in (timestamp_ms, -3):
            answer = connection.call(
                "ListOffsets",
                7,
                replica_id=-1,
                isolation_level=0,
                topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": asked}]}],
            )
            one = answer["topics"][0]["partitions"][0]
            assert (one["error_code"], one["offset"], one["timestamp"]) == (0, 0, timestamp_ms)
    target.process.require_clean_log()


def test_no_timestamp_at_all_is_kept_as_it_is(target: Target) -> None:
    topic = target.new_topic()
    assert target.produce(make_batch([Sent(b"t", timestamp_ms=-1)]), topic=topic)["error_code"] == 0
    with target.connect() as connection:
        (found,) = fetch_on(connection, [(topic, 0, 0)])
    assert struct.unpack_from(">q", bytes(found["records"]), 27) == (-1,)


@pytest.mark.parametrize("asked", [-7, -(2**63), LAST_MS + 1, 2**63 - 1])
def test_a_time_that_no_row_can_have_finds_nothing(target: Target, asked: int) -> None:
    with target.unharmed(), target.connect() as connection:
        answer = connection.call(
            "ListOffsets",
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": target.topic, "partitions": [{"partition_index": 0, "timestamp": asked}]}],
        )
    one = answer["topics"][0]["partitions"][0]
    assert (one["error_code"], one["offset"], one["timestamp"]) == (0, -1, -1)


def test_a_batch_over_the_memory_of_many_headers_is_refused(target: Target) -> None:
    """A header takes two bytes on the wire and many in memory: 600,000 of them are too many."""
    headers = 600_000
    body = bytes([0, 0, 0, 1, 1]) + b"\x80\x9f\x49" + b"\0\1" * headers
    assert 2 * headers == (0x1F << 7) | (0x49 << 14)
    length, encoded = 2 * len(body), b""
    while length >= 0x80:
        encoded += bytes([length & 0x7F | 0x80])
        length >>= 7
    batch = with_payload(bytes(cramjam.zstd.compress(encoded + bytes([length]) + body)), count=1, codec=ZSTD)
    with bounded_memory(target.process.pid, limit_bytes=4 * CAP_BYTES):
        assert target.produce(batch)["error_code"] == MESSAGE_TOO_LARGE
