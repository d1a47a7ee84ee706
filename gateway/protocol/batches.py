"""Record batches (magic 2) as producers send them: checked throughout, and in the form that brokers serve.

Everything a client may get wrong is refused here, with the code Apache Kafka answers where it has one.
Pure: no I/O, no clock, no state between calls, so that a thread pool may decode.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from gateway.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from gateway.protocol import compression, transcoder
from gateway.protocol.layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    LEADER_EPOCH_POSITION,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_INT32,
    MAX_TIMESTAMP_POSITION,
    OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
    UP_TO_MAGIC_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.protocol.transcoder import Scan

__all__ = [
    "BatchLimits",
    "ProducedBatch",
    "StoredBatch",
    "decode_produced",
    "find_headers",
    "is_compressed",
    "select_records",
]


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


class ProducedBatch(NamedTuple):
    """One batch as a producer may send it, checked throughout.

    Without a producer, `producer_id`, `producer_epoch` and `base_sequence` are all -1.
    """

    data: bytes
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    payload_bytes: int
    """The records without compression."""
    records: Scan
    """For `copy_rows`."""
    has_producer: bool
    is_transactional: bool

    @property
    def min_timestamp(self) -> int:
        """Of the records that have one, else -1; what message.timestamp.before.max.ms is about."""
        return self.records.min_timestamp

    @property
    def max_timestamp(self) -> int:
        """Of the records, whatever the batch said; -1 if none has one."""
        return self.records.max_timestamp

    @property
    def lacks_key(self) -> bool:
        """Whether a record has no key."""
        return self.records.lacks_key

    @property
    def last_offset_delta(self) -> int:
        return self.record_count - 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 without a producer."""
        return (self.base_sequence + self.record_count - 1) & MAX_INT32 if self.has_producer else -1


def is_compressed(records: bytes) -> bool:
    """Whether the batch says so, before anything else is known of it."""
    return len(records) > ATTRIBUTES_POSITION + 1 and bool(records[ATTRIBUTES_POSITION + 1] & CODEC_MASK)


def decode_produced(records: bytes, limits: BatchLimits) -> ProducedBatch:
    """Read exactly one batch; refuse anything Kafka refuses and what a row could not hold.

    Raises CorruptMessage where a retry may help, otherwise InvalidRecord, InvalidTimestamp, MessageTooLarge
    or UnsupportedCompressionType.
    """
    fields = transcoder.implementation.read_batch(
        records,
        max_batch_bytes=limits.max_batch_bytes,
        max_plain_bytes=limits.max_decompressed_bytes,
        max_elements=limits.max_elements,
    )
    if fields is not None:
        return ProducedBatch._make(fields)
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
    ) = BATCH_HEADER.unpack_from(records)
    view = memoryview(records)
    computed_crc = crc32c(view[ATTRIBUTES_POSITION:size_bytes])
    if computed_crc != crc:
        raise CorruptMessage(f"the batch's CRC is {crc:#010x}, its content has {computed_crc:#010x}")
    if size_bytes != len(records):
        raise InvalidRecord(f"expected one batch of {size_bytes} bytes, {len(records) - size_bytes} more follow")
    if base_offset != 0:
        raise InvalidRecord(f"a produced batch starts at offset 0, received {base_offset}")
    if attributes & CONTROL_BIT:
        raise InvalidRecord("clients may not write control records")
    if attributes & LOG_APPEND_TIME_BIT:
        raise InvalidTimestamp("producers may not set the timestamp type to LogAppendTime")
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise InvalidRecord(f"{record_count} records with a last offset delta of {last_offset_delta}")
    if record_count > limits.max_elements:
        raise MessageTooLarge(f"{record_count} records in one batch, at most {limits.max_elements} are allowed")
    if producer_id < 0:
        producer_id = producer_epoch = base_sequence = -1
    elif producer_epoch < 0 or base_sequence < 0:
        raise InvalidRecord(f"producer {producer_id} with epoch {producer_epoch} and sequence {base_sequence}")

    plain = _decompressed(view[OVERHEAD_BYTES:], attributes & CODEC_MASK, limits)
    return ProducedBatch(
        data=records,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
        payload_bytes=len(plain),
        records=transcoder.implementation.scan_records(
            plain, count=record_count, base_timestamp=base_timestamp, max_elements=limits.max_elements
        ),
        has_producer=producer_id >= 0,
        is_transactional=bool(attributes & TRANSACTIONAL_BIT),
    )


def find_headers(batch: ProducedBatch, names: Sequence[str]) -> list[tuple[bytes | None, ...]]:
    """For each record, the value of the last header of each of these names; None where there is none."""
    return transcoder.implementation.find_headers(batch.records, tuple(name.encode() for name in names))


def select_records(batch: ProducedBatch, places: Sequence[int]) -> list[ProducedBatch]:
    """Some records of a batch, for `copy_rows`: since each keeps its sequence, one batch per run of places."""
    runs = [list(places)]
    if batch.has_producer:
        # In a run, places and their positions grow alike.
        grouped = groupby(enumerate(places), key=lambda entry: entry[1] - entry[0])
        runs = [[place for _, place in run] for _, run in grouped]
    return [
        batch._replace(
            data=b"",
            base_sequence=(batch.base_sequence + run[0]) & MAX_INT32 if batch.has_producer else -1,
            record_count=len(run),
            records=transcoder.implementation.select_records(batch.records, run),
        )
        for run in runs
    ]


def _measure(records: bytes, limits: BatchLimits) -> int:
    """Return the size of the first batch, which is complete and of the one format served."""
    available = len(records)
    if available < UP_TO_MAGIC_BYTES:
        raise InvalidRecord(f"no record batch in {available} bytes")
    length: int
    _, length, _, magic = struct.unpack_from(">qiib", records)
    if length < OVERHEAD_BYTES - LOG_OVERHEAD_BYTES and magic not in (0, 1):
        raise CorruptMessage(f"a batch cannot be {length} bytes long")
    if not 0 <= magic <= MAGIC:
        raise CorruptMessage(f"magic {magic} is unknown")
    if magic != MAGIC:
        # The code is Apache Kafka's for Produce v3 and later.
        raise InvalidRecord(f"magic {magic} is older than the one format served, magic {MAGIC}")
    size_bytes = length + LOG_OVERHEAD_BYTES
    if size_bytes > available:
        raise InvalidRecord(f"the batch claims {size_bytes} bytes, {available} were sent")
    if size_bytes > limits.max_batch_bytes:
        raise MessageTooLarge(f"the batch has {size_bytes} bytes, the topic allows {limits.max_batch_bytes}")
    return size_bytes


def _decompressed(records: memoryview, codec: int, limits: BatchLimits) -> memoryview:
    if codec == compression.NONE:
        if len(records) > limits.max_decompressed_bytes:
            raise MessageTooLarge(f"the batch holds more than {limits.max_decompressed_bytes} bytes")
        return records
    if codec == compression.ZSTD and not limits.allow_zstd:
        raise UnsupportedCompressionType("zstd is allowed from Produce v7 on")
    return compression.decompress(records, codec=codec, max_bytes=limits.max_decompressed_bytes)


class StoredBatch:
    """A batch as a broker serves it: offset, leader epoch and the topic's kind of timestamp set. Its bytes are made
    when somebody asks for them; many are never read from memory."""

    __slots__ = ("_attributes", "_base_offset", "_data", "_leader_epoch", "_log_append_time_ms", "_max_timestamp")

    def __init__(
        self, batch: ProducedBatch, *, base_offset: int, leader_epoch: int, log_append_time_ms: int | None
    ) -> None:
        # Not the batch itself, which holds what was compressed in full.
        self._data = batch.data
        self._attributes = batch.attributes
        self._max_timestamp = batch.max_timestamp
        self._base_offset = base_offset
        self._leader_epoch = leader_epoch
        self._log_append_time_ms = log_append_time_ms

    def __len__(self) -> int:
        return len(self._data)

    def __bytes__(self) -> bytes:
        view = memoryview(self._data)
        header = bytearray(view[:OVERHEAD_BYTES])
        struct.pack_into(">q", header, 0, self._base_offset)
        struct.pack_into(">i", header, LEADER_EPOCH_POSITION, self._leader_epoch)
        max_timestamp = self._max_timestamp if self._log_append_time_ms is None else self._log_append_time_ms
        (claimed_timestamp,) = struct.unpack_from(">q", header, MAX_TIMESTAMP_POSITION)
        if self._log_append_time_ms is not None or claimed_timestamp != max_timestamp:
            bit = 0 if self._log_append_time_ms is None else LOG_APPEND_TIME_BIT
            struct.pack_into(">h", header, ATTRIBUTES_POSITION, self._attributes | bit)
            struct.pack_into(">q", header, MAX_TIMESTAMP_POSITION, max_timestamp)
            crc = crc32c(view[OVERHEAD_BYTES:], crc32c(header[ATTRIBUTES_POSITION:]))
            struct.pack_into(">I", header, CRC_POSITION, crc)
        return b"".join((header, view[OVERHEAD_BYTES:]))
