"""What is checked of a request before kio sees it: lengths, counts, tags.

The gravest cases end a process that believes them, so that they are tried here, where kio is not called.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from kio.index import load_request_schema

from gateway.protocol.scanning import MAX_ELEMENTS, OutOfBounds, scan_request

METADATA, FETCH, DESCRIBE_TOPIC_PARTITIONS = 3, 1, 75
CLIENT = struct.pack(">h", 1) + b"c"


def head(api_key: int, version: int) -> bytes:
    return struct.pack(">hhi", api_key, version, 1)


def varint(value: int) -> bytes:
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def metadata_v1(rest: bytes) -> bytes:
    return head(METADATA, 1) + CLIENT + rest


def metadata_v9(topics: bytes, *, tags: bytes = b"\0", header_tags: bytes = b"\0") -> bytes:
    return head(METADATA, 9) + CLIENT + header_tags + topics + bytes(3) + tags


def scan(frame: bytes) -> bytes:
    api_key, version = struct.unpack_from(">hh", frame)
    return scan_request(load_request_schema(api_key, version), frame)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(metadata_v1(struct.pack(">i", 2**31 - 1)), id="array of 2^31-1"),
        pytest.param(metadata_v1(struct.pack(">i", -2)), id="array of -2"),
        pytest.param(metadata_v1(struct.pack(">i", 2)), id="array of 2 in no bytes"),
        pytest.param(metadata_v1(struct.pack(">ih", 1, 2**15 - 1)), id="string beyond the end"),
        pytest.param(metadata_v1(struct.pack(">ih", 1, -2)), id="string of -2"),
        pytest.param(metadata_v1(b"\0\0"), id="ends inside a number"),
        pytest.param(head(METADATA, 1) + struct.pack(">h", 500) + b"c", id="client id beyond the end"),
        pytest.param(head(METADATA, 1) + struct.pack(">h", -9) + bytes(4), id="client id of -9"),
        pytest.param(head(METADATA, 1), id="header only"),
        pytest.param(metadata_v9(varint(2**32 - 1)), id="compact array of 2^32-2"),
        pytest.param(metadata_v9(varint(2**31 - 1)), id="compact array of 2^31-2"),
        pytest.param(metadata_v9(b"\xff" * 4 + b"\x7f"), id="varint of more than 32 bits"),
        pytest.param(metadata_v9(b"\x80" * 12 + b"\0"), id="varint of 13 bytes"),
        pytest.param(metadata_v9(varint(2) + varint(2**31 - 1)), id="compact string beyond the end"),
        pytest.param(metadata_v9(b"\1", tags=varint(2**31 - 1)), id="2^31-1 tags"),
        pytest.param(metadata_v9(b"\1", header_tags=varint(2**31 - 1)), id="2^31-1 tags in the header"),
        pytest.param(metadata_v9(b"\1", tags=b"\1\5" + varint(2**31 - 1)), id="tag of 2^31-1 bytes"),
        pytest.param(metadata_v9(b"\1", tags=b"\2\5\1x\5\1y"), id="a tag twice"),
        pytest.param(metadata_v9(b"\1", tags=b"\2\5\1x\4\1y"), id="tags in descending order"),
        pytest.param(
            metadata_v1(struct.pack(">i", MAX_ELEMENTS + 1) + bytes(2 * MAX_ELEMENTS + 2)),
            id="more entries than a request may have",
        ),
    ],
)
def test_what_does_not_fit_is_refused_without_taking_memory(frame: bytes) -> None:
    load_request_schema(METADATA, 1)
    load_request_schema(METADATA, 9)
    tracemalloc.start()
    try:
        with pytest.raises(OutOfBounds):
            scan(frame)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_as_many_entries_as_a_request_may_have_are_taken() -> None:
    frame = metadata_v1(struct.pack(">i", MAX_ELEMENTS) + bytes(2 * MAX_ELEMENTS))
    assert scan(frame) is frame


def test_a_request_without_unknown_tags_is_not_copied() -> None:
    frame = metadata_v9(varint(2) + varint(2) + b"t" + b"\0")
    assert scan(frame) is frame


def test_unknown_tags_are_cut_out_wherever_they_are() -> None:
    """KIP-482: a newer client may send tagged fields that this version has not heard of."""
    topic = varint(2) + b"t"
    with_tags = metadata_v9(varint(2) + topic + b"\1\x07\3abc", tags=b"\2\0\1x\x64\2yz", header_tags=b"\1\x09\0")
    assert scan(with_tags) == metadata_v9(varint(2) + topic + b"\0")


def test_known_tags_are_kept_and_unknown_ones_inside_them_cut_out() -> None:
    def fetch(tags: bytes) -> bytes:
        body = struct.pack(">iiibii", 1, 1, 1, 0, 0, -1) + b"\1\1\1"
        return head(FETCH, 17) + CLIENT + b"\0" + body + tags

    replica = struct.pack(">iq", -1, -1)
    cluster = b"\0\3\3ab"  # tag 0, three bytes: the string "ab"
    sent = fetch(b"\3" + cluster + b"\1\x10" + replica + b"\1\5\1x" + b"\x09\2no")
    assert scan(sent) == fetch(b"\2" + cluster + b"\1\x0d" + replica + b"\0")


def test_a_known_tag_must_be_as_long_as_it_says() -> None:
    body = struct.pack(">iiibii", 1, 1, 1, 0, 0, -1) + b"\1\1\1"
    with pytest.raises(OutOfBounds, match="tag 0 is not 5 bytes long"):
        scan(head(FETCH, 17) + CLIENT + b"\0" + body + b"\1\0\5\3ab\0\0")


@pytest.mark.parametrize(("marker", "is_allowed"), [(b"\xff", True), (b"\0", False), (b"\2", False)])
def test_a_structure_that_may_be_null_says_so_with_one_byte(marker: bytes, is_allowed: bool) -> None:
    frame = head(DESCRIBE_TOPIC_PARTITIONS, 0) + CLIENT + b"\0" + b"\1" + struct.pack(">i", 10) + marker + b"\0"
    if is_allowed:
        assert scan(frame) is frame
    else:
        with pytest.raises(OutOfBounds, match="a structure is announced by"):
            scan(frame)
