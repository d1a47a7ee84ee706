"""Record batches: what producers may send, the rows it becomes, and what consumers get back.

The oracles are kafka-python's and aiokafka's writers, kafka-python's reader, and psycopg's binary loaders.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import cramjam
import google_crc32c
import pytest
from aiokafka.record._crecords.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from psycopg import postgres
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format

from gateway.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from gateway.protocol import transcoder
from gateway.protocol.batches import BatchLimits, ProducedBatch, StoredBatch, decode_produced
from gateway.protocol.copy_rows import COPY_COLUMNS, copy_rows
from gateway.protocol.layout import MAX_TIMESTAMP_MS
from gateway.protocol.row_batches import RowRange, encode_rows
from gateway.storage.results import ResultRows
from tests.support.results import message_rows, stored_row
from tests.support.transcoders import TRANSCODERS

NOW_MS = 1_790_000_000_000
LIMITS = BatchLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=4 << 20)


@pytest.fixture(autouse=True, scope="module", params=TRANSCODERS)
def every_transcoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test with the compiled code and with Python's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcoder, "implementation", request.param)
        yield


ATTRIBUTES, LAST_OFFSET_DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP = 21, 23, 27, 35
PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, RECORD_COUNT = 43, 51, 53, 57


@dataclass(frozen=True)
class Sent:
    """One record as a test hands it to a client's writer."""

    timestamp_ms: int = NOW_MS
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] = ()


def build(
    records: list[Sent],
    *,
    builder: Any = KafkaPythonBuilder,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
) -> bytes:
    writer = builder(2, codec, is_transactional, *producer, 1 << 30)
    for index, record in enumerate(records):
        writer.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(writer.build())


def patched(batch: bytes, layout: str, position: int, value: int) -> bytes:
    """The batch with one field changed and the CRC made right again."""
    data = bytearray(batch)
    struct.pack_into(f">{layout}", data, position, value)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def with_payload(payload: bytes, *, count: int, codec: int = 0, base_timestamp: int = NOW_MS) -> bytes:
    """A batch around records written by hand."""
    header = struct.pack(
        ">qiibIhiqqqhii",
        0,
        len(payload) + 49,
        -1,
        2,
        0,
        codec,
        count - 1,
        base_timestamp,
        NOW_MS,
        -1,
        -1,
        -1,
        count,
    )
    return patched(header + payload, "h", ATTRIBUTES, codec)


THREE = [Sent(NOW_MS + i, b"k%d" % i, b"v%d" % i) for i in range(3)]
GOOD = build(THREE)
# kafka-python sends what compression does not make smaller as it is.
COMPRESSIBLE = Sent(value=b"x" * 5000)


def read_back(data: bytes) -> list[Any]:
    """Every batch in `data`, read by kafka-python, its CRC verified; each with its records as a list."""
    memory = MemoryRecords(data)
    found = []
    while (batch := memory.next_batch()) is not None:
        assert batch.validate_crc()
        found.append((batch, list(batch)))
    assert memory.size_in_bytes() == len(data) == memory.valid_bytes()
    return found


# --- records that come and go ----------------------------------------------------------------

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
contents = st.none() | st.binary(max_size=40)
sent_records = st.builds(
    Sent,
    timestamp_ms=st.sampled_from([-1, 0, NOW_MS, MAX_TIMESTAMP_MS]) | st.integers(0, MAX_TIMESTAMP_MS),
    key=contents,
    value=contents | st.binary(min_size=100, max_size=300),
    headers=st.lists(st.tuples(texts | st.just("") | st.just("same"), contents), max_size=4).map(tuple),
)
record_lists = st.lists(sent_records, min_size=1, max_size=12)
producers = st.just((-1, -1, -1)) | st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1) | st.just(2**31 - 3)
)


def decoded_records(batch: ProducedBatch) -> list[Sent]:
    return [
        Sent(
            row["timestamp"],
            row["key"],
            row["value"],
            tuple(zip(row["header_names"] or (), row["header_values"] or (), strict=True)),
        )
        for row in parse_copy(copy_rows(batch, topic_id=1, partition=0, base_offset=0, log_append_time_ms=None))
    ]


@given(record_lists, st.sampled_from([0, 1, 2, 3, 4]), producers, st.booleans())
@example([Sent(-1), Sent(5)], 0, (-1, -1, -1), False)
def test_what_kafka_python_wrote_is_read(
    records: list[Sent], codec: int, producer: tuple[int, int, int], is_transactional: bool
) -> None:
    records = [*records, COMPRESSIBLE]
    data = build(records, codec=codec, producer=producer, is_transactional=is_transactional)
    batch = decode_produced(data, LIMITS)
    assert batch.codec == codec
    assert decoded_records(batch) == records
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == producer
    assert batch.is_transactional == is_transactional
    assert batch.data == data
    assert batch.record_count == len(records) == batch.last_offset_delta + 1
    assert batch.max_timestamp == max(record.timestamp_ms for record in records)
    present = [record.timestamp_ms for record in records if record.timestamp_ms != -1]
    assert batch.min_timestamp == min(present, default=-1)
    assert batch.lacks_key == any(record.key is None for record in records)


@given(record_lists.filter(lambda records: records[0].timestamp_ms != -1), st.sampled_from([0, 1, 2, 3, 4]))
def test_what_aiokafka_wrote_is_read(records: list[Sent], codec: int) -> None:
    batch = decode_produced(build(records, builder=AiokafkaBuilder, codec=codec), LIMITS)
    assert batch.codec == codec
    assert decoded_records(batch) == records


def test_a_large_batch_is_read_like_a_small_one() -> None:
    records = [Sent(NOW_MS + i, None, b"x" * 1000, (("h", b"1"),) * (i % 3)) for i in range(2000)]
    records.append(Sent(value=b"y" * 200_000))
    limits = replace(LIMITS, max_batch_bytes=8 << 20)
    assert decoded_records(decode_produced(build(records), limits)) == records


def test_a_batch_without_producer_may_say_any_sequence_and_epoch() -> None:
    """Sarama sends sequence 0 without a producer id; Kafka ignores it."""
    batch = decode_produced(build(THREE, producer=(-1, 3, 0)), LIMITS)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (
        -1,
        -1,
        -1,
        -1,
    )
    assert not batch.has_producer


def test_sequences_wrap_to_zero() -> None:
    batch = decode_produced(build(THREE, producer=(7, 0, 2**31 - 2)), LIMITS)
    assert batch.last_sequence == 0
    rows = parse_copy(copy_rows(batch, topic_id=1, partition=0, base_offset=0, log_append_time_ms=None))
    assert [row["sequence"] for row in rows] == [2**31 - 2, 2**31 - 1, 0]


# --- refusals --------------------------------------------------------------------------------

PLAIN_RECORD = bytes([14, 0, 0, 0, 1, 2, 65, 0])  # length 7, attributes, deltas 0, null key, value "A", no headers


def damaged(batch: bytes, position: int) -> bytes:
    return batch[:position] + bytes([batch[position] ^ 1]) + batch[position + 1 :]


def with_length(length: int) -> bytes:
    return GOOD[:8] + struct.pack(">i", length) + GOOD[12:]


def with_magic(magic: int) -> bytes:
    return GOOD[:16] + struct.pack(">b", magic) + GOOD[17:]


def legacy(magic: int) -> bytes:
    writer = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    writer.append(0, timestamp=NOW_MS, key=b"key", value=b"value")
    return bytes(writer.build())


def with_count(count: int, last_offset_delta: int) -> bytes:
    return patched(patched(GOOD, "i", RECORD_COUNT, count), "i", LAST_OFFSET_DELTA, last_offset_delta)


def with_deltas(*deltas: int) -> bytes:
    writer = AiokafkaBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for delta in deltas:
        writer.append(delta, NOW_MS, None, b"v", [])
    return patched(bytes(writer.build()), "i", LAST_OFFSET_DELTA, len(deltas) - 1)


def one(*record: int) -> bytes:
    return with_payload(bytes(record), count=1)


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        pytest.param(damaged(GOOD, len(GOOD) - 1), CorruptMessage, id="a bit flipped in the last record"),
        pytest.param(damaged(GOOD, 17), CorruptMessage, id="a bit flipped in the CRC"),
        pytest.param(damaged(GOOD, 22), CorruptMessage, id="a bit flipped in the attributes"),
        pytest.param(b"", InvalidRecord, id="nothing"),
        pytest.param(GOOD[:10], InvalidRecord, id="ends before the length"),
        pytest.param(GOOD[:40], InvalidRecord, id="ends in the header"),
        pytest.param(GOOD[:-1], InvalidRecord, id="ends in the last record"),
        pytest.param(with_length(len(GOOD) - 13), CorruptMessage, id="length one too small"),
        pytest.param(with_length(len(GOOD) - 11), InvalidRecord, id="length one too large"),
        pytest.param(with_length(48), CorruptMessage, id="length smaller than a header"),
        pytest.param(with_length(-5), CorruptMessage, id="length negative"),
        pytest.param(with_length(2**31 - 1), InvalidRecord, id="length of two gigabytes"),
        pytest.param(GOOD + b"12345", InvalidRecord, id="bytes after the batch"),
        pytest.param(GOOD + bytes(70), InvalidRecord, id="zeros after the batch"),
        pytest.param(GOOD + GOOD, InvalidRecord, id="two batches"),
        pytest.param(with_magic(0), InvalidRecord, id="magic 0"),
        pytest.param(with_magic(1), InvalidRecord, id="magic 1"),
        pytest.param(legacy(0), InvalidRecord, id="a real message of magic 0"),
        pytest.param(legacy(1), InvalidRecord, id="a real message of magic 1"),
        pytest.param(with_magic(3), CorruptMessage, id="magic 3"),
        pytest.param(with_magic(-1), CorruptMessage, id="magic -1"),
        pytest.param(patched(GOOD, "q", 0, 100), InvalidRecord, id="base offset 100"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 0x20), InvalidRecord, id="control bit"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 0x30), InvalidRecord, id="control and transactional bit"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 0x08), InvalidTimestamp, id="LogAppendTime bit"),
        pytest.param(with_count(0, -1), InvalidRecord, id="no records, said so"),
        pytest.param(with_payload(b"", count=0), InvalidRecord, id="no records at all"),
        pytest.param(with_count(-1, -2), InvalidRecord, id="negative count"),
        pytest.param(with_count(2, 2), InvalidRecord, id="count below the offset delta"),
        pytest.param(with_count(3, 5), InvalidRecord, id="last offset delta above the count"),
        pytest.param(with_count(2, 1), InvalidRecord, id="one record more than counted"),
        pytest.param(with_count(4, 3), InvalidRecord, id="one record less than counted"),
        pytest.param(with_count(2**31 - 1, 2**31 - 2), MessageTooLarge, id="two billion records"),
        pytest.param(with_deltas(0, 2, 5), InvalidRecord, id="gaps between offset deltas"),
        pytest.param(with_deltas(0, 0, 1), InvalidRecord, id="an offset delta twice"),
        pytest.param(with_deltas(1, 2, 3), InvalidRecord, id="offset deltas from 1"),
        pytest.param(build(THREE, producer=(5, 0, -1)), InvalidRecord, id="producer without sequence"),
        pytest.param(build(THREE, producer=(5, -1, 0)), InvalidRecord, id="producer without epoch"),
        pytest.param(build(THREE, producer=(5, -2, 0)), InvalidRecord, id="producer with negative epoch"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 5), UnsupportedCompressionType, id="codec 5"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 6), UnsupportedCompressionType, id="codec 6"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 7), UnsupportedCompressionType, id="codec 7"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 1), InvalidRecord, id="gzip announced, plain sent"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 2), InvalidRecord, id="snappy announced, plain sent"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 3), InvalidRecord, id="lz4 announced, plain sent"),
        pytest.param(patched(GOOD, "h", ATTRIBUTES, 4), InvalidRecord, id="zstd announced, plain sent"),
        pytest.param(build([Sent(-2)]), InvalidTimestamp, id="timestamp -2"),
        pytest.param(build([Sent(-(2**63))]), InvalidTimestamp, id="timestamp of the smallest int64"),
        pytest.param(build([Sent(2**63 - 1)]), InvalidTimestamp, id="timestamp of the largest int64"),
        pytest.param(build([Sent(MAX_TIMESTAMP_MS + 1)]), InvalidTimestamp, id="timestamp after PostgreSQL's last"),
        pytest.param(patched(GOOD, "q", BASE_TIMESTAMP, 2**63 - 1), InvalidTimestamp, id="timestamps that overflow"),
        pytest.param(one(14, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F), InvalidRecord, id="key of two gigabytes"),
        pytest.param(
            one(14, 0, 0, 0, *[0xFE, *[0xFF] * 8, 0x01], 0, 0),
            InvalidRecord,
            id="key length of the largest int64",
        ),
        pytest.param(
            one(14, 0, 0, 0, *[0x80, 0xFF, *[0xFF] * 7, 0x01], 0, 0),
            InvalidRecord,
            id="key length that wraps",
        ),
        pytest.param(one(14, 0, 0, 0, 1, 8, 65, 0), InvalidRecord, id="value longer than the record"),
        pytest.param(one(10, 0, 0, 0, 1, 2, 65, 0), InvalidRecord, id="record shorter than its fields"),
        pytest.param(one(18, 0, 0, 0, 1, 2, 65, 0), InvalidRecord, id="record longer than its fields"),
        pytest.param(one(1, 0, 0, 0, 1, 2, 65, 0), InvalidRecord, id="record of negative length"),
        pytest.param(one(14, 0, 0, 0, 1, 2, 65, 1), InvalidRecord, id="header count -1"),
        pytest.param(one(16, 0, 0, 0, 1, 1, 2, 1, 0), InvalidRecord, id="null header key"),
        pytest.param(one(18, 0, 0, 0, 1, 1, 2, 2, 0xFF, 1), InvalidRecord, id="header key not UTF-8"),
        pytest.param(one(18, 0, 0, 0, 1, 1, 2, 2, 0, 1), InvalidRecord, id="header key with NUL"),
        pytest.param(one(14, 0, 0, 0, 1, 1, 0xFE, 0x7F), InvalidRecord, id="8191 headers announced"),
        pytest.param(one(20, 0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F), MessageTooLarge, id="2^31-1 headers"),
        pytest.param(one(14, 0, 0, 0, 1, 1, 2, 0x81), InvalidRecord, id="ends inside a header's number"),
        pytest.param(one(16, 0, 0, 0, 1, 1, 0x10, 0, 0x81), InvalidRecord, id="ends inside a null, headers to come"),
        pytest.param(
            one(0x8E, 0x80, 0x80, 0x80, 0x80, 0, 0, 0, 0, 1, 2, 65, 0),
            InvalidRecord,
            id="varint of six bytes",
        ),
        pytest.param(one(30, 0, *[0x80] * 10, 0, 0, 1, 1, 0), InvalidRecord, id="varlong of eleven bytes"),
        pytest.param(one(*[0x80] * 20), InvalidRecord, id="a number without end"),
        pytest.param(one(0x8E, 0x80, 0x80, 0x80, 0x10, *PLAIN_RECORD[1:]), InvalidRecord, id="length of 33 bits"),
        pytest.param(with_payload(PLAIN_RECORD + b"xx", count=1), InvalidRecord, id="bytes after the last record"),
    ],
)
def test_a_batch_that_is_wrong_is_refused(sent: bytes, refusal: type[KafkaError]) -> None:
    with pytest.raises(refusal) as caught:
        decode_produced(sent, LIMITS)
    assert type(caught.value) is refusal
    assert caught.value.message


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_what_follows_the_batch_is_never_looked_at(codec: int) -> None:
    data = build([COMPRESSIBLE], codec=codec)
    for trailer in (b"x", data):
        with pytest.raises(InvalidRecord, match="expected one batch"):
            decode_produced(data + trailer, LIMITS)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bytes_after_the_records_are_refused_inside_compression_too(codec: int) -> None:
    for trailer, is_good in ((b"", True), (b"xx", False), (PLAIN_RECORD, False)):
        payload = GOOD[61:] + trailer
        if codec == 3:
            compressor = cramjam.lz4.Compressor(level=1, block_linked=False)
            compressor.compress(payload)
            data = bytes(compressor.finish())
        else:
            compress = {1: cramjam.gzip.compress, 2: cramjam.snappy.compress_raw, 4: cramjam.zstd.compress}[codec]
            data = bytes(compress(payload))
        sent = with_payload(data, count=3, codec=codec)
        if is_good:
            assert decoded_records(decode_produced(sent, LIMITS)) == THREE
            continue
        with pytest.raises(InvalidRecord, match="follow the last"):
            decode_produced(sent, LIMITS)


def test_zstd_is_refused_where_the_request_version_does_not_know_it() -> None:
    data = build([COMPRESSIBLE], codec=4)
    assert decode_produced(data, LIMITS).codec == 4
    with pytest.raises(UnsupportedCompressionType):
        decode_produced(data, replace(LIMITS, allow_zstd=False))


def test_the_size_limit_counts_the_whole_batch_and_comes_before_the_crc() -> None:
    assert decode_produced(GOOD, replace(LIMITS, max_batch_bytes=len(GOOD))).record_count == 3
    for sent in (GOOD, damaged(GOOD, len(GOOD) - 1)):
        with pytest.raises(MessageTooLarge):
            decode_produced(sent, replace(LIMITS, max_batch_bytes=len(GOOD) - 1))


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_decompressed_records_have_a_limit_of_their_own(codec: int) -> None:
    data = build([Sent(value=bytes(100_000))], codec=codec)
    size_bytes = decode_produced(data, LIMITS).payload_bytes
    assert decode_produced(data, replace(LIMITS, max_decompressed_bytes=size_bytes)).record_count == 1
    with pytest.raises(MessageTooLarge):
        decode_produced(data, replace(LIMITS, max_decompressed_bytes=size_bytes - 1))


def test_records_and_headers_together_have_a_limit() -> None:
    data = build([Sent(headers=(("a", b""), ("b", b"")))] * 10)
    limits = replace(LIMITS, max_elements=9)
    with pytest.raises(MessageTooLarge):
        decode_produced(data, limits)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param([14, 0x7F, 0, 0, 1, 2, 65, 0], id="attributes 0x7f"),
        pytest.param([14, 0x80, 0, 0, 1, 2, 65, 0], id="attributes 0x80"),
        pytest.param([0x8E, 0x80, 0x80, 0x80, 0, 0, 0, 0, 1, 2, 65, 0], id="length as a varint of five bytes"),
        pytest.param([14, 0, 0, 0, 9, 2, 65, 0], id="key length -5 is null"),
    ],
)
def test_what_kafka_reads_though_no_client_writes_it_is_read_as_kafka_does(record: list[int]) -> None:
    assert decoded_records(decode_produced(one(*record), LIMITS)) == [Sent(NOW_MS, None, b"A")]


def test_attributes_are_a_byte_even_where_a_varint_would_also_fit() -> None:
    """Read as a varint the attributes would take two bytes and all be well; Kafka reads nonsense."""
    ambiguous = one(16, 0x80, 1, 0, 0, 0, 2, 65, 0)
    with pytest.raises(InvalidRecord):
        decode_produced(ambiguous, LIMITS)


def test_unused_attribute_bits_are_ignored() -> None:
    assert decode_produced(patched(GOOD, "h", ATTRIBUTES, 0x7F40), LIMITS).record_count == 3


# --- fuzz ------------------------------------------------------------------------------------


@given(
    record_lists,
    st.sampled_from([0, 0, 1, 2, 3, 4]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    st.integers(-3, 3),
    st.booleans(),
)
def test_a_mutated_batch_is_read_or_refused(
    records: list[Sent], codec: int, changes: list[tuple[int, int]], resize: int, keep_crc: bool
) -> None:
    data = bytearray(build(records, builder=AiokafkaBuilder, codec=codec))
    for position, byte in changes:
        data[21 + position % (len(data) - 21)] = byte
    data = data[:resize] if resize < 0 else data + bytes(resize)
    struct.pack_into(">i", data, 8, len(data) - 12)
    sent = bytes(data) if keep_crc else patched(bytes(data), "q", 0, 0)
    with contextlib.suppress(KafkaError):
        batch = decode_produced(sent, LIMITS)
        rows = parse_copy(copy_rows(batch, topic_id=1, partition=2, base_offset=3, log_append_time_ms=None))
        assert len(rows) == batch.record_count
        stored = bytes(StoredBatch(batch, base_offset=9, leader_epoch=1, log_append_time_ms=None))
        assert stored[61:] == sent[61:]


@given(st.binary(max_size=200), st.integers(1, 20), st.sampled_from([0, -1, 2**63 - 1]))
def test_random_records_are_read_or_refused(payload: bytes, count: int, base_timestamp: int) -> None:
    with contextlib.suppress(KafkaError):
        decode_produced(with_payload(payload, count=count, base_timestamp=base_timestamp), LIMITS)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(KafkaError):
        decode_produced(data, LIMITS)


# Millions of empty headers, or of records of seven bytes: small on the wire, large as objects.
MANY_OBJECTS = """
import struct, sys
import cramjam, google_crc32c
from gateway.errors import MessageTooLarge
from gateway.protocol import plain_transcoder, transcoder
from gateway.protocol.batches import BatchLimits, decode_produced

if sys.argv[2] == "plain":
    transcoder.implementation = plain_transcoder

def varint(value):
    value <<= 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])

MIB = 1 << 20
if sys.argv[1] == "headers":
    body = bytes([0, 0, 0, 1, 1]) + varint(30 * MIB) + bytes(60 * MIB)
    payload, count = varint(len(body)) + body, 1
elif sys.argv[1] == "spread headers":
    records = []
    for index in range(1000):
        record = bytes([0, 0]) + varint(index) + bytes([1, 1]) + varint(30_000) + bytes(60_000)
        records.append(varint(len(record)) + record)
    payload, count = b"".join(records), 1000
else:
    payload, count = bytes([12, 0, 0, 0, 1, 1, 0]) * (8 * MIB), 8 * MIB
data = bytes(cramjam.zstd.compress(payload))
del payload
header = struct.pack(">hiqqqhii", 4, count - 1, 0, 0, -1, -1, -1, count)
crc = google_crc32c.value(header + data)
batch = struct.pack(">qiibI", 0, len(header) + len(data) + 9, -1, 2, crc) + header + data
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")

def peak_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak_kib()
try:
    decode_produced(batch, BatchLimits(max_batch_bytes=2 * MIB, max_decompressed_bytes=64 * MIB))
except MessageTooLarge:
    print(peak_kib() - before)
"""


@pytest.mark.parametrize("kind", ["headers", "spread headers", "records"])
def test_many_small_objects_take_little_memory(kind: str) -> None:
    which = "compiled" if transcoder.implementation.IS_COMPILED else "plain"
    command = [sys.executable, "-c", MANY_OBJECTS, kind, which]
    run = subprocess.run(command, capture_output=True, check=False, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 2 * 64 * 1024


# --- rows ------------------------------------------------------------------------------------

COLUMN_TYPES = {
    "offset": "int8",
    "timestamp": "timestamptz",
    "producer_id": "int8",
    "topic_id": "int4",
    "partition": "int4",
    "sequence": "int4",
    "producer_epoch": "int2",
    "timestamp_type": "int2",
    "control_type": "int2",
    "is_transactional": "bool",
    "key": "bytea",
    "value": "bytea",
    "header_names": "text[]",
    "header_values": "bytea[]",
}


def load(type_name: str, data: bytes) -> Any:
    if type_name == "timestamptz":  # psycopg stops at year 9999, Kafka and PostgreSQL do not
        return struct.unpack(">q", data)[0] // 1000 + 946_684_800_000
    info = postgres.types[type_name.removesuffix("[]")]
    oid = info.array_oid if type_name.endswith("[]") else info.oid
    return Transformer().get_loader(oid, Format.BINARY).load(data)


def parse_copy(data: bytes) -> list[dict[str, Any]]:
    rows, position = [], 0
    while position < len(data):
        (field_count,) = struct.unpack_from(">h", data, position)
        assert field_count == len(COPY_COLUMNS)
        position += 2
        row: dict[str, Any] = {}
        for name in COPY_COLUMNS:
            (length,) = struct.unpack_from(">i", data, position)
            position += 4
            field = data[position : position + max(length, 0)]
            row[name] = None if length == -1 else load(COLUMN_TYPES[name], field)
            position += max(length, 0)
        rows.append(row)
    assert position == len(data)
    return rows


@given(record_lists, producers, st.booleans(), st.none() | st.integers(0, MAX_TIMESTAMP_MS))
@example([Sent(key=None), Sent(key=b"")], (-1, -1, -1), False, None)
@example([Sent(key=None), Sent(key=None, value=None)], (1, 2, 3), True, None)
@example([Sent(value=None)], (-1, -1, -1), False, NOW_MS)
def test_records_become_rows(
    records: list[Sent],
    producer: tuple[int, int, int],
    is_transactional: bool,
    log_append_time_ms: int | None,
) -> None:
    batch = decode_produced(build(records, producer=producer, is_transactional=is_transactional), LIMITS)
    data = copy_rows(batch, topic_id=7, partition=3, base_offset=1 << 40, log_append_time_ms=log_append_time_ms)
    producer_id, epoch, sequence = producer
    assert parse_copy(data) == [
        {
            "offset": (1 << 40) + index,
            "timestamp": record.timestamp_ms if log_append_time_ms is None else log_append_time_ms,
            "producer_id": producer_id if producer_id >= 0 else None,
            "topic_id": 7,
            "partition": 3,
            "sequence": (sequence + index) % 2**31 if producer_id >= 0 else None,
            "producer_epoch": epoch if producer_id >= 0 else None,
            "timestamp_type": 0 if log_append_time_ms is None else 1,
            "control_type": None,
            "is_transactional": is_transactional,
            "key": record.key,
            "value": record.value,
            "header_names": [name for name, _ in record.headers] or None,
            "header_values": [value for _, value in record.headers] or None,
        }
        for index, record in enumerate(records)
    ]


def test_timestamps_are_encoded_as_psycopg_encodes_them() -> None:
    moment = dt.datetime(2026, 11, 16, 12, 0, 0, 123_000, tzinfo=dt.UTC)
    expected = bytes(Transformer().get_dumper(moment, PyFormat.BINARY).dump(moment) or b"")
    batch = decode_produced(build([Sent(round(moment.timestamp() * 1000))]), LIMITS)
    data = copy_rows(batch, topic_id=1, partition=0, base_offset=0, log_append_time_ms=None)
    assert data[18:26] == expected


@pytest.mark.parametrize("values", [[b"a", b""], [b"a", None], [None]])
def test_arrays_are_encoded_as_psycopg_encodes_them(values: list[bytes | None]) -> None:
    batch = decode_produced(build([Sent(headers=tuple(("name", value) for value in values))]), LIMITS)
    data = copy_rows(batch, topic_id=1, partition=0, base_offset=0, log_append_time_ms=None)
    for array in (["name"] * len(values), values):
        encoded = bytes(Transformer().get_dumper(array, PyFormat.BINARY).dump(array) or b"")
        if array != [None]:  # psycopg gives an array of nulls the type text
            assert struct.pack(">i", len(encoded)) + encoded in data


# --- batches as a broker serves them ---------------------------------------------------------


@given(record_lists, st.sampled_from([0, 1, 2, 3, 4]), st.none() | st.integers(0, MAX_TIMESTAMP_MS))
def test_the_stored_form_is_what_consumers_read(
    records: list[Sent], codec: int, log_append_time_ms: int | None
) -> None:
    records = [*records, COMPRESSIBLE]
    batch = decode_produced(build(records, codec=codec, producer=(5, 6, 7), is_transactional=True), LIMITS)
    data = bytes(StoredBatch(batch, base_offset=1 << 40, leader_epoch=9, log_append_time_ms=log_append_time_ms))
    [(read, found)] = read_back(data)
    assert (read.base_offset, read.leader_epoch, read.compression_type) == (1 << 40, 9, codec)
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (5, 6, 7)
    assert read.is_transactional
    assert not read.is_control_batch
    assert read.timestamp_type == (0 if log_append_time_ms is None else 1)
    assert [(record.offset, record.key, record.value, tuple(record.headers)) for record in found] == [
        ((1 << 40) + index, record.key, record.value, record.headers) for index, record in enumerate(records)
    ]
    timestamps = [record.timestamp_ms for record in records]
    assert [record.timestamp for record in found] == (
        timestamps if log_append_time_ms is None else [log_append_time_ms] * len(records)
    )
    assert read.max_timestamp == (max(timestamps) if log_append_time_ms is None else log_append_time_ms)


def test_a_wrong_max_timestamp_is_put_right_as_kafka_does() -> None:
    batch = decode_produced(patched(GOOD, "q", MAX_TIMESTAMP, 5), LIMITS)
    [(read, _)] = read_back(bytes(StoredBatch(batch, base_offset=0, leader_epoch=0, log_append_time_ms=None)))
    assert read.max_timestamp == NOW_MS + 2


def test_a_right_batch_keeps_its_bytes_but_for_offset_and_leader_epoch() -> None:
    data = bytes(StoredBatch(decode_produced(GOOD, LIMITS), base_offset=5, leader_epoch=2, log_append_time_ms=None))
    assert data == struct.pack(">q", 5) + GOOD[8:12] + struct.pack(">i", 2) + GOOD[16:]


# --- rows as a broker serves them ------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    offset: int
    timestamp_ms: int = NOW_MS
    timestamp_type: int = 0
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    producer_id: int | None = None
    producer_epoch: int | None = None
    sequence: int | None = None
    is_transactional: bool = False
    control_type: int | None = None


def row_range(rows: list[Row]) -> RowRange:
    return RowRange(
        offsets=[row.offset for row in rows],
        timestamps_ms=[row.timestamp_ms for row in rows],
        timestamp_types=[row.timestamp_type for row in rows],
        keys=[row.key for row in rows],
        values=[row.value for row in rows],
        header_names=[[name for name, _ in row.headers] or None for row in rows],
        header_values=[[value for _, value in row.headers] or None for row in rows],
        producer_ids=[row.producer_id for row in rows],
        producer_epochs=[row.producer_epoch for row in rows],
        sequences=[row.sequence for row in rows],
        is_transactional=[row.is_transactional for row in rows],
        control_types=[row.control_type for row in rows],
    )


def rows_read_back(data: bytes) -> list[Row]:
    rows = []
    for batch, records in read_back(data):
        assert batch.leader_epoch == 4
        assert batch.base_offset == records[0].offset
        assert batch.last_offset == records[-1].offset
        assert batch.max_timestamp == max(record.timestamp for record in records)
        if batch.is_control_batch:
            assert len(records) == 1
        for record in records:
            has_producer, delta = batch.producer_id >= 0, record.offset - batch.base_offset
            has_sequence = has_producer and batch.base_sequence >= 0
            rows.append(
                Row(
                    offset=record.offset,
                    timestamp_ms=record.timestamp,
                    timestamp_type=batch.timestamp_type,
                    key=record.key,
                    value=record.value,
                    headers=tuple(record.headers),
                    producer_id=batch.producer_id if has_producer else None,
                    producer_epoch=batch.producer_epoch if has_producer else None,
                    sequence=(batch.base_sequence + delta) % 2**31 if has_sequence else None,
                    is_transactional=batch.is_transactional,
                    control_type=struct.unpack(">hh", record.key)[1] if batch.is_control_batch else None,
                )
            )
    return rows


@st.composite
def stored_rows(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    offset = draw(st.integers(0, 2**40))
    for record in draw(st.lists(sent_records, min_size=1, max_size=15)):
        producer_id = draw(st.sampled_from([None, 1, 1, 1, 2]))
        row = Row(
            offset=offset,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp_type=draw(st.sampled_from([0, 0, 0, 1])),
            is_transactional=draw(st.sampled_from([True, True, True, False])),
        )
        if producer_id is not None:
            sequence = draw(st.sampled_from([offset % 2**31, offset % 2**31, 2**31 - 1, 0]))
            row = replace(row, producer_id=producer_id, producer_epoch=draw(st.integers(0, 1)), sequence=sequence)
            if draw(st.integers(0, 4)) == 0:
                kind = draw(st.integers(0, 1))
                row = replace(row, sequence=None, control_type=kind, key=struct.pack(">hh", 0, kind))
        rows.append(row)
        offset += draw(st.sampled_from([1, 1, 1, 2, 100, 2**31 - 1, 2**31, 2**33]))
    return rows


def stored(rows: list[Row]) -> ResultRows:
    return ResultRows(
        message_rows(
            [
                (
                    row.offset,
                    row.timestamp_ms,
                    row.timestamp_type,
                    row.key,
                    row.value,
                    [name for name, _ in row.headers] or None,
                    [value for _, value in row.headers] or None,
                    row.producer_id,
                    row.producer_epoch,
                    row.sequence,
                    row.is_transactional,
                    row.control_type,
                )
                for row in rows
            ]
        )
    )


@given(rows=stored_rows())
def test_rows_come_back_as_they_were(rows: list[Row]) -> None:
    found = stored(rows)
    assert rows_read_back(transcoder.implementation.encode_rows(found, leader_epoch=4)) == rows
    assert found.next_offset == rows[-1].offset + 1


@given(rows=stored_rows(), leader_epoch=st.integers(0, 2**31 - 1))
def test_all_transcoders_make_the_same_batches_of_rows(rows: list[Row], leader_epoch: int) -> None:
    found = stored(rows)
    expected = encode_rows(row_range(rows), leader_epoch=leader_epoch)
    assert transcoder.implementation.encode_rows(found, leader_epoch=leader_epoch) == expected


@pytest.mark.parametrize(
    ("row", "headers"),
    [
        (stored_row(header_names=[], header_values=[]), []),
        (stored_row(header_names=[], header_values=None), []),
        (stored_row(header_names=[None, "b"], header_values=[b"1", None]), [("", b"1"), ("b", None)]),
    ],
)
def test_headers_that_only_sql_can_write_are_read_too(
    row: tuple[object, ...], headers: list[tuple[str, bytes | None]]
) -> None:
    [(_, [record])] = read_back(transcoder.implementation.encode_rows(ResultRows(message_rows([row])), leader_epoch=4))
    assert list(record.headers) == headers


def test_times_between_milliseconds_are_those_of_the_millisecond_they_are_in() -> None:
    rows = [
        stored_row(offset=7 + place, sequence=3 + place, timestamp=struct.pack(">q", microseconds))
        for place, microseconds in enumerate((1_999, 2_000, -1, -1_000, -1_001))
    ]
    [(_, records)] = read_back(transcoder.implementation.encode_rows(ResultRows(message_rows(rows)), leader_epoch=4))
    millennium_ms = 946_684_800_000
    assert [record.timestamp - millennium_ms for record in records] == [1, 2, -1, -1, -2]


@given(record_lists, st.booleans())
def test_what_was_written_as_rows_is_served_from_them(records: list[Sent], is_transactional: bool) -> None:
    batch = decode_produced(build(records, producer=(5, 6, 2**31 - 2), is_transactional=is_transactional), LIMITS)
    rows = [
        Row(
            offset=row["offset"],
            timestamp_ms=row["timestamp"],
            key=row["key"],
            value=row["value"],
            headers=tuple(zip(row["header_names"] or (), row["header_values"] or (), strict=True)),
            producer_id=row["producer_id"],
            producer_epoch=row["producer_epoch"],
            sequence=row["sequence"],
            is_transactional=row["is_transactional"],
        )
        for row in parse_copy(copy_rows(batch, topic_id=1, partition=0, base_offset=10, log_append_time_ms=None))
    ]
    assert rows_read_back(transcoder.implementation.encode_rows(stored(rows), leader_epoch=4)) == rows


def batch_offsets(rows: list[Row]) -> list[list[int]]:
    data = transcoder.implementation.encode_rows(stored(rows), leader_epoch=4)
    return [[record.offset for record in records] for _, records in read_back(data)]


def test_no_rows_are_no_batch() -> None:
    assert transcoder.implementation.encode_rows(stored([]), leader_epoch=4) == b""


def test_rows_of_one_producer_are_one_batch() -> None:
    rows = [Row(i, producer_id=1, producer_epoch=0, sequence=i + 5) for i in range(10)]
    assert batch_offsets(rows) == [list(range(10))]


def test_gaps_that_compaction_left_stay_in_one_batch() -> None:
    rows = [Row(i, producer_id=1, producer_epoch=0, sequence=i) for i in (3, 4, 9, 20)]
    assert batch_offsets(rows) == [[3, 4, 9, 20]]


def test_sequences_that_wrap_stay_in_one_batch() -> None:
    rows = [Row(i, producer_id=1, producer_epoch=0, sequence=(2**31 - 2 + i) % 2**31) for i in range(4)]
    assert batch_offsets(rows) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(Row(1, producer_id=2, producer_epoch=0, sequence=1), id="another producer"),
        pytest.param(Row(1, producer_id=1, producer_epoch=1, sequence=1), id="another epoch"),
        pytest.param(Row(1, producer_id=1, producer_epoch=0, sequence=5), id="a sequence that does not follow"),
        pytest.param(Row(1), id="no producer"),
        pytest.param(Row(1, producer_id=1, producer_epoch=0, sequence=1, is_transactional=True), id="in a transaction"),
        pytest.param(
            Row(1, producer_id=1, producer_epoch=0, sequence=1, timestamp_type=1),
            id="another kind of timestamp",
        ),
        pytest.param(
            Row(1, producer_id=1, producer_epoch=0, control_type=1, key=b"\0\0\0\1"),
            id="a transaction marker",
        ),
        pytest.param(Row(2**31, producer_id=1, producer_epoch=0, sequence=0), id="too far away"),
    ],
)
def test_a_new_batch_starts_where_something_changes(second: Row) -> None:
    first = Row(0, producer_id=1, producer_epoch=0, sequence=0)
    assert batch_offsets([first, second]) == [[0], [second.offset]]


def test_log_append_times_share_a_batch_only_when_equal() -> None:
    rows = [Row(i, timestamp_ms=NOW_MS + (i > 1), timestamp_type=1) for i in range(4)]
    assert batch_offsets(rows) == [[0, 1], [2, 3]]


def test_each_marker_is_alone_in_its_batch() -> None:
    marker = Row(0, producer_id=1, producer_epoch=0, control_type=1, key=b"\0\0\0\1", is_transactional=True)
    assert batch_offsets([marker, replace(marker, offset=1)]) == [[0], [1]]
