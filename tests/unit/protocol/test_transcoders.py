"""The compiled transcoder and Python's: the same rows, or the same refusal in the same words, whatever the bytes."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import KafkaError
from gateway.protocol import plain_transcoder, transcoder
from tests.support.transcoders import compiled_only

NOW_MS = 1_790_000_000_000
TEMPLATE = bytes(range(60))


def varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def nullable(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record(
    index: int,
    *,
    timestamp_delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"value",
    headers: list[tuple[bytes, bytes | None]] | None = None,
) -> bytes:
    pairs = headers or []
    body = b"".join(
        (
            b"\0",
            varint(timestamp_delta),
            varint(index),
            nullable(key),
            nullable(value),
            varint(len(pairs)),
            *(nullable(name) + nullable(content) for name, content in pairs),
        )
    )
    return varint(len(body)) + body


def outcome(implementation: Any, records: bytes, **arguments: int) -> object:
    """The rows and what is known of the records, or the refusal."""
    options = {"base_timestamp": NOW_MS, "max_elements": 50} | arguments
    try:
        scan = implementation.scan_records(memoryview(records), **options)
    except KafkaError as error:
        return type(error), error.message
    rows = [
        implementation.write_rows(
            scan,
            TEMPLATE,
            offset_at=2,
            timestamp_at=14,
            sequence_at=sequence_at,
            base_offset=2**40,
            base_sequence=2**31 - 2,
            append_time_ms=append_time_ms,
        )
        for sequence_at, append_time_ms in ((-1, None), (40, NOW_MS))
    ]
    return scan.min_timestamp, scan.max_timestamp, scan.lacks_key, rows


def assert_agreement(records: bytes, **arguments: int) -> object:
    expected = outcome(plain_transcoder, records, **arguments)
    assert outcome(transcoder.implementation, records, **arguments) == expected
    return expected


contents = st.none() | st.binary(max_size=30)
timestamp_deltas = st.sampled_from([0, 1, -1, -NOW_MS - 1, -NOW_MS - 2, 2**63 - 1, -(2**63), 2**53]) | st.integers(
    -(2**40), 2**40
)
header_keys = st.text(max_size=8).map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=8)
record_options = st.fixed_dictionaries(
    {},
    optional={
        "timestamp_delta": timestamp_deltas,
        "key": contents,
        "value": contents,
        "headers": st.lists(st.tuples(header_keys, contents), max_size=3),
    },
)
changes = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])), max_size=3
)


@compiled_only
@given(st.lists(record_options, min_size=1, max_size=5), changes, st.integers(-2, 2), st.integers(-1, 1))
def test_both_read_alike_what_is_right_and_what_is_damaged(
    options: list[dict[str, Any]], damage: list[tuple[int, int]], resize: int, miscount: int
) -> None:
    data = bytearray(b"".join(record(index, **each) for index, each in enumerate(options)))
    for position, byte in damage:
        data[position % len(data)] = byte
    data = data[:resize] if resize < 0 else data + bytes(resize)
    assert_agreement(bytes(data), count=max(1, len(options) + miscount))


@compiled_only
@given(st.binary(max_size=60), st.integers(1, 5), st.sampled_from([0, -1, NOW_MS, 2**63 - 1, -(2**63)]))
def test_both_read_alike_what_means_nothing(data: bytes, count: int, base_timestamp: int) -> None:
    assert_agreement(data, count=count, base_timestamp=base_timestamp)


@compiled_only
@given(header_keys | st.binary(max_size=6))
def test_both_know_the_same_utf8(name: bytes) -> None:
    assert_agreement(record(0, headers=[(name, b"")]), count=1)


@compiled_only
def test_both_agree_about_every_short_sequence_of_bytes_in_a_header_key() -> None:
    """Every lead byte with continuation bytes at and beyond each end of what may follow."""
    ends = (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    for lead in range(0x80, 0x100):
        for second in ends:
            for rest in (b"", b"\x80", b"\x80\x80", b"\xbf\x7f", b"\x7f"):
                assert_agreement(record(0, headers=[(bytes([lead, second]) + rest, None)]), count=1)


@compiled_only
@pytest.mark.parametrize("bits", [32, 64])
def test_both_agree_where_numbers_end(bits: int) -> None:
    """Numbers of the last bits that fit, and one more, with and without an end."""
    longest = (bits + 6) // 7
    for last in range(256):
        number = bytes([0x80] * (longest - 1) + [last])
        body = number + b"\0\0\1\1\0" if bits == 64 else b"\0\0" + number
        assert_agreement(varint(1 + len(body)) + b"\0" + body + b"\1\1\0", count=1)


@compiled_only
def test_both_agree_about_large_batches() -> None:
    """Those are read and written without the interpreter's lock."""
    chance = random.Random(5)
    records = b"".join(
        record(index, key=chance.randbytes(index % 7) or None, value=chance.randbytes(200), headers=[(b"h", None)])
        for index in range(1000)
    )
    found = assert_agreement(records, count=1000, max_elements=10_000)
    assert isinstance(found, tuple)
    assert len(found) == 4
    assert_agreement(records[:-1], count=1000, max_elements=10_000)


@compiled_only
def test_a_place_outside_the_template_is_refused() -> None:
    """What the gateway itself gets wrong must not write beyond its memory."""
    scan = transcoder.implementation.scan_records(record(0), count=1, base_timestamp=0, max_elements=9)
    places = {"offset_at": 0, "timestamp_at": 8, "sequence_at": 16}
    for name, place in (("offset_at", 13), ("timestamp_at", -1), ("timestamp_at", 2**40), ("sequence_at", 17)):
        with pytest.raises(ValueError, match="outside the template"):
            transcoder.implementation.write_rows(
                scan, bytes(20), **(places | {name: place}), base_offset=0, base_sequence=0, append_time_ms=None
            )


@compiled_only
def test_records_that_change_after_they_were_read_are_noticed() -> None:
    """No caller of ours changes them; if one did, nothing beyond the rows' memory would be written."""
    data = bytearray(record(0, value=bytes(10)) + record(1))
    scan = transcoder.implementation.scan_records(memoryview(data), count=2, base_timestamp=0, max_elements=9)
    struct.pack_into("B", data, 5, 2 * 9)
    with pytest.raises((RuntimeError, KafkaError)):
        transcoder.implementation.write_rows(
            scan,
            bytes(20),
            offset_at=0,
            timestamp_at=8,
            sequence_at=-1,
            base_offset=0,
            base_sequence=0,
            append_time_ms=None,
        )


some_headers = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"ab", b""]), st.none() | st.binary(max_size=3)), max_size=4
)


@compiled_only
@given(st.lists(some_headers, min_size=1, max_size=8), st.data())
def test_headers_are_found_and_records_selected_alike(
    headers: list[list[tuple[bytes, bytes | None]]], data: st.DataObject
) -> None:
    sent = b"".join(
        record(index, headers=each, timestamp_delta=index % 3 - 1, key=None if index % 2 else b"k")
        for index, each in enumerate(headers)
    )
    places = sorted(data.draw(st.sets(st.integers(0, len(headers) - 1), min_size=1)))
    results = []
    for implementation in (plain_transcoder, transcoder.implementation):
        # The base is chosen so that some records have no timestamp.
        scan: Any = implementation.scan_records(memoryview(sent), count=len(headers), base_timestamp=0, max_elements=99)
        selected: Any = implementation.select_records(scan, places)
        rows = implementation.write_rows(
            selected,
            TEMPLATE,
            offset_at=6,
            timestamp_at=18,
            sequence_at=40,
            base_offset=5,
            base_sequence=2**31 - 2,
            append_time_ms=None,
        )
        found = implementation.find_headers(scan, (b"a", b"b"))
        results.append((found, rows, selected.min_timestamp, selected.max_timestamp, selected.lacks_key))
    assert results[0] == results[1]
    last = [tuple(dict(each).get(name) for name in (b"a", b"b")) for each in headers]
    assert results[0][0] == last
