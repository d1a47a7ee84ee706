"""Records to rows and back in Python: what does the work where nothing could be compiled, and the measure of what is.

Reads byte by byte as Kafka's DefaultRecord does.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from gateway.protocol import row_batches
from gateway.protocol.layout import MAX_INT32, MAX_TIMESTAMP_MS, NO_TIMESTAMP, POSTGRES_EPOCH_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.protocol.transcoder import BatchFields

__all__ = ["IS_COMPILED", "encode_rows", "find_headers", "read_batch", "scan_records", "select_records", "write_rows"]

IS_COMPILED: Final[bool] = False

Header = tuple[bytes, bytes | None]

# Length, attributes, timestamp delta, offset delta, key length, value length, header count: a byte each.
_SMALLEST_RECORD_BYTES: Final = 7

_NULL: Final = b"\xff\xff\xff\xff"
_NO_HEADERS: Final = _NULL + _NULL
_INT32: Final = struct.Struct(">i")
_TEXT_OID: Final = 25
_BYTEA_OID: Final = 17


class _Columns:
    """The records of one batch, column by column."""

    __slots__ = ("headers", "keys", "lacks_key", "max_timestamp", "min_timestamp", "timestamps_ms", "values")

    def __init__(self) -> None:
        self.timestamps_ms: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[list[Header]] = []
        self.min_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.lacks_key = False


def scan_records(records: bytes | memoryview, *, count: int, base_timestamp: int, max_elements: int) -> _Columns:
    """Read all of `count` records; raises what is wrong with the first that is."""
    data = memoryview(records)
    if len(data) // _SMALLEST_RECORD_BYTES < count:
        raise InvalidRecord(f"{count} records cannot be in {len(data)} bytes")
    reader = _Reader(data)
    columns = _Columns()
    elements = count
    for index in range(count):
        length = reader.varint()
        end = reader.position + length
        reader.skip(1)  # attributes: unused, and whatever they are Kafka takes them
        timestamp = base_timestamp + reader.varlong()
        offset_delta = reader.varint()
        if offset_delta != index:
            raise InvalidRecord(f"record {index} has offset delta {offset_delta}")
        columns.timestamps_ms.append((timestamp + (1 << 63)) % (1 << 64) - (1 << 63))
        columns.keys.append(reader.nullable_bytes())
        columns.values.append(reader.nullable_bytes())
        header_count = reader.varint()
        if header_count < 0:
            raise InvalidRecord(f"record {index} has {header_count} headers")
        elements += header_count
        if elements > max_elements:
            raise MessageTooLarge(f"more than {max_elements} records and headers in one batch")
        columns.headers.append([(reader.text(), reader.nullable_bytes()) for _ in range(header_count)])
        if reader.position != end:
            raise InvalidRecord(f"record {index} says it has {length} bytes, it has {length + reader.position - end}")
    if reader.position != len(data):
        raise InvalidRecord(f"{len(data) - reader.position} bytes follow the last of {count} records")
    columns.min_timestamp, columns.max_timestamp = _timestamp_range(columns.timestamps_ms)
    if any(b"\0" in name for headers in columns.headers for name, _ in headers):
        raise InvalidRecord("a header's key contains NUL, which PostgreSQL text cannot hold")
    columns.lacks_key = None in columns.keys
    return columns


def read_batch(records: bytes, *, max_batch_bytes: int, max_plain_bytes: int, max_elements: int) -> BatchFields | None:
    """Without compiled code there is no short way: every batch is looked at closely."""
    return None


def find_headers(scan: Any, names: tuple[bytes, ...]) -> list[tuple[bytes | None, ...]]:
    """For each record, the value of the last header of each name; None where there is none."""
    columns: _Columns = scan
    return [tuple(map(dict(headers).get, names)) for headers in columns.headers]


def select_records(scan: Any, places: Sequence[int]) -> _Columns:
    """Only the records at these places, which grow."""
    columns: _Columns = scan
    selected = _Columns()
    selected.timestamps_ms = [columns.timestamps_ms[place] for place in places]
    selected.keys = [columns.keys[place] for place in places]
    selected.values = [columns.values[place] for place in places]
    selected.headers = [columns.headers[place] for place in places]
    selected.min_timestamp, selected.max_timestamp = _timestamp_range(selected.timestamps_ms)
    selected.lacks_key = None in selected.keys
    return selected


def _timestamp_range(timestamps_ms: list[int]) -> tuple[int, int]:
    first, last = min(timestamps_ms), max(timestamps_ms)
    if first < NO_TIMESTAMP or last > MAX_TIMESTAMP_MS:
        raise InvalidTimestamp(
            f"timestamps from {first} to {last} ms; possible are -1 (none) and 0 to {MAX_TIMESTAMP_MS}"
        )
    if first == NO_TIMESTAMP != last:
        first = min(timestamp for timestamp in timestamps_ms if timestamp != NO_TIMESTAMP)
    return first, last


class _Reader:
    """A cursor over records that never leaves them."""

    __slots__ = ("_data", "_end", "position")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._end = len(data)
        self.position = 0

    def _unsigned(self, bits: int) -> int:
        value = shift = 0
        data, position = self._data, self.position
        while shift < bits:
            if position >= self._end:
                raise InvalidRecord("the records end inside a number")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> bits:
                    break
                self.position = position
                return value
            shift += 7
        raise InvalidRecord(f"a number of more than {bits} bits")

    def varint(self) -> int:
        position = self.position
        if position < self._end and (byte := self._data[position]) < 0x80:  # most are one byte
            self.position = position + 1
            return (byte >> 1) ^ -(byte & 1)
        value = self._unsigned(32)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        value = self._unsigned(64)
        return (value >> 1) ^ -(value & 1)

    def skip(self, length: int) -> None:
        if length > self._end - self.position:
            raise InvalidRecord(f"a field claims {length} bytes, {self._end - self.position} are left")
        self.position += length

    def nullable_bytes(self) -> bytes | None:
        """Any negative length is null, as Kafka has it."""
        length = self.varint()
        if length < 0:
            return None
        start = self.position
        self.skip(length)
        return bytes(self._data[start : self.position])

    def text(self) -> bytes:
        key = self.nullable_bytes()
        if key is None:
            raise InvalidRecord("a header's key is null")
        try:
            key.decode()
        except UnicodeDecodeError:
            raise InvalidRecord(f"a header's key is not UTF-8: {key[:40]!r}") from None
        return key


# --- rows ------------------------------------------------------------------------------------


def write_rows(
    scan: Any,
    template: bytes,
    *,
    offset_at: int,
    timestamp_at: int,
    sequence_at: int,
    base_offset: int,
    base_sequence: int,
    append_time_ms: int | None,
) -> bytes:
    """Each record as the template with offset, timestamp and sequence set, then key, value and headers."""
    columns: _Columns = scan
    count = len(columns.timestamps_ms)
    timestamps: Iterable[int]
    if append_time_ms is None:
        timestamps = [(timestamp - POSTGRES_EPOCH_MS) * 1000 for timestamp in columns.timestamps_ms]
    else:
        timestamps = repeat((append_time_ms - POSTGRES_EPOCH_MS) * 1000, count)
    changing: list[tuple[int, str, Iterable[int]]] = [
        (offset_at, "q", range(base_offset, base_offset + count)),
        (timestamp_at, "q", timestamps),
    ]
    if sequence_at >= 0:
        changing.append((sequence_at, "i", _sequences(base_sequence, count)))
    # Each row begins with the end of the one before, its absent headers: one piece less to join per row.
    layout, fields = _split(_NO_HEADERS + template, [(at + len(_NO_HEADERS), *rest) for at, *rest in sorted(changing)])
    key_lengths, keys = _lengths_and_bytes(columns.keys)
    value_lengths, values = _lengths_and_bytes(columns.values)
    pieces: Iterator[Iterable[bytes]]
    if keys is None:  # no record has a key, as with many producers: its length and the value's are neighbours
        fixed = map(struct.Struct(layout + "ii").pack, *fields, key_lengths, value_lengths)
        pieces = zip(fixed, values or repeat(b""), strict=False)
    else:
        fixed = map(struct.Struct(layout + "i").pack, *fields, key_lengths)
        pieces = zip(fixed, keys, map(_INT32.pack, value_lengths), values or repeat(b""), strict=False)
    if not any(columns.headers):
        parts = list(chain.from_iterable(pieces))
        parts[0] = parts[0][len(_NO_HEADERS) :]
        parts.append(_NO_HEADERS)
    else:
        parts = []
        encode = _header_encoder()
        for row, headers in zip(pieces, columns.headers, strict=True):
            first, *others = row
            parts.append(first[len(_NO_HEADERS) :])
            parts += others
            parts.append(encode(headers) if headers else _NO_HEADERS)
    return b"".join(parts)


def _split(template: bytes, changing: Sequence[Any]) -> tuple[str, list[Iterable[bytes | int]]]:
    """The template as a struct layout, and a column for each of its pieces and of what changes between them."""
    layout, position = ">", 0
    fields: list[Iterable[bytes | int]] = []
    for at, kind, column in changing:
        layout += f"{at - position}s{kind}"
        fields += (repeat(template[position:at]), column)
        position = at + struct.calcsize(f">{kind}")
    layout += f"{len(template) - position}s"
    fields.append(repeat(template[position:]))
    return layout, fields


def _sequences(base_sequence: int, count: int) -> Iterable[int]:
    """Sequences of `count` records; after 2147483647 comes 0."""
    if base_sequence + count - 1 <= MAX_INT32:
        return range(base_sequence, base_sequence + count)
    return chain(range(base_sequence, MAX_INT32 + 1), range(base_sequence + count - 1 - MAX_INT32))


def _lengths_and_bytes(column: list[bytes | None]) -> tuple[Iterable[int], list[bytes] | None]:
    """Return each field's length, -1 for null, and its bytes; None for the bytes when all are null."""
    nulls = column.count(None)
    if nulls == 0:
        present: list[bytes] = column  # type: ignore[assignment]
        return list(map(len, present)), present
    if nulls == len(column):
        return repeat(-1, nulls), None
    return [-1 if field is None else len(field) for field in column], [field or b"" for field in column]


def _header_encoder() -> Callable[[list[Header]], bytes]:
    """Return an encoder of header_names text[] and header_values bytea[] that remembers names seen before."""
    seen: dict[tuple[bytes, ...], bytes] = {}

    def encode(headers: list[Header]) -> bytes:
        names = tuple(name for name, _ in headers)
        encoded = seen.get(names)
        if encoded is None:
            encoded = seen[names] = _array_field(_TEXT_OID, names)
        return encoded + _array_field(_BYTEA_OID, [value for _, value in headers])

    return encode


def _array_field(element_oid: int, elements: Sequence[bytes | None]) -> bytes:
    """Encode a one-dimensional array as a field: its length, dimensions, elements."""
    has_null = None in elements
    parts = [struct.pack(">iiIii", 1, has_null, element_oid, len(elements), 1)]
    for element in elements:
        if element is None:
            parts.append(_NULL)
        else:
            parts += (_INT32.pack(len(element)), element)
    content = b"".join(parts)
    return _INT32.pack(len(content)) + content


def encode_rows(rows: Any, *, leader_epoch: int) -> bytes:
    """The rows as uncompressed batches, as few as their producers, timestamps and markers allow."""
    return row_batches.encode_rows(rows.columns(), leader_epoch=leader_epoch)
