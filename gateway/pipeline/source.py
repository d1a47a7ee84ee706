"""`spark.readStream.format("tablewire")` and `spark.read.format("tablewire")`: committed records as Arrow batches.

Spark keeps the offsets, in its checkpoint; a batch is a cut, so reading it again gives the same rows. The database's
address is part of the class that a session registers, never an option: options are printed and saved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from gateway.domain.cuts import Cut, PartitionRange, split_ranges
from gateway.errors import PipelineError
from gateway.pipeline.cuts import Bound, check_cut, fix_cut, load_logs
from gateway.pipeline.database import PipelineDatabase
from gateway.pipeline.reading import range_predicate
from gateway.storage.statements import statement

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["FORMAT", "TablewireSource", "source_of"]

FORMAT = "tablewire"
SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, headers string, "
    "producer_id bigint"
)
ROWS_PER_TASK = 250_000
BATCH_BYTES = 4 * 1024 * 1024
"""What a task holds at a time, roughly; a record larger than that is a batch of its own."""

OPTIONS = {
    "topics": "names, separated by commas",
    "startingoffsets": 'earliest, latest, or JSON as in {"orders": {"0": 23}}',
    "endingoffsets": "for a batch read: latest, earliest, or JSON",
    "maxrowsperbatch": "how many rows a micro-batch takes at most; by default all there are",
    "rowspertask": "how many offsets one task reads at most",
    "path": "unused: what Spark calls the argument of load()",
}

Position = dict[str, Any]
"""As Spark saves it: {topic: {"id": 1, "uuid": "…", "offsets": {"0": 23}}}."""


def source_of(database: PipelineDatabase) -> type[TablewireSource]:
    """The source of one database, to be registered with a session."""

    class Tablewire(TablewireSource):
        given = database

    return Tablewire


class TablewireSource(DataSource):
    """Options: see OPTIONS. Without a database of its own it takes that of the settings, wherever it runs."""

    given: ClassVar[PipelineDatabase | None] = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._database(), Options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(self._database(), Options(self.options))

    def _database(self) -> PipelineDatabase:
        return PipelineDatabase.from_settings() if self.given is None else self.given


class Options:
    """Checked options: one that is unknown or makes no sense is refused when the read is set up."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        if unknown := sorted(set(given) - set(OPTIONS)):
            raise PipelineError(f"There is no option {unknown[0]}: {FORMAT} takes {', '.join(OPTIONS)}.")
        self.topics = [name.strip() for name in given.get("topics", "").split(",") if name.strip()]
        if not self.topics:
            raise PipelineError('No topic is named: say .option("topics", "orders,payments").')
        self.start = _bound("startingOffsets", given.get("startingoffsets", "earliest"))
        self.end = _bound("endingOffsets", given.get("endingoffsets", "latest"))
        self.max_rows = _count("maxRowsPerBatch", given.get("maxrowsperbatch"))
        self.rows_per_task = _count("rowsPerTask", given.get("rowspertask")) or ROWS_PER_TASK


class Piece(InputPartition):
    """What one task reads."""

    def __init__(self, piece: PartitionRange) -> None:
        super().__init__(piece)
        self.piece = piece


class _Reader:
    """What runs in tasks: only the database and the piece are needed there."""

    def __init__(self, database: PipelineDatabase, options: Options) -> None:
        self._database = database
        self._options = options

    def _pieces(self, cut: Cut) -> list[Piece]:
        check_cut(self._database, cut)
        return [Piece(piece) for piece in split_ranges(cut.ranges, self._options.rows_per_task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark asks for one empty partition where there are none.
        return read_range(self._database, partition.piece) if isinstance(partition, Piece) else iter(())


class BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        return self._pieces(fix_cut(self._database, options.topics, start=options.start, end=options.end))


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark calls it in a process of its own beside the driver, except for `read`."""

    _target: Cut | None = None

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's name, as are those below
        start = fix_cut(self._database, self._options.topics, start=self._options.start)
        return _position(start, start.starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end: Bound = "latest" if self._target is None else self._target
        cut = fix_cut(self._database, self._options.topics, start=_cut(start, start, {}), end=end, max_rows=max_rows)
        return _position(cut, cut.ends)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is committed from here on is left to the next run."""
        self._target = fix_cut(self._database, self._options.topics)

    def reportLatestOffset(self) -> Position:  # noqa: N802
        ends = fix_cut(self._database, self._options.topics, start="latest")
        return _position(ends, ends.ends)

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        return self._pieces(_cut(start, end, self._first_offsets(start, end)))

    def _first_offsets(self, start: Position, end: Position) -> dict[tuple[str, int], int]:
        """Of partitions that are in the end only: those of a topic that was added, or that has grown."""
        new = [name for name, topic in end.items() if topic["offsets"].keys() != _known(start, name).keys()]
        if not new:
            return {}
        with self._database.connect() as connection:
            return {log.place: log.log_start for log in load_logs(connection, new)}


def read_range(database: PipelineDatabase, piece: PartitionRange) -> Iterator[pa.RecordBatch]:
    """The committed records of a range, as they arrive: PostgreSQL's binary COPY becomes Arrow in compiled code."""
    import adbc_driver_manager
    import adbc_driver_postgresql
    import adbc_driver_postgresql.dbapi
    import pyarrow as pa

    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.string()),
            ("producer_id", pa.int64()),
        ]
    )
    query = statement("pipeline/read_range").format(predicate=range_predicate(piece))
    hint = adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value
    try:
        with adbc_driver_postgresql.dbapi.connect(database.url) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{hint: str(BATCH_BYTES)})
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as failed:  # OSError: Arrow's
        reason = (str(failed).strip().splitlines() or ["it said nothing"])[0]
        raise PipelineError(
            f"Offsets {piece.start} to {piece.end} of partition {piece.partition} of topic {piece.topic} could not be "
            f"read: {reason}. Reading changes nothing: the query may be run again."
        ) from failed


def _position(cut: Cut, offsets: Mapping[tuple[str, int], int]) -> Position:
    position: Position = {}
    for one in cut.ranges:
        topic = position.setdefault(one.topic, {"id": one.topic_id, "uuid": one.topic_uuid, "offsets": {}})
        topic["offsets"][str(one.partition)] = offsets[one.place]
    return position


def _cut(start: Position, end: Position, first_offsets: Mapping[tuple[str, int], int]) -> Cut:
    """The ranges between two positions."""
    ranges = []
    for name, topic in end.items():
        known = _known(start, name)
        for number, high in topic["offsets"].items():
            low = known.get(number, first_offsets.get((name, int(number)), 0))
            ranges.append(PartitionRange(name, int(number), min(low, high), high, topic["id"], topic["uuid"]))
    return Cut(tuple(sorted(ranges)))


def _known(position: Position, topic: str) -> dict[str, int]:
    offsets: dict[str, int] = position.get(topic, {}).get("offsets", {})
    return offsets


def _bound(name: str, text: str) -> Bound:
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    try:
        given = json.loads(text)
        return {
            str(topic): {int(partition): int(offset) for partition, offset in offsets.items()}
            for topic, offsets in given.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise PipelineError(
            f'{name} is "earliest", "latest" or JSON as in {{"orders": {{"0": 23}}}}, not {text!r}.'
        ) from None


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise PipelineError(f"{name} must be a number of rows from 1 on, not {text!r}.")
    return int(text)
