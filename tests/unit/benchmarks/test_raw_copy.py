"""The rows of the limit are those that a gateway writes: every offset once, in order, for each partition."""

from __future__ import annotations

import struct
from collections import defaultdict

import pytest

from benchmarks.raw_copy import COMMIT_BYTES, prepare_rows
from benchmarks.workload import Shape
from gateway.protocol.copy_rows import COPY_COLUMNS, COPY_HEADER, COPY_TRAILER


def _rows(data: bytes) -> list[dict[str, bytes | None]]:
    assert data.startswith(COPY_HEADER)
    rows, position = [], len(COPY_HEADER)
    while data[position : position + 2] != COPY_TRAILER:
        (count,) = struct.unpack_from(">h", data, position)
        position += 2
        fields: list[bytes | None] = []
        for _ in range(count):
            (size,) = struct.unpack_from(">i", data, position)
            position += 4
            fields.append(None if size < 0 else data[position : position + size])
            position += max(size, 0)
        rows.append(dict(zip(COPY_COLUMNS, fields, strict=True)))
    assert position + 2 == len(data)
    return rows


@pytest.mark.parametrize("partitions", [1, 6])
def test_each_partition_has_its_offsets_without_gaps(partitions: int) -> None:
    records = COMMIT_BYTES // 100 + 7
    commits = prepare_rows(Shape(100, partitions), topic_id=3, records=records)
    assert len(commits) == 2
    offsets: dict[int, list[int]] = defaultdict(list)
    for row in (row for data in commits for row in _rows(data)):
        assert row["value"] is not None
        assert len(row["value"]) == 100
        assert row["key"] is None
        assert row["topic_id"] == struct.pack(">i", 3)
        offsets[int.from_bytes(row["partition"] or b"", "big")].append(int.from_bytes(row["offset"] or b"", "big"))
    assert sorted(offsets) == list(range(partitions))
    assert sum(map(len, offsets.values())) == records
    assert all(seen == list(range(len(seen))) for seen in offsets.values())
