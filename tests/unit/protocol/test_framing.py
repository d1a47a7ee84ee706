"""Frames: bytes in at any cut, frames out; a length is judged before its bytes are waited for."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.framing import FrameReader, MalformedFrame, frame

MAX_BYTES = 1000


def on_the_wire(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.data())
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(on_the_wire, contents))
    reader = FrameReader(max_bytes=MAX_BYTES)
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found == contents
    assert not reader.is_inside_a_frame


def test_a_frame_that_has_begun_is_known() -> None:
    reader = FrameReader(max_bytes=MAX_BYTES)
    assert not reader.is_inside_a_frame
    assert reader.feed(b"\0") == []
    assert reader.is_inside_a_frame
    assert reader.feed(b"\0\0\2a") == []
    assert reader.is_inside_a_frame
    assert reader.feed(b"b\0\0") == [b"ab"]
    assert reader.is_inside_a_frame


@pytest.mark.parametrize("size", [0, -1, -(2**31), MAX_BYTES + 1, 2**31 - 1])
def test_a_length_that_is_not_allowed_is_refused_before_its_bytes_come(size: int) -> None:
    reader = FrameReader(max_bytes=MAX_BYTES)
    with pytest.raises(MalformedFrame, match=f"a frame of {size} bytes"):
        reader.feed(struct.pack(">i", size))


def test_a_bad_length_after_a_good_frame_is_refused() -> None:
    reader = FrameReader(max_bytes=MAX_BYTES)
    with pytest.raises(MalformedFrame):
        reader.feed(on_the_wire(b"good") + struct.pack(">i", -1))


def test_the_largest_frame_allowed_is_taken() -> None:
    content = bytes(MAX_BYTES)
    assert FrameReader(max_bytes=MAX_BYTES).feed(on_the_wire(content)) == [content]


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_a_written_frame_has_its_parts_after_their_length(parts: list[bytes]) -> None:
    assert frame(*parts) == on_the_wire(b"".join(parts))
