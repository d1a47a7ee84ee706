"""The limit: the rows the gateway would write, made beforehand and sent to PostgreSQL by plain binary COPY.

One connection, a commit per ~10,000 rows, the same table, columns and index.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle, islice

import psycopg
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from benchmarks.workload import Shape, payloads
from gateway.protocol.batches import COPY_HEADER, COPY_TRAILER, BatchLimits, copy_rows, decode_produced
from gateway.storage.statements import statement

__all__ = ["prepare_rows", "time_copy"]

ROWS_PER_COMMIT = 10_000
_LIMITS = BatchLimits(max_batch_bytes=1 << 30, max_decompressed_bytes=1 << 30)
_PRODUCER_ID = 1000


def prepare_rows(shape: Shape, *, topic_id: int, records: int) -> list[bytes]:
    """The data of each COPY: per partition a run of rows, as a group commit has them."""
    return [
        b"".join(
            (
                COPY_HEADER,
                *(
                    _encode_run(shape, topic_id=topic_id, partition=partition, offsets=offsets)
                    for partition, offsets in runs
                ),
                COPY_TRAILER,
            )
        )
        for runs in _commits(shape.partitions, records)
    ]


def time_copy(database_url: str, data: list[bytes]) -> float:
    """Seconds from the first COPY to the last COMMIT."""
    with psycopg.connect(database_url, autocommit=True) as connection, connection.cursor() as cursor:
        started = time.perf_counter()
        for piece in data:
            with cursor.copy(statement("log/copy_messages")) as copy:
                copy.write(piece)
        return time.perf_counter() - started


def _commits(partitions: int, records: int) -> Iterator[list[tuple[int, range]]]:
    ends = [0] * partitions
    for first in range(0, records, ROWS_PER_COMMIT):
        rows = min(ROWS_PER_COMMIT, records - first)
        runs = []
        for partition in range(partitions):
            size = rows // partitions + (partition < rows % partitions)
            runs.append((partition, range(ends[partition], ends[partition] + size)))
            ends[partition] += size
        yield [(partition, offsets) for partition, offsets in runs if offsets]


def _encode_run(shape: Shape, *, topic_id: int, partition: int, offsets: range) -> bytes:
    """By the gateway's own encoder, so that these are its rows whatever the columns become."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=_PRODUCER_ID,
        producer_epoch=0,
        base_sequence=offsets.start,
        batch_size=1 << 30,
    )
    now_ms = int(time.time() * 1000)
    for index, value in enumerate(islice(cycle(payloads(shape.record_bytes)), len(offsets))):
        builder.append(index, now_ms, None, value, [])
    batch = decode_produced(bytes(builder.build()), _LIMITS)
    return copy_rows(batch, topic_id=topic_id, partition=partition, base_offset=offsets.start, log_append_time_ms=None)
