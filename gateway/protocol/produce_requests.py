"""Produce requests as nearly all of them are: a flexible version, few entries, nothing tagged.

kio makes an object per field, and a walk before it proves every length; for requests of Java's size the two took a
tenth of the gateway's time. Anything unusual, what is wrong above all, is left to them.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

__all__ = [
    "FIRST_FLEXIBLE_VERSION",
    "FIRST_VERSION_WITH_IDS",
    "UsualPartition",
    "UsualRequest",
    "UsualTopic",
    "known_uuid",
    "read_usual",
]

FIRST_FLEXIBLE_VERSION = 9
FIRST_VERSION_WITH_IDS = 13
MAX_ENTRIES = 10_000
UUID_BYTES = 16
HEADER_BYTES = 8
"""Key, version and correlation id."""
NO_ID = bytes(UUID_BYTES)

_CLIENT_ID_LENGTH = struct.Struct(">h")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")


class UsualPartition:
    __slots__ = ("index", "records")

    def __init__(self, index: int, records: bytes) -> None:
        self.index = index
        self.records = records


class UsualTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partition_data: list[UsualPartition]


class UsualRequest(NamedTuple):
    """Its fields are called as kio calls them."""

    transactional_id: str | None
    acks: int
    topic_data: list[UsualTopic]


def read_usual(frame: bytes, *, version: int) -> tuple[str | None, UsualRequest] | None:
    """The client id and the request; None if it is not one of the usual kind, and perhaps none at all."""
    if version >= FIRST_FLEXIBLE_VERSION:
        with suppress(_Unusual, IndexError, struct.error, UnicodeDecodeError):
            return _read(frame, has_ids=version >= FIRST_VERSION_WITH_IDS)
    return None


class _Unusual(Exception):
    pass


def _read(frame: bytes, *, has_ids: bool) -> tuple[str | None, UsualRequest]:
    (length,) = _CLIENT_ID_LENGTH.unpack_from(frame, HEADER_BYTES)
    position = HEADER_BYTES + _CLIENT_ID_LENGTH.size
    client_id = None
    if length < -1:
        raise _Unusual
    if length >= 0:
        client_id = frame[position : position + length].decode()
        position += length
    position = _after_no_tags(frame, position)
    transactional_id, position = _text(frame, position)
    acks, _timeout = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topic_count, position = _count(frame, position + _ACKS_AND_TIMEOUT.size)
    topics = []
    entries = topic_count
    for _ in range(topic_count):
        name = topic_id = None
        if has_ids:
            topic_id = known_uuid(frame[position : position + UUID_BYTES])
            if topic_id is None:
                raise _Unusual
            position += UUID_BYTES
        else:
            name, position = _text(frame, position)
            if name is None:
                raise _Unusual
        partition_count, position = _count(frame, position)
        entries += partition_count
        if entries > MAX_ENTRIES:
            raise _Unusual
        partitions = []
        for _ in range(partition_count):
            (index,) = _INDEX.unpack_from(frame, position)
            size, position = _count(frame, position + _INDEX.size)
            end = position + size
            if frame[end]:  # tags; were the records longer than the frame, there would be no such byte
                raise _Unusual
            partitions.append(UsualPartition(index, frame[position:end]))
            position = end + 1
        topics.append(UsualTopic(name, topic_id, partitions))
        position = _after_no_tags(frame, position)
    _after_no_tags(frame, position)
    return client_id, UsualRequest(transactional_id, acks, topics)


def _after_no_tags(frame: bytes, position: int) -> int:
    if frame[position]:
        raise _Unusual
    return position + 1


def _count(frame: bytes, position: int) -> tuple[int, int]:
    """A length or count, and where it ends; null is unusual."""
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 21:  # 256 MiB and more
            raise _Unusual
    if not value:
        raise _Unusual
    return value - 1, position


def _text(frame: bytes, position: int) -> tuple[str | None, int]:
    if not frame[position]:
        return None, position + 1
    size, position = _count(frame, position)
    return frame[position : position + size].decode(), position + size


@lru_cache(maxsize=1024)
def known_uuid(data: bytes) -> UUID | None:
    """None for what is not a topic's id."""
    return UUID(bytes=data) if len(data) == UUID_BYTES and data != NO_ID else None
