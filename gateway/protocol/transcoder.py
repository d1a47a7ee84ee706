"""Records to rows and back: by compiled code where it was built, else by Python. Both read and write the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from gateway.protocol import plain_transcoder
from gateway.protocol.row_batches import RowRange

__all__ = ["BatchFields", "Scan", "StoredRows", "Transcoder", "implementation"]


class Scan(Protocol):
    """The records of one batch, proven readable."""

    @property
    def min_timestamp(self) -> int:
        """Of the records that have one, else -1."""

    @property
    def max_timestamp(self) -> int:
        """-1 if no record has one."""

    @property
    def lacks_key(self) -> bool:
        """Whether a record has no key."""


BatchFields: TypeAlias = tuple[bytes, int, int, int, int, int, int, Scan, bool, bool]


class StoredRows(Protocol):
    """Rows of one partition in offset order as the database sent them: the columns of sql/log/read_messages.sql."""

    @property
    def count(self) -> int: ...

    @property
    def address(self) -> int:
        """Of libpq's result, all of it in binary form; 0 where it cannot be reached."""

    @property
    def functions(self) -> tuple[int, int, int]:
        """Where PQgetvalue, PQgetlength and PQgetisnull are."""

    def columns(self) -> RowRange:
        """The same as Python's objects."""


class Transcoder(Protocol):
    """What both modules offer."""

    IS_COMPILED: bool

    def scan_records(self, records: bytes | memoryview, *, count: int, base_timestamp: int, max_elements: int) -> Scan:
        """Read all of `count` records strictly, as Kafka does; refuses what is wrong, and what a row cannot hold."""

    def read_batch(
        self, records: bytes, *, max_batch_bytes: int, max_plain_bytes: int, max_elements: int
    ) -> BatchFields | None:
        """The fields of `batches.ProducedBatch`; None where the batch is compressed, or its header is not as it should
        be, so that a closer look must tell."""

    def find_headers(self, scan: Scan, names: tuple[bytes, ...]) -> list[tuple[bytes | None, ...]]:
        """For each record, the value of the last header of each name; None where there is none."""

    def select_records(self, scan: Scan, places: Sequence[int]) -> Scan:
        """Only the records at these places, which grow."""

    def write_rows(
        self,
        scan: Scan,
        template: bytes,
        *,
        offset_at: int,
        timestamp_at: int,
        sequence_at: int,
        base_offset: int,
        base_sequence: int,
        append_time_ms: int | None,
    ) -> bytes:
        """The records as COPY BINARY tuples: each the template with offset, timestamp and sequence set, then key, value
        and headers. `sequence_at` is -1 where rows have no sequence."""

    def encode_rows(self, rows: StoredRows, *, leader_epoch: int) -> bytes:
        """The rows as uncompressed batches, as few as their producers, timestamps and markers allow."""


def _chosen() -> Transcoder:
    try:
        from gateway.protocol import _transcoder
    except ImportError:
        return plain_transcoder
    return _transcoder


implementation: Transcoder = _chosen()
