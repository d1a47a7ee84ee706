from collections.abc import Sequence
from typing import Final

from gateway.protocol.transcoder import BatchFields, Scan, StoredRows

IS_COMPILED: Final = True

def scan_records(records: bytes | memoryview, *, count: int, base_timestamp: int, max_elements: int) -> Scan: ...
def read_batch(
    records: bytes, *, max_batch_bytes: int, max_plain_bytes: int, max_elements: int
) -> BatchFields | None: ...
def find_headers(scan: Scan, names: tuple[bytes, ...]) -> list[tuple[bytes | None, ...]]: ...
def select_records(scan: Scan, places: Sequence[int]) -> Scan: ...
def write_rows(
    scan: Scan,
    template: bytes,
    *,
    offset_at: int,
    timestamp_at: int,
    sequence_at: int,
    base_offset: int,
    base_sequence: int,
    append_time_ms: int | None,
) -> bytes: ...
def encode_rows(rows: StoredRows, *, leader_epoch: int) -> bytes: ...
