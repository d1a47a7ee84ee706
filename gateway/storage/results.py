"""Rows of `messages` as psycopg received them: read in place by compiled code, or as Python's objects."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from operator import itemgetter

import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import PGresult
from psycopg.pq.abc import PGresult as AnyResult

from gateway.protocol.row_batches import RowRange
from gateway.storage.loaders import TimestampMsLoader

__all__ = ["ResultRows"]

OFFSET_COLUMN = 0


class _Context:
    """How values are read where there is no connection to ask."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        self.adapters.register_loader("timestamptz", TimestampMsLoader)


_CONTEXT = _Context()


@cache
def _libpq_functions() -> tuple[int, int, int] | None:
    """Where PQgetvalue, PQgetlength and PQgetisnull of psycopg's own libpq are; None where they cannot be told.

    The loader looks for a name in a library and in what it was linked with: psycopg's compiled module, and its libpq.
    """
    try:
        library = ctypes.CDLL(str(sys.modules[PGresult.__module__].__file__))
        found = [getattr(library, name) for name in ("PQgetvalue", "PQgetlength", "PQgetisnull")]
    except (OSError, AttributeError):  # psycopg without compiled parts
        return None
    value, length, is_null = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found)
    return value, length, is_null


class ResultRows:
    """The rows of sql/log/read_messages.sql."""

    def __init__(self, result: AnyResult) -> None:
        self._result = result
        self.count = result.ntuples
        functions = _libpq_functions()
        self.functions = functions or (0, 0, 0)
        self.address = 0 if functions is None else getattr(result, "pgresult_ptr", None) or 0

    @property
    def next_offset(self) -> int:
        """After the last of them."""
        return int.from_bytes(self._result.get_value(self.count - 1, OFFSET_COLUMN) or b"", "big") + 1

    def columns(self) -> RowRange:
        transformer = Transformer(_CONTEXT)
        transformer.set_pgresult(self._result)
        rows = transformer.load_rows(0, self.count, tuple)
        columns = [list(map(itemgetter(place), rows)) for place in range(self._result.nfields)]
        offsets, timestamps, timestamp_types, keys, values, names, header_values, *producer = columns
        return RowRange(
            offsets=offsets,
            timestamps_ms=timestamps,
            timestamp_types=timestamp_types,
            keys=keys,
            values=values,
            header_names=[each and [name or "" for name in each] for each in names],
            header_values=header_values,
            producer_ids=producer[0],
            producer_epochs=producer[1],
            sequences=producer[2],
            is_transactional=producer[3],
            control_types=producer[4],
        )
