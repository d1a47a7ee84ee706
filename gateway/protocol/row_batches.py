"""Rows as batches that consumers read: as few as their producers, timestamps and markers allow."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import sub
from typing import TYPE_CHECKING

from aiokafka.record._crecords.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from gateway.protocol import compression
from gateway.protocol.layout import (
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    CRC_POSITION,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAX_INT32,
    NO_TIMESTAMP,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Header", "RowRange", "encode_rows"]

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class RowRange:
    """Columns of rows of one partition in offset order."""

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
    if rows.offsets[-1] - rows.offsets[0] > MAX_INT32 or NO_TIMESTAMP in rows.timestamps_ms:
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
            None if sequence is None else (sequence - offset) & MAX_INT32,
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
            if rows.offsets[index] - rows.offsets[start] > MAX_INT32:
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
        MAGIC,
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
    bits = CONTROL_BIT if rows.control_types[start] is not None else 0
    if rows.timestamp_types[start] == LOG_APPEND_TIME:
        bits |= LOG_APPEND_TIME_BIT
    if bits:
        (attributes,) = struct.unpack_from(">h", data, ATTRIBUTES_POSITION)
        struct.pack_into(">h", data, ATTRIBUTES_POSITION, attributes | bits)
        crc = crc32c(memoryview(data)[ATTRIBUTES_POSITION:])
        struct.pack_into(">I", data, CRC_POSITION, crc)
    return data
