"""Record batches (magic 2): what a producer sends, as rows for COPY; and rows, as a consumer reads them.

Everything a client may get wrong is refused here, with the code Apache Kafka answers where it has one.
Pure: no I/O, no clock, no state between calls, so that a thread pool may decode. The record codec is
aiokafka's compiled one; what it reads more loosely than Kafka is read again, strictly, by `_read_strictly`.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from operator import attrgetter, sub
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
from aiokafka.record._crecords.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from gateway.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from gateway.protocol import compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "COPY_COLUMNS",
    "COPY_HEADER",
    "COPY_TRAILER",
    "CREATE_TIME",
    "LOG_APPEND_TIME",
    "MAX_TIMESTAMP_MS",
    "NO_TIMESTAMP",
    "BatchLimits",
    "Header",
    "ProducedBatch",
    "RowRange",
    "copy_rows",
    "decode_produced",
    "encode_rows",
    "is_compressed",
    "stored_form",
]

Header = tuple[str, bytes | None]

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

NO_TIMESTAMP: Final = -1
MAX_TIMESTAMP_MS: Final = 9_224_318_015_999_999
"""The last millisecond a PostgreSQL timestamptz holds (year 294276)."""

_POSTGRES_EPOCH_MS: Final = 946_684_800_000
_MAX_INT32: Final = 0x7FFF_FFFF

# BaseOffset, Length, PartitionLeaderEpoch, Magic, CRC; and, covered by the CRC, Attributes, LastOffsetDelta,
# BaseTimestamp, MaxTimestamp, ProducerId, ProducerEpoch, BaseSequence, RecordCount.
_BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OVERHEAD_BYTES: Final = _BATCH_HEADER.size
_LOG_OVERHEAD_BYTES: Final = 12
_UP_TO_MAGIC_BYTES: Final = 17
_CRC_POSITION: Final = 17
_ATTRIBUTES_POSITION: Final = 21
_MAGIC: Final = 2

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20

# Length, attributes, timestamp delta, offset delta, key length, value length, header count: a byte each.
_SMALLEST_RECORD_BYTES: Final = 7
# The compiled reader looks a few bytes past the end of what lies about its length.
_READ_AHEAD: Final = bytes(16)
# Up to here all records are read in one go; a header takes two bytes on the wire and seventy in memory.
_SMALL_PAYLOAD_BYTES: Final = 1 << 20
_SMALL_RECORD_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a topic and a request version allow; checked before memory is taken."""

    max_batch_bytes: int
    """The topic's max.message.bytes, compared with the batch as it is sent, its first 12 bytes included."""
    max_decompressed_bytes: int
    allow_zstd: bool = True
    """False before Produce v7."""
    max_elements: int = 500_000
    """Records and headers together: each is an object, however few bytes it takes on the wire."""


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """One batch as a producer may send it, checked throughout; its records as columns.

    Without a producer, `producer_id`, `producer_epoch` and `base_sequence` are all -1.
    """

    data: bytes
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    base_timestamp: int
    min_timestamp: int
    """Of the records that have one, else -1; what message.timestamp.before.max.ms is about."""
    max_timestamp: int
    """Of the records, whatever the batch said; -1 if none has one."""
    payload_bytes: int
    """The records without compression."""
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[Header]] | None
    """None when no record has a header."""

    @property
    def last_offset_delta(self) -> int:
        return self.record_count - 1

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_MASK

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 without a producer."""
        return (self.base_sequence + self.record_count - 1) & _MAX_INT32 if self.has_producer else -1


# --- reading what a producer sent ------------------------------------------------------------


class _Columns(NamedTuple):
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[Header]]


def is_compressed(records: bytes) -> bool:
    """Whether the batch says so, before anything else is known of it."""
    return len(records) > _ATTRIBUTES_POSITION + 1 and bool(records[_ATTRIBUTES_POSITION + 1] & _CODEC_MASK)


def decode_produced(records: bytes, limits: BatchLimits) -> ProducedBatch:
    """Read exactly one batch; refuse anything Kafka refuses and what a row could not hold.

    Raises CorruptMessage where a retry may help, otherwise InvalidRecord, InvalidTimestamp, MessageTooLarge
    or UnsupportedCompressionType.
    """
    size_bytes = _measure(records, limits)
    (
        base_offset,
        _length,
        _leader_epoch,
        _magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        _max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _BATCH_HEADER.unpack_from(records)
    view = memoryview(records)
    computed_crc = google_crc32c.value(records[_ATTRIBUTES_POSITION:size_bytes])
    if computed_crc != crc:
        raise CorruptMessage(f"the batch's CRC is {crc:#010x}, its content has {computed_crc:#010x}")
    if size_bytes != len(records):
        raise InvalidRecord(f"expected one batch of {size_bytes} bytes, {len(records) - size_bytes} more follow")
    if base_offset != 0:
        raise InvalidRecord(f"a produced batch starts at offset 0, received {base_offset}")
    if attributes & _CONTROL_BIT:
        raise InvalidRecord("clients may not write control records")
    if attributes & _LOG_APPEND_TIME_BIT:
        raise InvalidTimestamp("producers may not set the timestamp type to LogAppendTime")
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise InvalidRecord(f"{record_count} records with a last offset delta of {last_offset_delta}")
    if record_count > limits.max_elements:
        raise MessageTooLarge(f"{record_count} records in one batch, at most {limits.max_elements} are allowed")
    if producer_id < 0:
        producer_id = producer_epoch = base_sequence = -1
    elif producer_epoch < 0 or base_sequence < 0:
        raise InvalidRecord(f"producer {producer_id} with epoch {producer_epoch} and sequence {base_sequence}")

    plain = _decompressed(view, attributes, limits)
    columns = _read_records(plain, record_count, base_timestamp, limits.max_elements)
    min_timestamp, max_timestamp = _timestamp_range(columns.timestamps_ms)
    has_headers = any(columns.headers)
    if has_headers and any("\0" in name for headers in columns.headers for name, _ in headers):
        raise InvalidRecord("a header's key contains NUL, which PostgreSQL text cannot hold")
    return ProducedBatch(
        data=records,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
        base_timestamp=base_timestamp,
        min_timestamp=min_timestamp,
        max_timestamp=max_timestamp,
        payload_bytes=len(plain) - _OVERHEAD_BYTES,
        timestamps_ms=columns.timestamps_ms,
        keys=columns.keys,
        values=columns.values,
        headers=columns.headers if has_headers else None,
    )


def _measure(records: bytes, limits: BatchLimits) -> int:
    """Return the size of the first batch, which is complete and of the one format served."""
    available = len(records)
    if available < _UP_TO_MAGIC_BYTES:
        raise InvalidRecord(f"no record batch in {available} bytes")
    length: int
    _, length, _, magic = struct.unpack_from(">qiib", records)
    if length < _OVERHEAD_BYTES - _LOG_OVERHEAD_BYTES and magic not in (0, 1):
        raise CorruptMessage(f"a batch cannot be {length} bytes long")
    if not 0 <= magic <= _MAGIC:
        raise CorruptMessage(f"magic {magic} is unknown")
    if magic != _MAGIC:
        # The code is Apache Kafka's for Produce v3 and later.
        raise InvalidRecord(f"magic {magic} is older than the one format served, magic {_MAGIC}")
    size_bytes = length + _LOG_OVERHEAD_BYTES
    if size_bytes > available:
        raise InvalidRecord(f"the batch claims {size_bytes} bytes, {available} were sent")
    if size_bytes > limits.max_batch_bytes:
        raise MessageTooLarge(f"the batch has {size_bytes} bytes, the topic allows {limits.max_batch_bytes}")
    return size_bytes


def _decompressed(view: memoryview, attributes: int, limits: BatchLimits) -> memoryview:
    """Return the batch with plain records; after its end a few bytes more are readable memory."""
    codec = attributes & _CODEC_MASK
    if codec == compression.NONE:
        if len(view) - _OVERHEAD_BYTES > limits.max_decompressed_bytes:
            raise MessageTooLarge(f"the batch holds more than {limits.max_decompressed_bytes} bytes")
        return memoryview(b"".join((view, _READ_AHEAD)))[: len(view)]
    if codec == compression.ZSTD and not limits.allow_zstd:
        raise UnsupportedCompressionType("zstd is allowed from Produce v7 on")
    plain = compression.decompress(
        view[_OVERHEAD_BYTES:],
        codec=codec,
        max_bytes=limits.max_decompressed_bytes,
        room_before=_OVERHEAD_BYTES,
    )
    plain[:_OVERHEAD_BYTES] = view[:_OVERHEAD_BYTES]
    struct.pack_into(">h", plain, _ATTRIBUTES_POSITION, attributes & ~_CODEC_MASK)
    return plain


def _timestamp_range(timestamps_ms: list[int]) -> tuple[int, int]:
    first, last = min(timestamps_ms), max(timestamps_ms)
    if first < NO_TIMESTAMP or last > MAX_TIMESTAMP_MS:
        raise InvalidTimestamp(
            f"timestamps from {first} to {last} ms; possible are -1 (none) and 0 to {MAX_TIMESTAMP_MS}"
        )
    if first == NO_TIMESTAMP != last:
        first = min(timestamp for timestamp in timestamps_ms if timestamp != NO_TIMESTAMP)
    return first, last


def _read_records(plain: memoryview, record_count: int, base_timestamp: int, max_elements: int) -> _Columns:
    payload_bytes = len(plain) - _OVERHEAD_BYTES
    if payload_bytes < record_count * _SMALLEST_RECORD_BYTES:
        raise InvalidRecord(f"{record_count} records cannot be in {payload_bytes} bytes")
    if payload_bytes > _SMALL_PAYLOAD_BYTES:
        _refuse_too_many_headers(plain, max_elements)
    columns = _read_quickly(plain, base_timestamp, max_elements)
    return columns or _read_strictly(plain, record_count, base_timestamp, max_elements)


def _read_quickly(plain: memoryview, base_timestamp: int, max_elements: int) -> _Columns | None:
    """Read with the compiled reader; None if that is not provably how Kafka reads these bytes."""
    batch = DefaultRecordBatch(plain)
    try:
        if len(plain) <= _SMALL_PAYLOAD_BYTES:
            records = list(batch)
        else:
            # In steps, so that other threads get their turn and a crowd of headers is noticed on the way.
            records = []
            elements = 0
            for record in batch:
                records.append(record)
                elements += 1 + len(record.headers)
                if elements > max_elements:
                    raise _too_many_elements(max_elements)
    except MessageTooLarge:
        raise
    except Exception:  # noqa: BLE001  whatever it found, the strict reader finds it and says it properly
        return None
    timestamps: list[int] = list(map(attrgetter("timestamp"), records))
    if None in timestamps:
        timestamps = [NO_TIMESTAMP if timestamp is None else timestamp for timestamp in timestamps]
    keys = list(map(attrgetter("key"), records))
    values = list(map(attrgetter("value"), records))
    headers = list(map(attrgetter("headers"), records))
    # It takes the attributes for a varint and any varint at any length. Where each field has its shortest
    # form, the sizes add up to the whole, and then there is only one way to read it.
    ruler = DefaultRecordBatchBuilder(_MAGIC, 0, 0, -1, -1, -1, 0)
    ruler.append(0, base_timestamp, None, None, [])
    count = len(records)
    if list(map(attrgetter("offset"), records)) != list(range(count)):
        return None
    sizes = map(ruler.size_in_bytes, range(count), timestamps, keys, values, headers)
    if sum(sizes) != len(plain) - _OVERHEAD_BYTES:
        return None
    return _Columns(timestamps, keys, values, headers)


def _read_strictly(plain: memoryview, record_count: int, base_timestamp: int, max_elements: int) -> _Columns:
    """Read byte by byte as Kafka's DefaultRecord does; slow, and the judge of every doubtful batch."""
    reader = _Reader(plain, _OVERHEAD_BYTES)
    columns = _Columns([], [], [], [])
    elements = record_count
    for index in range(record_count):
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
        elements += header_count
        if header_count < 0:
            raise InvalidRecord(f"record {index} has {header_count} headers")
        if elements > max_elements:
            raise _too_many_elements(max_elements)
        columns.headers.append([(reader.text(), reader.nullable_bytes()) for _ in range(header_count)])
        if reader.position != end:
            raise InvalidRecord(f"record {index} says it has {length} bytes, it has {length + reader.position - end}")
    if reader.position != len(plain):
        raise InvalidRecord(f"{len(plain) - reader.position} bytes follow the last of {record_count} records")
    return columns


def _refuse_too_many_headers(plain: memoryview, max_elements: int) -> None:
    """Look at the header counts of large records, before a reader makes objects of them."""
    reader = _Reader(plain, _OVERHEAD_BYTES)
    end = len(plain)
    while reader.position < end:
        length = reader.varint()
        if not 0 < length <= end - reader.position:
            raise InvalidRecord(f"a record claims {length} bytes, {end - reader.position} are left")
        next_record = reader.position + length
        if length > _SMALL_RECORD_BYTES:
            reader.skip(1)
            reader.varlong()
            reader.varint()
            reader.skip(max(reader.varint(), 0))
            reader.skip(max(reader.varint(), 0))
            if reader.varint() > max_elements:
                raise _too_many_elements(max_elements)
        reader.position = next_record


def _too_many_elements(max_elements: int) -> MessageTooLarge:
    return MessageTooLarge(f"more than {max_elements} records and headers in one batch")


class _Reader:
    """A cursor over records that never leaves them."""

    __slots__ = ("_data", "_end", "position")

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._end = len(data)
        self.position = position

    def _unsigned(self, *, bits: int) -> int:
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
        value = self._unsigned(bits=32)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        value = self._unsigned(bits=64)
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

    def text(self) -> str:
        key = self.nullable_bytes()
        if key is None:
            raise InvalidRecord("a header's key is null")
        try:
            return key.decode()
        except UnicodeDecodeError:
            raise InvalidRecord(f"a header's key is not UTF-8: {key[:40]!r}") from None


# --- writing rows ----------------------------------------------------------------------------

COPY_COLUMNS: Final = (
    "offset",
    "timestamp",
    "producer_id",
    "topic_id",
    "partition",
    "sequence",
    "producer_epoch",
    "timestamp_type",
    "control_type",
    "is_transactional",
    "key",
    "value",
    "header_names",
    "header_values",
)
COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
COPY_TRAILER: Final = b"\xff\xff"

_NULL: Final = b"\xff\xff\xff\xff"
_NO_HEADERS: Final = _NULL + _NULL
_INT32: Final = struct.Struct(">i")
_TEXT_OID: Final = 25
_BYTEA_OID: Final = 17


def copy_rows(
    batch: ProducedBatch, *, topic_id: int, partition: int, base_offset: int, log_append_time_ms: int | None
) -> bytes:
    """Encode the batch's records as COPY BINARY tuples of `COPY_COLUMNS`, without file header and trailer."""
    count = batch.record_count
    # Each row begins with the end of the one before, its absent headers: one piece less to join per row.
    start = _NO_HEADERS + struct.pack(">hi", len(COPY_COLUMNS), 8)
    before_sequence = struct.pack(
        f">{'iq' if batch.has_producer else 'i'}iiii",
        *((8, batch.producer_id) if batch.has_producer else (-1,)),
        *(4, topic_id, 4, partition),
    )
    timestamp_type = CREATE_TIME if log_append_time_ms is None else LOG_APPEND_TIME
    after_sequence = (
        (struct.pack(">ih", 2, batch.producer_epoch) if batch.has_producer else _NULL)
        + struct.pack(">ih", 2, timestamp_type)
        + _NULL
        + struct.pack(">i?", 1, batch.is_transactional)
    )
    timestamps: Iterable[int]
    if log_append_time_ms is None:
        timestamps = [(timestamp - _POSTGRES_EPOCH_MS) * 1000 for timestamp in batch.timestamps_ms]
    else:
        timestamps = repeat((log_append_time_ms - _POSTGRES_EPOCH_MS) * 1000, count)
    columns: list[Iterable[bytes | int]] = [
        repeat(start),
        range(base_offset, base_offset + count),
        repeat(8),
        timestamps,
    ]
    layout = f">{len(start)}sqiq"
    if batch.has_producer:
        before_sequence += _INT32.pack(4)
        layout += f"{len(before_sequence)}si{len(after_sequence)}s"
        columns += (repeat(before_sequence), _sequences(batch.base_sequence, count), repeat(after_sequence))
    else:
        constant = before_sequence + _NULL + after_sequence
        layout += f"{len(constant)}s"
        columns.append(repeat(constant))

    key_lengths, keys = _lengths_and_bytes(batch.keys)
    value_lengths, values = _lengths_and_bytes(batch.values)
    pieces: Iterator[Iterable[bytes]]
    if keys is None:  # no record has a key, as with many producers: its length and the value's are neighbours
        fixed = map(struct.Struct(layout + "ii").pack, *columns, key_lengths, value_lengths)
        pieces = zip(fixed, values or repeat(b""), strict=False)
    else:
        fixed = map(struct.Struct(layout + "i").pack, *columns, key_lengths)
        pieces = zip(fixed, keys, map(_INT32.pack, value_lengths), values or repeat(b""), strict=False)
    if batch.headers is None:
        parts = list(chain.from_iterable(pieces))
        parts[0] = parts[0][len(_NO_HEADERS) :]
        parts.append(_NO_HEADERS)
    else:
        parts = []
        encode = _header_encoder()
        for row, headers in zip(pieces, batch.headers, strict=True):
            first, *others = row
            parts.append(first[len(_NO_HEADERS) :])
            parts += others
            parts.append(encode(headers) if headers else _NO_HEADERS)
    return b"".join(parts)


def _sequences(base_sequence: int, count: int) -> Iterable[int]:
    """Sequences of `count` records; after 2147483647 comes 0."""
    if base_sequence + count - 1 <= _MAX_INT32:
        return range(base_sequence, base_sequence + count)
    return chain(range(base_sequence, _MAX_INT32 + 1), range(base_sequence + count - 1 - _MAX_INT32))


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
    seen: dict[tuple[str, ...], bytes] = {}

    def encode(headers: list[Header]) -> bytes:
        names = tuple(name for name, _ in headers)
        encoded = seen.get(names)
        if encoded is None:
            encoded = seen[names] = _array_field(_TEXT_OID, [name.encode() for name in names])
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


def stored_form(batch: ProducedBatch, *, base_offset: int, leader_epoch: int, log_append_time_ms: int | None) -> bytes:
    """Return the batch as a broker serves it: offset, leader epoch and the topic's kind of timestamp set."""
    view = memoryview(batch.data)
    header = bytearray(view[:_OVERHEAD_BYTES])
    struct.pack_into(">q", header, 0, base_offset)
    struct.pack_into(">i", header, 12, leader_epoch)
    max_timestamp = batch.max_timestamp if log_append_time_ms is None else log_append_time_ms
    (claimed_timestamp,) = struct.unpack_from(">q", header, 35)
    if log_append_time_ms is not None or claimed_timestamp != max_timestamp:
        bit = 0 if log_append_time_ms is None else _LOG_APPEND_TIME_BIT
        struct.pack_into(">h", header, _ATTRIBUTES_POSITION, batch.attributes | bit)
        struct.pack_into(">q", header, 35, max_timestamp)
        crc = google_crc32c.value(bytes(header[_ATTRIBUTES_POSITION:]))
        crc = google_crc32c.extend(crc, batch.data[_OVERHEAD_BYTES:])
        struct.pack_into(">I", header, _CRC_POSITION, crc)
    return b"".join((header, view[_OVERHEAD_BYTES:]))


# --- reading rows ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowRange:
    """Columns of rows of one partition in offset order, as `array_agg` returns them."""

    offsets: list[int]
    timestamps_ms: list[int]
    timestamp_types: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    header_names: list[list[str] | None]
    header_values: list[list[bytes | None] | None]
    producer_ids: list[int | None]
    producer_epochs: list[int | None]
    sequences: list[int | None]
    is_transactional: list[bool]
    control_types: list[int | None]


def encode_rows(rows: RowRange, *, leader_epoch: int) -> bytes:
    """Encode the rows as uncompressed batches, as few as their producers, timestamps and markers allow."""
    count = len(rows.offsets)
    if count == 0:
        return b""
    headers: Sequence[list[Header]]
    if any(rows.header_names):
        headers = [
            list(zip(names, values or (), strict=True)) if names else []
            for names, values in zip(rows.header_names, rows.header_values, strict=True)
        ]
    else:
        headers = [[]] * count
    if _is_one_batch(rows):
        return bytes(_encode_batch(rows, headers, 0, count, leader_epoch))
    return b"".join(_encode_batch(rows, headers, start, end, leader_epoch) for start, end in _runs(rows))


def _is_one_batch(rows: RowRange) -> bool:
    """Say whether nothing that a batch has only once changes within the rows."""
    if rows.offsets[-1] - rows.offsets[0] > _MAX_INT32 or rows.timestamps_ms[0] == NO_TIMESTAMP:
        return False
    if set(rows.control_types) != {None} or set(rows.timestamp_types) != {CREATE_TIME}:
        return False
    if len(set(rows.producer_ids)) != 1 or len(set(rows.producer_epochs)) != 1 or len(set(rows.is_transactional)) != 1:
        return False
    # A record's sequence follows from its offset, so gaps that compaction left do no harm.
    sequences = rows.sequences
    if sequences[0] is None:
        return sequences.count(None) == len(sequences)
    return None not in sequences and len(set(map(sub, sequences, rows.offsets))) == 1


def _runs(rows: RowRange) -> Iterator[tuple[int, int]]:
    """Yield where each batch starts and ends."""
    identities = [
        (
            producer_id,
            epoch,
            None if sequence is None else (sequence - offset) & _MAX_INT32,
            transactional,
            # A marker is alone in its batch; LogAppendTime is one for all of a batch.
            None if control_type is None else offset,
            None if timestamp_type == CREATE_TIME else timestamp,
            # aiokafka's writer cannot go from no timestamp to one.
            timestamp == NO_TIMESTAMP,
        )
        for producer_id, epoch, sequence, offset, transactional, control_type, timestamp_type, timestamp in (
            zip(
                rows.producer_ids,
                rows.producer_epochs,
                rows.sequences,
                rows.offsets,
                rows.is_transactional,
                rows.control_types,
                rows.timestamp_types,
                rows.timestamps_ms,
                strict=True,
            )
        )
    ]
    end = 0
    for _, run in groupby(identities):
        start, end = end, end + sum(1 for _ in run)
        for index in range(start + 1, end):
            if rows.offsets[index] - rows.offsets[start] > _MAX_INT32:
                yield start, index
                start = index
        yield start, end


def _encode_batch(
    rows: RowRange, headers: Sequence[list[Header]], start: int, end: int, leader_epoch: int
) -> bytearray:
    base_offset = rows.offsets[start]
    producer_id, epoch, sequence = (
        rows.producer_ids[start],
        rows.producer_epochs[start],
        rows.sequences[start],
    )
    builder = DefaultRecordBatchBuilder(
        _MAGIC,
        compression.NONE,
        rows.is_transactional[start],
        -1 if producer_id is None else producer_id,
        -1 if epoch is None else epoch,
        -1 if sequence is None else sequence,
        1 << 62,
    )
    if end - start == len(rows.offsets):
        columns = (rows.timestamps_ms, rows.keys, rows.values, headers)
    else:
        part = slice(start, end)
        columns = (rows.timestamps_ms[part], rows.keys[part], rows.values[part], headers[part])
    deltas = map(sub, rows.offsets[start:end], repeat(base_offset))
    deque(map(builder.append, deltas, *columns), maxlen=0)
    data: bytearray = builder.build()
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, 12, leader_epoch)
    bits = _CONTROL_BIT if rows.control_types[start] is not None else 0
    if rows.timestamp_types[start] == LOG_APPEND_TIME:
        bits |= _LOG_APPEND_TIME_BIT
    if bits:
        (attributes,) = struct.unpack_from(">h", data, _ATTRIBUTES_POSITION)
        struct.pack_into(">h", data, _ATTRIBUTES_POSITION, attributes | bits)
        crc = google_crc32c.value(bytes(data[_ATTRIBUTES_POSITION:]))
        struct.pack_into(">I", data, _CRC_POSITION, crc)
    return data
