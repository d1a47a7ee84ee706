"""Kafka's framing: a four-byte length, then that many bytes. Bytes in, frames out."""

from __future__ import annotations

import struct

__all__ = ["LENGTH_BYTES", "FrameReader", "MalformedFrame", "frame"]

LENGTH_BYTES = 4


class MalformedFrame(Exception):
    """The peer does not speak Kafka's protocol, or sends more than it may."""


class FrameReader:
    """Cuts a stream into frames. The length is judged before memory is taken for the frame."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._length = b""  # of the next frame, as far as it has arrived
        self._parts: list[bytes] = []
        self._missing_bytes = 0

    @property
    def is_inside_a_frame(self) -> bool:
        return self._missing_bytes > 0 or bool(self._length)

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived; return the frames it completes, without their length."""
        frames, position = [], 0
        while position < len(data):
            if not self._missing_bytes:
                start = position
                position += LENGTH_BYTES - len(self._length)
                self._length += data[start:position]
                if len(self._length) < LENGTH_BYTES:
                    break
                self._missing_bytes = self._announced()
                self._length = b""
            part = data[position : position + self._missing_bytes]
            position += self._missing_bytes
            self._missing_bytes -= len(part)
            if self._missing_bytes:
                self._parts.append(part)
            elif self._parts:
                frames.append(b"".join((*self._parts, part)))
                self._parts = []
            else:
                frames.append(part)
        return frames

    def _announced(self) -> int:
        (size,) = struct.unpack(">i", self._length)
        if not 0 < size <= self._max_bytes:
            raise MalformedFrame(f"a frame of {size} bytes; 1 to {self._max_bytes} are allowed")
        return int(size)


def frame(*parts: bytes) -> bytes:
    """One frame made of `parts`."""
    return b"".join((struct.pack(">i", sum(map(len, parts))), *parts))
