"""What a pipeline is made of: a job reads topics, makes rows of each batch, and gives them to sinks.

Everything here is a value; the runner does the work. Your own sink is a class with the three methods of `Sink`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gateway.domain.cuts import Cut
from gateway.pipeline.cuts import Bound
from gateway.pipeline.database import Connection, PipelineDatabase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OUTPUT", "Batch", "Job", "Rows", "Run", "Sink", "Transform"]

OUTPUT = "rows"
"""The name of a job's output that has only one."""

MAX_ROWS = 1_000_000


@dataclass(frozen=True)
class Run:
    """A runner's stay with a pipeline."""

    pipeline: str
    spark: SparkSession
    database: PipelineDatabase


@dataclass(frozen=True)
class Batch:
    """One try at the next batch of a pipeline. The same id may be tried several times; one of them is committed."""

    run: Run
    id: int
    cut: Cut
    attempt: str
    """Differs in every try, also after a crash: nothing of one try can be taken for another's."""

    @property
    def pipeline(self) -> str:
        return self.run.pipeline

    @property
    def spark(self) -> SparkSession:
        return self.run.spark

    @property
    def database(self) -> PipelineDatabase:
        return self.run.database


class Sink(Protocol):
    """Where rows of a batch go: staged by executors where nobody looks, then made visible in the batch's transaction.

    A crash may come after any line. What `commit` writes through the connection it is given becomes true together
    with the position, or not at all; what `stage` writes elsewhere must not count until `commit` says so.
    """

    def prepare(self, run: Run, output: str, connection: Connection) -> None:
        """Before any work, in a transaction that holds the pipeline: refuse a target that cannot be used (raise
        PipelineError), and remove what killed runs have left."""

    def stage(self, batch: Batch, output: str, rows: DataFrame) -> Any:
        """Have the executors write the rows; returns what the methods below are given."""

    def commit(self, batch: Batch, connection: Connection, staged: Any) -> int:
        """Inside the batch's transaction: make the rows visible; returns how many."""


Rows = "DataFrame | Mapping[str, DataFrame]"
Transform = Callable[["DataFrame", Batch], "DataFrame | Mapping[str, DataFrame]"]
"""From a batch's records to rows: one DataFrame, or one for each of the job's sinks by name."""


@dataclass(frozen=True)
class Job:
    """What to read, what to make of it, and where to put it."""

    name: str
    topics: Sequence[str]
    transform: Transform
    sinks: Mapping[str, Sink] | Sink
    columns: Sequence[str] | None = None
    start: Bound = "earliest"
    """Where the first batch starts in a topic that the pipeline has not read yet."""
    max_rows: int = MAX_ROWS
    """At most this many offsets make up a batch: what is behind is worked off in pieces of this size."""

    @property
    def outputs(self) -> Mapping[str, Sink]:
        return self.sinks if isinstance(self.sinks, Mapping) else {OUTPUT: self.sinks}
