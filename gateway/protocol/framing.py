"""Kafka's framing: a four-byte length, then that many bytes. Bytes in, frames out."""

from __future__ import annotations

import struct

__all__ = ["FrameReader", "MalformedFrame", "frame"]

LENGTH_BYTES = 4


class MalformedFrame(Exception):
    """The peer does not speak Kafka's protocol, or sends more than it may."""


class FrameReader:
    """Cuts a stream into frames. The length is judged before memory is taken for the frame."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = LENGTH_BYTES

    @property
    def is_inside_a_frame(self) -> bool:
        return self._held_bytes > 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived; return the frames it completes, without their length."""
        self._parts.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._wanted_bytes:
            return []
        held = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        frames, position = [], 0
        while True:
            if len(held) - position < LENGTH_BYTES:
                self._wanted_bytes = LENGTH_BYTES
                break
            (size,) = struct.unpack_from(">i", held, position)
            if not 0 < size <= self._max_bytes:
                raise MalformedFrame(f"a frame of {size} bytes; 1 to {self._max_bytes} are allowed")
            end = position + LENGTH_BYTES + size
            if len(held) < end:
                self._wanted_bytes = end - position
                break
            frames.append(held[position + LENGTH_BYTES : end])
            position = end
        rest = held[position:]
        self._parts = [rest] if rest else []
        self._held_bytes = len(rest)
        return frames


def frame(*parts: bytes) -> bytes:
    """One frame made of `parts`."""
    return b"".join((struct.pack(">i", sum(map(len, parts))), *parts))
