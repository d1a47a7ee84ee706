"""What classic consumers tell each other through JoinGroup and SyncGroup: subscriptions and assignments.

A classic group never depends on these bytes: they are shown, and read where classic consumers share a group with
newer ones. Every version of a subscription begins as version 0 does: the version, then the topics.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

__all__ = [
    "CONSUMER",
    "MalformedSubscription",
    "Subscription",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "subscribed_topics",
]

CONSUMER = "consumer"
"""The protocol type of Kafka's consumers; others put what they like into their metadata."""

NEWEST_VERSION = 3
ADDS_OWNED, ADDS_GENERATION, ADDS_RACK = 1, 2, 3

ByTopic: TypeAlias = Mapping[str, Sequence[int]]


class MalformedSubscription(Exception):
    """The bytes are no subscription or assignment of a consumer."""


class Subscription(NamedTuple):
    """What a consumer wants, and from version 1 on what it has."""

    version: int
    topics: tuple[str, ...]
    owned: ByTopic
    rack_id: str | None


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """The topics of a member's subscription; None when these bytes are none."""
    reader = _Reader(metadata)
    try:
        reader.version()
        return reader.texts()
    except MalformedSubscription:
        return None


def decode_subscription(data: bytes) -> Subscription:
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.texts())
    reader.blob()
    owned = reader.partitions() if version >= ADDS_OWNED else {}
    if version >= ADDS_GENERATION:
        reader.number(">i")
    rack_id = reader.nullable_text() if version >= ADDS_RACK else None
    return Subscription(version, topics, owned, rack_id)


def decode_assignment(data: bytes) -> tuple[ByTopic, bytes]:
    """The partitions, and what the assignor added for its own use. No bytes at all stand for no partitions."""
    if not data:
        return {}, b""
    reader = _Reader(data)
    reader.version()
    return reader.partitions(), reader.blob()


def encode_assignment(assigned: ByTopic, *, version: int) -> bytes:
    parts = [struct.pack(">hi", min(version, NEWEST_VERSION), len(assigned))]
    for topic, partitions in sorted(assigned.items()):
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si", len(name), name, len(partitions)))
        parts.append(struct.pack(f">{len(partitions)}i", *sorted(partitions)))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


class _Reader:
    """Reads forward; a length beyond the end is refused before memory is taken for it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def version(self) -> int:
        version = self.number(">h")
        if version < 0:
            raise MalformedSubscription(f"version {version}")
        return min(version, NEWEST_VERSION)  # newer ones only add to the end

    def number(self, kind: str) -> int:
        try:
            (value,) = struct.unpack_from(kind, self._data, self._at)
        except struct.error:
            raise MalformedSubscription("it ends too early") from None
        self._at += struct.calcsize(kind)
        return int(value)

    def count(self, *, least_size: int) -> int:
        count = self.number(">i")
        if not 0 <= count * least_size <= len(self._data) - self._at:
            raise MalformedSubscription(f"{count} entries in {len(self._data)} bytes")
        return count

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.count(least_size=2))]

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise MalformedSubscription("a name is missing")
        return text

    def nullable_text(self) -> str | None:
        size = self.number(">h")
        if size < 0:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise MalformedSubscription("a name is not UTF-8") from None

    def blob(self) -> bytes:
        return self._take(max(self.number(">i"), 0))

    def partitions(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _ in range(self.count(least_size=6)):
            topic = self.text()
            numbers = [self.number(">i") for _ in range(self.count(least_size=4))]
            found.setdefault(topic, []).extend(numbers)
        return found

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise MalformedSubscription("it ends too early")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken
