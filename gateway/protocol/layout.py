"""Where the fields of a record batch (magic 2) are, and what its attributes mean."""

from __future__ import annotations

import struct
from typing import Final

__all__ = [
    "ATTRIBUTES_POSITION",
    "BATCH_HEADER",
    "CODEC_MASK",
    "CONTROL_BIT",
    "CRC_POSITION",
    "CREATE_TIME",
    "LEADER_EPOCH_POSITION",
    "LOG_APPEND_TIME",
    "LOG_APPEND_TIME_BIT",
    "LOG_OVERHEAD_BYTES",
    "MAGIC",
    "MAX_INT32",
    "MAX_TIMESTAMP_MS",
    "MAX_TIMESTAMP_POSITION",
    "NO_TIMESTAMP",
    "OVERHEAD_BYTES",
    "POSTGRES_EPOCH_MS",
    "TRANSACTIONAL_BIT",
    "UP_TO_MAGIC_BYTES",
]

MAGIC: Final = 2
MAX_INT32: Final = 0x7FFF_FFFF

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

NO_TIMESTAMP: Final = -1
MAX_TIMESTAMP_MS: Final = 9_224_318_015_999_999
"""The last millisecond a PostgreSQL timestamptz holds (year 294276)."""
POSTGRES_EPOCH_MS: Final = 946_684_800_000
"""2000-01-01, from which PostgreSQL counts."""

# BaseOffset, Length, PartitionLeaderEpoch, Magic, CRC; and, covered by the CRC, Attributes, LastOffsetDelta,
# BaseTimestamp, MaxTimestamp, ProducerId, ProducerEpoch, BaseSequence, RecordCount.
BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
OVERHEAD_BYTES: Final = BATCH_HEADER.size
LOG_OVERHEAD_BYTES: Final = 12
"""What the batch's own length does not count: the offset, and the length itself."""
UP_TO_MAGIC_BYTES: Final = 17
LEADER_EPOCH_POSITION: Final = 12
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
