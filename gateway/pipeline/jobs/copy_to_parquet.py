"""Copy topics to Parquet files, every committed record once."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.pipeline.job import Job
from gateway.pipeline.sinks import WriteParquet

__all__ = ["make_job"]


def make_job(topics: Sequence[str], *, path: str, files_per_batch: int | None = None) -> Job:
    """All columns of the records, in Parquet files below a directory; kafka.output_files says which count."""
    return Job(
        name="copy-to-parquet",
        topics=topics,
        transform=lambda records, _: records,
        sinks=WriteParquet(path, files_per_batch=None if files_per_batch is None else int(files_per_batch)),
    )
