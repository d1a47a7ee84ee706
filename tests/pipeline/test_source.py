"""The source `tablewire`: micro-batches with limits, restarts from checkpoints, the same batch again."""

from __future__ import annotations

import json
from pathlib import Path

import confluent_kafka
import pytest

from tests.pipeline.conftest import as_records


def stream(spark, topics: str, **options):
    return spark.readStream.format("tablewire").option("topics", topics).options(**options).load()


class Run:
    """A query that reads what there is into a table in memory or Parquet, batch by batch, and ends."""

    def __init__(self, spark, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self.batches: list[tuple[int, list[int]]] = []

    def __call__(self, rows, *, fails_at: int | None = None) -> None:
        def keep(batch, batch_id: int) -> None:
            values = sorted(row.offset for row in batch.select("offset").collect())
            self.batches.append((batch_id, values))
            if batch_id == fails_at:
                raise RuntimeError("as if the driver had died here")

        query = (
            rows.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def test_a_batch_read_has_the_rows_of_the_jdbc_read(spark, new_topic, produce) -> None:
    from gateway.pipeline import read_topic

    topic = new_topic(2)
    produce(topic, [(b"k", b"v"), (None, None), (b"", b"\xff")], headers=[("a", b"\x01"), ("b", None)])
    produce(topic, [b"x"] * 20, partition=1, timestamp_ms=1_700_000_000_123)
    by_source = spark.read.format("tablewire").option("topics", topic).option("rowsPerTask", 7).load()
    by_jdbc = read_topic(spark, topic)
    assert by_source.schema.simpleString() == by_jdbc.schema.simpleString()
    assert as_records(by_source) == as_records(by_jdbc)
    headers = "topic", "partition", "offset", "headers", "producer_id"
    assert by_source.select(*headers).exceptAll(by_jdbc.select(*headers)).count() == 0
    assert by_source.where("offset < 2").count() == 4


def test_batches_hold_at_most_what_is_asked_for_and_together_everything(spark, new_topic, produce, tmp_path) -> None:
    topic = new_topic()
    produce(topic, [b"v"] * 25)
    run = Run(spark, tmp_path)
    run(stream(spark, topic, maxRowsPerBatch=10))
    assert [len(values) for _, values in run.batches] == [10, 10, 5]
    assert [value for _, values in run.batches for value in values] == list(range(25))


def test_a_restart_goes_on_where_the_checkpoint_is(spark, new_topic, produce, tmp_path) -> None:
    topic = new_topic()
    produce(topic, [b"v"] * 4)
    run = Run(spark, tmp_path)
    run(stream(spark, topic))
    run(stream(spark, topic))
    produce(topic, [b"v"] * 3)
    run(stream(spark, topic))
    assert [values for _, values in run.batches if values] == [[0, 1, 2, 3], [4, 5, 6]]
    saved = json.loads(max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*")).read_text().splitlines()[-1])
    assert saved[topic]["offsets"] == {"0": 7}


def test_a_batch_that_failed_is_read_again_with_the_same_rows(spark, new_topic, produce, tmp_path) -> None:
    topic = new_topic()
    produce(topic, [b"v"] * 6)
    run = Run(spark, tmp_path)
    with pytest.raises(Exception, match="as if the driver had died"):
        run(stream(spark, topic, maxRowsPerBatch=4), fails_at=1)
    produce(topic, [b"v"] * 6)
    run(stream(spark, topic, maxRowsPerBatch=4))
    assert run.batches[:3] == [(0, [0, 1, 2, 3]), (1, [4, 5]), (1, [4, 5])]
    assert [value for _, values in run.batches[2:] for value in values] == list(range(4, 12))


def test_a_topic_that_grows_is_read_in_its_new_partitions_too(spark, new_topic, produce, bootstrap, tmp_path) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = new_topic()
    produce(topic, [b"v"] * 2)
    run = Run(spark, tmp_path)
    run(stream(spark, topic))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    # A new producer: the shared one learns of new partitions minutes later.
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for _ in range(3):
        producer.produce(topic, b"v", partition=1)
    assert producer.flush(30) == 0
    run(stream(spark, topic))
    assert [values for _, values in run.batches if values] == [[0, 1], [0, 1, 2]]


def test_streams_start_where_they_are_told_to(spark, new_topic, produce, tmp_path) -> None:
    topic = new_topic()
    produce(topic, [b"v"] * 5)
    run = Run(spark, tmp_path)
    run(stream(spark, topic, startingOffsets=json.dumps({topic: {"0": 3}})))
    assert [values for _, values in run.batches] == [[3, 4]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": ""}, "No topic is named"),
        ({"maxRowsPerBatch": "many"}, "maxRowsPerBatch must be a number of rows"),
        ({"startingOffsets": "yesterday"}, "startingOffsets is"),
        ({"maxRows": "5"}, "There is no option maxrows"),
        ({"topics": "nobody.knows"}, "There is no topic nobody.knows"),
    ],
)
def test_options_that_make_no_sense_are_refused(spark, new_topic, options: dict[str, str], said: str) -> None:
    chosen = {"topics": "any", **options}
    with pytest.raises(Exception, match=said):
        spark.read.format("tablewire").options(**chosen).load().count()


def test_what_retention_deleted_under_a_stream_ends_it(spark, new_topic, produce, connection, tmp_path) -> None:
    topic = new_topic()
    produce(topic, [b"v"] * 4)
    run = Run(spark, tmp_path)
    run(stream(spark, topic, maxRowsPerBatch=4))
    produce(topic, [b"v"] * 4)
    connection.execute(
        "UPDATE kafka.partitions p SET log_start_offset = 6 FROM kafka.topics t"
        " WHERE t.topic_id = p.topic_id AND t.name = %s",
        [topic],
    )
    with pytest.raises(Exception, match="was deleted by retention, the log starts at 6"):
        run(stream(spark, topic))
