"""Decompression: every codec's content comes back, and nothing takes more memory than allowed."""

from __future__ import annotations

import contextlib
import gzip
import struct
import subprocess
import sys
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRecord, KafkaError, MessageTooLarge, UnsupportedCompressionType
from gateway.protocol import compression
from gateway.protocol.compression import GZIP, LZ4, SNAPPY, ZSTD

MIB = 1 << 20


def lz4_frame(content: bytes, *, linked: bool = False, checksum: bool = False) -> bytes:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=linked)
    compressor.compress(content)
    return bytes(compressor.finish())


def xerial(*blocks: bytes) -> bytes:
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw_snappy(content: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(content))


def zstd_frame(content: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(content))


def stored_zstd_frame(content: bytes, *, window_log: int) -> bytes:
    """A frame with one stored block that asks for a window of 2**window_log bytes."""
    block_header = struct.pack("<I", len(content) << 3 | 1)[:3]
    return struct.pack("<IBB", 0xFD2FB528, 0, (window_log - 10) << 3) + block_header + content


def compress(codec: int, content: bytes) -> bytes:
    if codec == GZIP:
        return gzip.compress(content)
    if codec == SNAPPY:
        return raw_snappy(content)
    return lz4_frame(content) if codec == LZ4 else zstd_frame(content)


def decompress(data: bytes, codec: int, max_bytes: int = MIB) -> bytes:
    return bytes(compression.decompress(memoryview(data), codec=codec, max_bytes=max_bytes))


codecs = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=["gzip", "snappy", "lz4", "zstd"])


@given(
    codec=st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]),
    content=st.binary(max_size=5000),
    times=st.integers(1, 40),
)
def test_content_comes_back(codec: int, content: bytes, times: int) -> None:
    assert decompress(compress(codec, content * times), codec) == content * times


@given(parts=st.lists(st.binary(max_size=300), max_size=8))
def test_xerial_blocks_are_joined(parts: list[bytes]) -> None:
    assert decompress(xerial(*map(raw_snappy, parts)), SNAPPY) == b"".join(parts)


@codecs
def test_content_of_exactly_the_limit_is_allowed_and_one_byte_more_is_not(codec: int) -> None:
    data = compress(codec, b"abcdefghij" * 1000)
    assert len(decompress(data, codec, max_bytes=10_000)) == 10_000
    with pytest.raises(MessageTooLarge):
        decompress(data, codec, max_bytes=9_999)


def test_xerial_blocks_together_are_under_the_limit() -> None:
    data = xerial(*[raw_snappy(b"x" * 1000)] * 10)
    assert len(decompress(data, SNAPPY, max_bytes=10_000)) == 10_000
    with pytest.raises(MessageTooLarge):
        decompress(data, SNAPPY, max_bytes=9_999)


@codecs
def test_a_stream_that_ends_early_is_refused(codec: int) -> None:
    data = compress(codec, bytes(range(256)) * 10)
    for kept in (0, 1, 5, len(data) // 2, len(data) - 1):
        with pytest.raises(InvalidRecord):
            decompress(data[:kept], codec)


@codecs
@pytest.mark.parametrize("garbage", [b"\0", b"garbage", bytes(100)], ids=["one byte", "text", "zeros"])
def test_bytes_after_the_stream_are_refused(codec: int, garbage: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decompress(compress(codec, b"content") + garbage, codec)


@codecs
def test_what_is_not_compressed_is_refused(codec: int) -> None:
    with pytest.raises(InvalidRecord):
        decompress(b"this is plain text, not compressed", codec)


@pytest.mark.parametrize("codec", [GZIP, ZSTD], ids=["gzip", "zstd"])
def test_joined_streams_are_read_as_java_reads_them(codec: int) -> None:
    assert decompress(compress(codec, b"one ") + compress(codec, b"two"), codec) == b"one two"
    with pytest.raises(MessageTooLarge):
        decompress(compress(codec, bytes(600)) * 2, codec, max_bytes=1000)


def test_a_second_lz4_frame_is_refused_because_java_would_not_see_it() -> None:
    with pytest.raises(InvalidRecord, match="lz4 frame"):
        decompress(lz4_frame(b"one") + lz4_frame(b"two"), LZ4)


def test_linked_lz4_blocks_are_refused_because_java_cannot_read_them() -> None:
    with pytest.raises(InvalidRecord, match="independent"):
        decompress(lz4_frame(b"content", linked=True), LZ4)


def test_lz4_with_a_content_checksum_is_read_and_the_checksum_verified() -> None:
    data = lz4_frame(b"content" * 100, checksum=True)
    assert decompress(data, LZ4) == b"content" * 100
    with pytest.raises(InvalidRecord):
        decompress(data[:-1] + bytes([data[-1] ^ 1]), LZ4)


@pytest.mark.parametrize("length", [0, -1, 2**31 - 1, 100])
def test_a_xerial_block_that_lies_about_its_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidRecord, match="claims"):
        decompress(xerial() + struct.pack(">i", length) + raw_snappy(b"abc"), SNAPPY)


def test_a_xerial_stream_cut_inside_header_or_length_is_refused() -> None:
    for data in (xerial()[:12], xerial() + b"\0\0"):
        with pytest.raises(InvalidRecord, match="ends inside"):
            decompress(data, SNAPPY)


def test_a_snappy_block_that_claims_four_gigabytes_is_too_large() -> None:
    claim = b"\xff\xff\xff\xff\x0f"
    for data in (claim, xerial(claim)):
        with pytest.raises(MessageTooLarge):
            decompress(data, SNAPPY)


def test_a_zstd_window_of_128_mib_is_allowed_and_more_is_refused() -> None:
    assert decompress(stored_zstd_frame(b"abc", window_log=27), ZSTD) == b"abc"
    for window_log in (28, 31, 41):
        with pytest.raises(InvalidRecord):
            decompress(stored_zstd_frame(b"abc", window_log=window_log), ZSTD)


@pytest.mark.parametrize("codec", [0, 5, 6, 7, -1])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionType):
        decompress(b"", codec)


@given(
    codec=st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]),
    content=st.binary(max_size=200),
    cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
)
def test_damage_comes_out_as_a_refusal_or_as_bytes(codec: int, content: bytes, cuts: list[tuple[int, int]]) -> None:
    data = bytearray(compress(codec, content))
    for position, byte in cuts:
        data[position % len(data)] = byte
    with contextlib.suppress(KafkaError):
        assert len(decompress(bytes(data), codec, max_bytes=1000)) <= 1000


BOMB = """
import resource, sys
import cramjam
from gateway.errors import MessageTooLarge
from gateway.protocol import compression

codec, cap_bytes = int(sys.argv[1]), int(sys.argv[2])
data = sys.stdin.buffer.read()
warm = bytes(cramjam.zstd.compress(b"warm"))
compression.decompress(memoryview(warm), codec=compression.ZSTD, max_bytes=100)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    compression.decompress(memoryview(data), codec=codec, max_bytes=cap_bytes)
except MessageTooLarge:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@codecs
def test_a_bomb_takes_less_than_twice_the_limit(codec: int) -> None:
    cap_bytes = 16 * MIB
    if codec == GZIP:
        compressor = zlib.compressobj(9, wbits=31)
        bomb = b"".join(compressor.compress(bytes(MIB)) for _ in range(512)) + compressor.flush()
    elif codec == SNAPPY:
        bomb = xerial(*[raw_snappy(bytes(MIB))] * 512)
    elif codec == LZ4:
        bomb = lz4_frame(bytes(512 * MIB))
    else:
        bomb = zstd_frame(bytes(512 * MIB))
    grown = subprocess.run(
        [sys.executable, "-c", BOMB, str(codec), str(cap_bytes)], input=bomb, capture_output=True, check=True
    ).stdout
    assert int(grown) * 1024 < 2 * cap_bytes
