"""How psycopg reads what its own loaders cannot hold."""

from __future__ import annotations

from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

__all__ = ["TimestampMsLoader"]

POSTGRES_EPOCH_MS = 946_684_800_000
MICROSECOND_BIAS = POSTGRES_EPOCH_MS * 1000


class TimestampMsLoader(Loader):
    """timestamptz as milliseconds since 1970: exact over PostgreSQL's whole range, unlike `datetime`."""

    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        return (int.from_bytes(data, "big", signed=True) + MICROSECOND_BIAS) // 1000
