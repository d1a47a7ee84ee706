"""A produced batch as rows for COPY BINARY: which columns, in which order, and what they hold.

Column order is known here and in sql/log/copy_messages.sql only; the transcoder fills in what differs from row to row.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from gateway.protocol import transcoder
from gateway.protocol.batches import ProducedBatch
from gateway.protocol.layout import CREATE_TIME, LOG_APPEND_TIME

__all__ = ["COPY_COLUMNS", "COPY_HEADER", "COPY_TRAILER", "OFFSET_AT", "TIMESTAMP_AT", "copy_rows", "row_template"]

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

OFFSET_AT: Final = 6
TIMESTAMP_AT: Final = 18
"""In a row's template: behind the number of columns and their own lengths."""

_NULL: Final = b"\xff\xff\xff\xff"


def copy_rows(
    batch: ProducedBatch, *, topic_id: int, partition: int, base_offset: int, log_append_time_ms: int | None
) -> bytes:
    """Encode the batch's records as COPY BINARY tuples of `COPY_COLUMNS`, without file header and trailer."""
    template, sequence_at = row_template(
        batch.producer_id,
        batch.producer_epoch,
        topic_id,
        partition,
        is_transactional=batch.is_transactional,
        timestamp_type=CREATE_TIME if log_append_time_ms is None else LOG_APPEND_TIME,
    )
    return transcoder.implementation.write_rows(
        batch.records,
        template,
        offset_at=OFFSET_AT,
        timestamp_at=TIMESTAMP_AT,
        sequence_at=sequence_at,
        base_offset=base_offset,
        base_sequence=batch.base_sequence,
        append_time_ms=log_append_time_ms,
    )


@lru_cache(maxsize=4096)
def row_template(
    producer_id: int,
    producer_epoch: int,
    topic_id: int,
    partition: int,
    *,
    is_transactional: bool,
    timestamp_type: int,
) -> tuple[bytes, int]:
    """What the rows of a producer in a partition begin with, and where the sequence goes, -1 if it has none."""
    has_producer = producer_id >= 0
    before_sequence = b"".join(
        (
            struct.pack(">hiqiq", len(COPY_COLUMNS), 8, 0, 8, 0),
            struct.pack(">iq", 8, producer_id) if has_producer else _NULL,
            struct.pack(">iiii", 4, topic_id, 4, partition),
        )
    )
    after_sequence = b"".join(
        (
            struct.pack(">iiih", 4, 0, 2, producer_epoch) if has_producer else _NULL + _NULL,
            struct.pack(">ih", 2, timestamp_type),
            _NULL,
            struct.pack(">i?", 1, is_transactional),
        )
    )
    return before_sequence + after_sequence, len(before_sequence) + 4 if has_producer else -1
