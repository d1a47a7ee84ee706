"""Decompression of a batch's records, under a cap that holds before memory is taken.

Only what Java, librdkafka and the other clients can all read is accepted, because consumers may be
served the very bytes a producer sent. Pure: no I/O, no clock, no state between calls.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Final

import cramjam

from gateway.errors import InvalidRecord, MessageTooLarge, UnsupportedCompressionType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GZIP", "LZ4", "NONE", "SNAPPY", "ZSTD", "decompress"]

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

_INT32: Final = struct.Struct(">i")
_LITTLE_UINT32: Final = struct.Struct("<I")

# Xerial's framing: a magic, two version numbers, then blocks of raw snappy, each after its length.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_INDEPENDENT_BLOCKS: Final = 0x20
_LZ4_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_STORED_BLOCK: Final = 0x8000_0000

# What cramjam says when its output buffer is full: the one failure that means "too large".
_OUTPUT_FULL: Final = "failed to write whole buffer"


def decompress(data: memoryview, *, codec: int, max_bytes: int) -> memoryview:
    """Return the content of `data`, at most `max_bytes`, or refuse.

    `MessageTooLarge` when it would be more; `InvalidRecord` when the stream is damaged, ends early, goes on
    after its end, or is of a kind that Java clients cannot read.
    """
    if codec not in _DECOMPRESSORS:
        raise UnsupportedCompressionType(f"codec {codec} is none of gzip, snappy, lz4, zstd")
    name, decompress_into = _DECOMPRESSORS[codec]
    # An anonymous map is virtual until written to, so the cap costs nothing until the content earns it.
    scratch = mmap.mmap(-1, max(max_bytes, 1))
    try:
        with memoryview(scratch) as output:
            size_bytes = decompress_into(data, output[:max_bytes])
    except cramjam.DecompressionError as error:
        if _OUTPUT_FULL in str(error):
            raise MessageTooLarge(f"the batch decompresses to more than {max_bytes} bytes") from None
        raise InvalidRecord(f"the {name} data cannot be decompressed: {error}") from None
    if size_bytes == 0:
        return memoryview(b"")
    scratch.resize(size_bytes)
    return memoryview(scratch)


def _gunzip(data: memoryview, output: memoryview) -> int:
    return int(cramjam.gzip.decompress_into(data, output))


def _unsnappy(data: memoryview, output: memoryview) -> int:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnappy_block(data, output)
    end = len(data)
    if end < _XERIAL_HEADER_BYTES:
        raise InvalidRecord("the snappy stream ends inside its header")
    position, written = _XERIAL_HEADER_BYTES, 0
    while position < end:
        if position + 4 > end:
            raise InvalidRecord("the snappy stream ends inside a block's length")
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if not 0 < length <= end - position:
            raise InvalidRecord(f"a snappy block claims {length} bytes, {end - position} are left")
        written += _unsnappy_block(data[position : position + length], output[written:])
        position += length
    return written


def _unsnappy_block(block: memoryview, output: memoryview) -> int:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > len(output):
        raise MessageTooLarge(f"a snappy block of {claimed} bytes is beyond the limit; {len(output)} bytes were left")
    return int(cramjam.snappy.decompress_raw_into(block, output))


def _unlz4(data: memoryview, output: memoryview) -> int:
    _require_one_independent_lz4_frame(data)
    return int(cramjam.lz4.decompress_into(data, output))


def _require_one_independent_lz4_frame(data: memoryview) -> None:
    """Refuse what Java's reader refuses or would not see: linked blocks, whatever follows the first frame."""
    try:
        (magic,) = _LITTLE_UINT32.unpack_from(data, 0)
        flags = data[4]
        if magic != _LZ4_MAGIC or flags >> 6 != 1:
            raise InvalidRecord("not an lz4 frame of version 1")
        if not flags & _LZ4_INDEPENDENT_BLOCKS or flags & 0x03:
            raise InvalidRecord("lz4 blocks must be independent, without a dictionary (KIP-57)")
        position = 15 if flags & _LZ4_CONTENT_SIZE else 7
        block_trailer = 4 if flags & _LZ4_BLOCK_CHECKSUMS else 0
        while True:
            (length,) = _LITTLE_UINT32.unpack_from(data, position)
            position += 4
            if length == 0:
                break
            position += (length & ~_LZ4_STORED_BLOCK) + block_trailer
    except (struct.error, IndexError):
        raise InvalidRecord("the lz4 frame ends early") from None
    if flags & _LZ4_CONTENT_CHECKSUM:
        position += 4
    if position != len(data):
        raise InvalidRecord(f"the lz4 frame is {position} bytes long, {len(data)} were sent")


def _unzstd(data: memoryview, output: memoryview) -> int:
    # The library itself refuses windows above 128 MiB, the most that Kafka's own clients ask for (level 22).
    return int(cramjam.zstd.decompress_into(data, output))


_DECOMPRESSORS: Final[dict[int, tuple[str, Callable[[memoryview, memoryview], int]]]] = {
    GZIP: ("gzip", _gunzip),
    SNAPPY: ("snappy", _unsnappy),
    LZ4: ("lz4", _unlz4),
    ZSTD: ("zstd", _unzstd),
}
