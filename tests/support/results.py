"""Results as libpq would hold them after a query, made without a database."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from functools import cache

from psycopg.pq import ExecStatus, PGconn, PGresult
from psycopg.pq.abc import PGresult as AnyResult
from psycopg.pq.misc import PGresAttDesc

BINARY = 1
BOOL, BYTEA, INT8, INT2, INT4, TIMESTAMPTZ, TEXT_ARRAY, BYTEA_ARRAY = 16, 17, 20, 21, 23, 1184, 1009, 1001
TEXT = 25

COLUMN_TYPES = (
    ("offset", INT8),
    ("timestamp", TIMESTAMPTZ),
    ("timestamp_type", INT2),
    ("key", BYTEA),
    ("value", BYTEA),
    ("header_names", TEXT_ARRAY),
    ("header_values", BYTEA_ARRAY),
    ("producer_id", INT8),
    ("producer_epoch", INT2),
    ("sequence", INT4),
    ("is_transactional", BOOL),
    ("control_type", INT2),
)
"""The columns of sql/log/read_messages.sql."""

GOOD_ROW = (7, 1_700_000_000_000, 0, b"k", b"v", ["a"], [b"1"], 5, 0, 3, False, None)

NUMBERS = {INT8: ">q", INT4: ">i", INT2: ">h", BOOL: ">?"}
POSTGRES_EPOCH_MS = 946_684_800_000


def libpq() -> ctypes.CDLL:
    """The libpq that psycopg uses."""
    library = ctypes.CDLL(str(sys.modules[PGresult.__module__].__file__))
    library.PQsetvalue.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    library.PQsetvalue.restype = ctypes.c_int
    return library


def stored_row(**columns: object) -> tuple[object, ...]:
    """A good row but for these columns."""
    return tuple(columns.get(name, good) for (name, _), good in zip(COLUMN_TYPES, GOOD_ROW, strict=True))


@cache
def _nowhere() -> PGconn:
    """A connection that failed: enough to make results of."""
    return PGconn.connect(b"host=/nonexistent")


def message_rows(rows: Sequence[Sequence[object]]) -> AnyResult:
    """A result with these rows; times in milliseconds."""
    result = _nowhere().make_empty_result(ExecStatus.TUPLES_OK)
    result.set_attributes(
        [PGresAttDesc(name.encode(), 0, 0, BINARY, oid, -1, -1) for name, oid in COLUMN_TYPES]  # type: ignore[list-item]
    )
    set_value = libpq().PQsetvalue
    for number, row in enumerate(rows):
        for place, (value, (_, oid)) in enumerate(zip(row, COLUMN_TYPES, strict=True)):
            sent = binary(value, oid)
            assert set_value(result.pgresult_ptr, number, place, sent, -1 if sent is None else len(sent))
    return result


def binary(value: object, oid: int) -> bytes | None:
    """A value in PostgreSQL's binary form."""
    if value is None:
        return None
    if oid == TIMESTAMPTZ and isinstance(value, int):
        return struct.pack(">q", (value - POSTGRES_EPOCH_MS) * 1000)
    if isinstance(value, (list, tuple)):
        element = TEXT if oid == TEXT_ARRAY else BYTEA
        if not value:
            return struct.pack(">iiI", 0, 0, element)
        data = struct.pack(">iiIii", 1, None in value, element, len(value), 1)
        for each in value:
            content = each.encode() if isinstance(each, str) else each
            data += struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
        return data
    if isinstance(value, bytes):  # a bytea, or what a test makes of another type
        return value
    return struct.pack(NUMBERS[oid], value)
