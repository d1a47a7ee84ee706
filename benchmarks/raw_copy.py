"""The limit: the rows the gateway would write, made beforehand and sent to PostgreSQL by plain binary COPY.

One connection, a commit per megabyte of values, the same table, columns and index. And a fill: as many rows as are
asked for, as fast as they go in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice

import psycopg
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from benchmarks.workload import Shape, payloads
from gateway.protocol.batches import BatchLimits, ProducedBatch, decode_produced
from gateway.protocol.copy_rows import COPY_HEADER, COPY_TRAILER, copy_rows
from gateway.storage.statements import statement

__all__ = ["fill", "prepare_rows", "time_copy"]

COMMIT_BYTES = 1_000_000
"""Of values: 10,000 rows of 100 B, about 1,000 of 1 KiB."""
FILL_BATCH_ROWS = 10_000
FILL_ROWS_PER_COMMIT = 250_000
FILL_CONNECTIONS = 2
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
        for runs in _commits(shape, records)
    ]


def time_copy(database_url: str, data: list[bytes]) -> float:
    """Seconds from the first COPY to the last COMMIT."""
    with psycopg.connect(database_url, autocommit=True) as connection, connection.cursor() as cursor:
        started = time.perf_counter()
        for piece in data:
            with cursor.copy(statement("log/copy_messages")) as copy:
                copy.write(piece)
        return time.perf_counter() - started


def fill(database_url: str, shape: Shape, *, topic_id: int, offsets: range) -> None:
    """Rows of these offsets in each partition; the same records over and over."""
    records = _batch(shape, range(FILL_BATCH_ROWS))
    work = partial(_fill_partition, database_url, shape, records, topic_id, offsets)
    with ThreadPoolExecutor(FILL_CONNECTIONS) as pool:
        list(pool.map(work, range(shape.partitions)))


def _fill_partition(
    database_url: str, shape: Shape, records: ProducedBatch, topic_id: int, offsets: range, partition: int
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection, connection.cursor() as cursor:
        for first in range(offsets.start, offsets.stop, FILL_ROWS_PER_COMMIT):
            with cursor.copy(statement("log/copy_messages")) as copy:
                copy.write(COPY_HEADER)
                last = min(first + FILL_ROWS_PER_COMMIT, offsets.stop)
                for base in range(first, last, FILL_BATCH_ROWS):
                    rows = last - base
                    part = records if rows >= FILL_BATCH_ROWS else _batch(shape, range(rows))
                    place = {"topic_id": topic_id, "partition": partition, "base_offset": base}
                    copy.write(copy_rows(part, **place, log_append_time_ms=None))
                copy.write(COPY_TRAILER)


def _commits(shape: Shape, records: int) -> Iterator[list[tuple[int, range]]]:
    partitions = shape.partitions
    per_commit = COMMIT_BYTES // shape.record_bytes
    ends = [0] * partitions
    for first in range(0, records, per_commit):
        rows = min(per_commit, records - first)
        runs = []
        for partition in range(partitions):
            size = rows // partitions + (partition < rows % partitions)
            runs.append((partition, range(ends[partition], ends[partition] + size)))
            ends[partition] += size
        yield [(partition, offsets) for partition, offsets in runs if offsets]


def _encode_run(shape: Shape, *, topic_id: int, partition: int, offsets: range) -> bytes:
    """By the gateway's own encoder, so that these are its rows whatever the columns become."""
    batch = _batch(shape, offsets)
    return copy_rows(batch, topic_id=topic_id, partition=partition, base_offset=offsets.start, log_append_time_ms=None)


def _batch(shape: Shape, sequences: range) -> ProducedBatch:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=_PRODUCER_ID,
        producer_epoch=0,
        base_sequence=sequences.start,
        batch_size=1 << 30,
    )
    now_ms = int(time.time() * 1000)
    for index, value in enumerate(islice(cycle(payloads(shape.record_bytes)), len(sequences))):
        builder.append(index, now_ms, None, value, [])
    return decode_produced(bytes(builder.build()), _LIMITS)
