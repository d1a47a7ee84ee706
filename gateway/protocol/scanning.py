"""Walks a request before kio decodes it, so that no length or count is believed before the bytes are there.

kio takes memory for an array by the count it reads: twenty bytes can ask for 32 GiB, which ends the process.
What is passed here has only lengths that fit, and no more elements than a request may have. And kio fails at
tagged fields that it does not know, which KIP-482 wants ignored: they are cut out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

from gateway.protocol.shapes import entity_of, is_array, is_nullable

__all__ = ["MAX_ELEMENTS", "OutOfBounds", "scan_request"]

MAX_ELEMENTS = 100_000
"""Entries of all arrays of one request together: each becomes an object, however few bytes it takes."""

MAX_VARINT_BYTES = 5
MAX_INT32 = 0x7FFF_FFFF
NULL, PRESENT = 0xFF, 1
"""The byte before a structure that may be null."""

FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}


class OutOfBounds(Exception):
    """A length or count is more than the bytes that follow, or than a request may have."""


class _Cursor:
    """A position in a request that never leaves it."""

    __slots__ = ("cuts", "data", "elements_left", "end", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self.elements_left = MAX_ELEMENTS
        self.cuts: list[tuple[int, int, bytes]] = []  # from, to, what kio shall read instead

    def skip(self, size_bytes: int) -> None:
        self.position += size_bytes
        if self.position > self.end:
            raise OutOfBounds(f"{size_bytes} bytes announced, {self.end - self.position + size_bytes} left")

    def unsigned_varint(self) -> int:
        value, shift, position = 0, 0, self.position
        if position < self.end and (first := self.data[position]) < 0x80:  # nearly all are one byte
            self.position = position + 1
            return first
        for byte in self.data[position : position + MAX_VARINT_BYTES]:
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > MAX_INT32:
                    break
                self.position = position
                return value
            shift += 7
        raise OutOfBounds("a varint does not end or does not fit 31 bits")

    def signed(self, size_bytes: int) -> int:
        start = self.position
        self.skip(size_bytes)
        return int.from_bytes(self.data[start : self.position], "big", signed=True)

    def count(self, elements: int, *, smallest_bytes: int) -> None:
        self.elements_left -= elements
        if self.elements_left < 0:
            raise OutOfBounds(f"more than {MAX_ELEMENTS} entries in one request")
        if elements * smallest_bytes > self.end - self.position:
            raise OutOfBounds(f"{elements} entries announced, {self.end - self.position} bytes left")

    def without_cuts(self, start: int, end: int, *, first_cut: int) -> bytes:
        """The bytes from `start` to `end` after the cuts made inside them, which are thereby done."""
        parts: list[bytes] = []
        for cut_start, cut_end, instead in self.cuts[first_cut:]:
            parts += (self.data[start:cut_start], instead)
            start = cut_end
        del self.cuts[first_cut:]
        return b"".join((*parts, self.data[start:end]))


Step = Callable[[_Cursor], None]
"""Moves a cursor over one part of a request."""


def scan_request(request: type, data: bytes) -> bytes:
    """The request without tagged fields that nobody here knows; OutOfBounds unless every length and count in
    its header and body holds. Bytes after it are ignored, as Kafka does: librdkafka sends some."""
    cursor = _Cursor(data, 8)  # key, version and correlation id, which have been read
    _short_string(cursor)  # the client id has the old form in every version
    if request.__header_schema__.__flexible__:  # type: ignore[attr-defined]
        _tags({})(cursor)
    _entity(request)[0](cursor)
    return cursor.without_cuts(0, cursor.end, first_cut=0) if cursor.cuts else data


@cache
def _entity(entity: type) -> tuple[Step, int]:
    """The step over a structure, and the fewest bytes it can have."""
    is_flexible: bool = entity.__flexible__  # type: ignore[attr-defined]
    steps: list[Step] = []
    tagged: dict[int, Step] = {}
    smallest = run = 0
    for part in dataclasses.fields(entity):
        if "tag" in part.metadata:
            tagged[part.metadata["tag"]] = _field(part, is_flexible=is_flexible)[0]
            continue
        fixed = 0 if is_array(part.type) else FIXED_BYTES.get(part.metadata.get("kafka_type", ""), 0)
        if fixed:
            run += fixed  # neighbours of fixed size are one step
            continue
        if run:
            steps.append(_fixed(run))
            smallest, run = smallest + run, 0
        step, step_smallest = _field(part, is_flexible=is_flexible)
        steps.append(step)
        smallest += step_smallest
    if run:
        steps.append(_fixed(run))
        smallest += run
    if is_flexible:
        steps.append(_tags(tagged))
        smallest += 1

    def scan(cursor: _Cursor) -> None:
        for step in steps:
            step(cursor)

    return scan, smallest


def _field(part: dataclasses.Field[Any], *, is_flexible: bool) -> tuple[Step, int]:
    nested = entity_of(part.type)
    kind = part.metadata.get("kafka_type", "")
    if nested is not None:
        step, smallest = _entity(nested)
        if is_nullable(part.type) and not is_array(part.type):
            step, smallest = _nullable(step), 1
    elif kind == "string":
        step, smallest = (_compact_bytes, 1) if is_flexible else (_short_string, 2)
    elif kind in ("bytes", "records"):
        step, smallest = (_compact_bytes, 1) if is_flexible else (_long_bytes, 4)
    else:
        smallest = FIXED_BYTES[kind]
        step = _fixed(smallest)
    if is_array(part.type):
        return _array(step, smallest, is_flexible=is_flexible), 1 if is_flexible else 4
    return step, smallest


def _fixed(size_bytes: int) -> Step:
    def scan(cursor: _Cursor) -> None:
        cursor.skip(size_bytes)

    return scan


def _short_string(cursor: _Cursor) -> None:
    _skip_nullable(cursor, cursor.signed(2))


def _long_bytes(cursor: _Cursor) -> None:
    _skip_nullable(cursor, cursor.signed(4))


def _compact_bytes(cursor: _Cursor) -> None:
    _skip_nullable(cursor, cursor.unsigned_varint() - 1)


def _skip_nullable(cursor: _Cursor, size_bytes: int) -> None:
    if size_bytes < -1:
        raise OutOfBounds(f"a length of {size_bytes}")
    cursor.skip(max(size_bytes, 0))


def _array(step: Step, smallest_bytes: int, *, is_flexible: bool) -> Step:
    def scan(cursor: _Cursor) -> None:
        elements = cursor.unsigned_varint() - 1 if is_flexible else cursor.signed(4)
        if elements < -1:
            raise OutOfBounds(f"an array of {elements} entries")
        if elements > 0:
            cursor.count(elements, smallest_bytes=smallest_bytes)
            for _ in range(elements):
                step(cursor)

    return scan


def _nullable(step: Step) -> Step:
    def scan(cursor: _Cursor) -> None:
        position = cursor.position
        cursor.skip(1)
        marker = cursor.data[position]
        if marker == PRESENT:
            step(cursor)
        elif marker != NULL:
            raise OutOfBounds(f"a structure is announced by {marker}")

    return scan


def _tags(known: dict[int, Step]) -> Step:
    """KIP-482: tags come in ascending order, each once; one that is not known is to be ignored."""

    def scan(cursor: _Cursor) -> None:
        start = cursor.position
        count = cursor.unsigned_varint()
        if not count:
            return
        cursor.count(count, smallest_bytes=2)
        first_cut, last, kept = len(cursor.cuts), -1, []
        for _ in range(count):
            tag = cursor.unsigned_varint()
            if tag <= last:
                raise OutOfBounds(f"tag {tag} follows tag {last}")
            last = tag
            size_bytes = cursor.unsigned_varint()
            content = cursor.position
            if tag not in known:
                cursor.skip(size_bytes)
                continue
            known[tag](cursor)
            if cursor.position != content + size_bytes:
                raise OutOfBounds(f"tag {tag} is not {size_bytes} bytes long")
            inside = cursor.without_cuts(content, cursor.position, first_cut=first_cut)
            kept.append(_encode_varint(tag) + _encode_varint(len(inside)) + inside)
        cursor.cuts.append((start, cursor.position, _encode_varint(len(kept)) + b"".join(kept)))

    return scan


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
