"""The sink for Parquet: files of a batch count when the manifest, a row per file, is committed with the position.

Readers go by the manifest (`read_files`, kafka.output_files), so files of a run that was killed are never seen.
They are removed when the pipeline runs again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.errors import PipelineError
from gateway.pipeline.database import Connection, connected
from gateway.pipeline.job import Batch, Run
from gateway.pipeline.session import database_of
from gateway.pipeline.staging import StagingLost
from gateway.storage.statements import statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["StagedFiles", "WriteParquet", "read_files"]


@dataclass(frozen=True)
class StagedFiles:
    """Files of one batch that nobody knows of yet."""

    output: str
    rows: int
    sizes: dict[str, int]
    """Bytes by path."""


@dataclass(frozen=True)
class WriteParquet:
    """Writes a directory of files per batch below `path`, which all executors must reach: a shared or object store on
    a cluster."""

    path: str
    files_per_batch: int | None = None
    """At most this many; None: one per task."""

    def prepare(self, run: Run, output: str, connection: Connection) -> None:
        files = _Files(run.spark, self.path)
        parameters = {"pipeline": run.pipeline, "output": output}
        counted = [path for (path,) in connection.execute(statement("pipeline/load_files"), parameters).fetchall()]
        parents = {path.rstrip("/").rsplit("/", 1)[0].rsplit("/", 1)[-1] for path in counted}
        for name in files.directories(_prefix(run.pipeline, output)):
            if name not in parents:
                files.remove(name)

    def stage(self, batch: Batch, output: str, rows: DataFrame) -> StagedFiles:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        name = f"{_prefix(batch.pipeline, output)}{batch.id:012d}-{batch.attempt}"
        counted = Observation()
        observed = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
        if self.files_per_batch is not None:
            observed = observed.coalesce(self.files_per_batch)
        observed.write.parquet(f"{self.path.rstrip('/')}/{name}")
        return StagedFiles(output, int(counted.get["rows"]), _Files(batch.spark, self.path).sizes(name))

    def commit(self, batch: Batch, connection: Connection, staged: StagedFiles) -> int:
        files = _Files(batch.spark, self.path)
        if lost := [path for path in staged.sizes if not files.exists(path)]:
            raise StagingLost(f"The file {lost[0]} is gone: another runner of the pipeline has begun and removed it.")
        parameters: dict[str, Any] = {
            "pipeline": batch.pipeline,
            "output": staged.output,
            "batch_id": batch.id,
            "paths": list(staged.sizes),
            "sizes": list(staged.sizes.values()),
        }
        connection.execute(statement("pipeline/forget_files"), parameters)
        connection.execute(statement("pipeline/insert_files"), parameters)
        return staged.rows


def read_files(spark: SparkSession, pipeline: str, output: str | None = None) -> DataFrame:
    """The rows that a pipeline has committed to Parquet: the files of its manifest, and no others."""
    with connected(database_of(spark)) as connection:
        parameters = {"pipeline": pipeline, "output": output}
        paths = [path for (path,) in connection.execute(statement("pipeline/load_files"), parameters).fetchall()]
    if not paths:
        raise PipelineError(f"Pipeline {pipeline} has committed no files yet: run it first, or check its name.")
    return spark.read.parquet(*paths)


class _Files:
    """A directory on whatever file system Spark knows: local, HDFS, an object store."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - the only way to Hadoop's file systems from Python
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._root = self._path_class(path)
        self._system = self._root.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001

    def directories(self, prefix: str) -> list[str]:
        if not self._system.exists(self._root):
            return []
        entries = self._system.listStatus(self._root)
        return [one.getPath().getName() for one in entries if one.getPath().getName().startswith(prefix)]

    def remove(self, name: str) -> None:
        self._system.delete(self._path_class(self._root, name), True)

    def sizes(self, name: str) -> dict[str, int]:
        found = {}
        entries = self._system.listFiles(self._path_class(self._root, name), True)
        while entries.hasNext():
            entry = entries.next()
            if entry.getPath().getName()[0] not in "._":
                found[str(entry.getPath().toString())] = int(entry.getLen())
        return found

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path_class(path)))


def _prefix(pipeline: str, output: str) -> str:
    """Pipelines may share a directory: each knows its own by this."""
    return f"batch-{hashlib.sha256(f'{pipeline}/{output}'.encode()).hexdigest()[:12]}-"
