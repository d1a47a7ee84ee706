"""The body of a Produce response in which every batch was written: what nearly all of them are.

kio makes an object per field and a call per number; a response about six partitions took longer than judging their
batches. Anything else, an error above all, is kio's as ever.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple
from uuid import UUID

from gateway.protocol.produce_requests import FIRST_FLEXIBLE_VERSION

__all__ = ["WrittenBatch", "encode_written"]

FIRST_VERSION_WITH_LOG_START = 5
FIRST_VERSION_WITH_RECORD_ERRORS = 8
NO_THROTTLE = bytes(4)
NO_TAGS = b"\0"


class WrittenBatch(NamedTuple):
    """Where a batch is now."""

    partition: int
    base_offset: int
    log_append_time_ms: int
    """-1 unless the log set it."""
    log_start_offset: int


def encode_written(topics: Iterable[tuple[str | UUID, Sequence[WrittenBatch]]], *, version: int) -> bytes:
    """Topics by name, or by id from version 13 on, each with its batches."""
    is_flexible = version >= FIRST_FLEXIBLE_VERSION
    count = _compact_count if is_flexible else _count
    tags = NO_TAGS if is_flexible else b""
    pack, fields, rest = _partition(version)
    parts: list[bytes] = []
    topic_count = 0
    for name, batches in topics:
        topic_count += 1
        if isinstance(name, UUID):
            parts.append(name.bytes)
        else:
            encoded = name.encode()
            parts += (count(len(encoded)) if is_flexible else struct.pack(">h", len(encoded)), encoded)
        parts.append(count(len(batches)))
        for index, *where in batches:
            parts += (pack(index, 0, *where[:fields]), rest)
        parts.append(tags)
    return b"".join((count(topic_count), *parts, NO_THROTTLE, tags))


@cache
def _partition(version: int) -> tuple[Callable[..., bytes], int, bytes]:
    """How a partition, its error and its numbers are written, how many of those there are, and what follows: no record
    errors, no message, no tags."""
    if version < FIRST_VERSION_WITH_LOG_START:
        return struct.Struct(">ihqq").pack, 2, b""
    rest = b""
    if version >= FIRST_FLEXIBLE_VERSION:
        rest = _compact_count(0) + b"\0" + NO_TAGS
    elif version >= FIRST_VERSION_WITH_RECORD_ERRORS:
        rest = struct.pack(">ih", 0, -1)
    return struct.Struct(">ihqqq").pack, 3, rest


def _count(number: int) -> bytes:
    return struct.pack(">i", number)


def _compact_count(number: int) -> bytes:
    """One more than the number, as an unsigned varint; 0 is null."""
    number += 1
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
