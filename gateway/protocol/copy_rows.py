"""A produced batch as rows for COPY BINARY: which columns, in which order, and what they hold.

Column order is known here and in sql/log/copy_messages.sql only; the transcoder fills in what differs from row to row.
"""

from __future__ import annotations

import struct
from typing import Final

from gateway.protocol import transcoder
from gateway.protocol.batches import ProducedBatch
from gateway.protocol.layout import CREATE_TIME, LOG_APPEND_TIME

__all__ = ["COPY_COLUMNS", "COPY_HEADER", "COPY_TRAILER", "copy_rows"]

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


def copy_rows(
    batch: ProducedBatch, *, topic_id: int, partition: int, base_offset: int, log_append_time_ms: int | None
) -> bytes:
    """Encode the batch's records as COPY BINARY tuples of `COPY_COLUMNS`, without file header and trailer."""
    has_producer = batch.has_producer
    before_sequence = b"".join(
        (
            struct.pack(">hiqiq", len(COPY_COLUMNS), 8, 0, 8, 0),
            struct.pack(">iq", 8, batch.producer_id) if has_producer else _NULL,
            struct.pack(">iiii", 4, topic_id, 4, partition),
        )
    )
    template = b"".join(
        (
            before_sequence,
            struct.pack(">iiih", 4, 0, 2, batch.producer_epoch) if has_producer else _NULL + _NULL,
            struct.pack(">ih", 2, CREATE_TIME if log_append_time_ms is None else LOG_APPEND_TIME),
            _NULL,
            struct.pack(">i?", 1, batch.is_transactional),
        )
    )
    return transcoder.implementation.write_rows(
        batch.records,
        template,
        offset_at=6,
        timestamp_at=18,
        sequence_at=len(before_sequence) + 4 if has_producer else -1,
        base_offset=base_offset,
        base_sequence=batch.base_sequence,
        append_time_ms=log_append_time_ms,
    )
