"""Reading cuts over JDBC: the rows of a read_committed consumer, the same for ever, by the primary key."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Self

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from gateway.pipeline import (
    Cut,
    OffsetsUnavailable,
    PipelineError,
    UnknownTopics,
    fix_cut,
    read_as_of,
    read_cut,
    read_topic,
    with_json,
    with_text,
)
from gateway.pipeline.reading import COLUMNS, TABLE, _fetch_rows, range_predicate
from gateway.pipeline.source import read_range
from tests.pipeline.conftest import WAIT_S, Record, as_records

PARTITIONS = 3


def test_columns_types_nulls_and_headers_survive(spark, new_topic, produce) -> None:
    topic = new_topic()
    headers = [("a", b"1"), ("a", None), ("b", b"\xff\x00")]
    produce(topic, [(b"k\x00", b"\xfe"), (None, None), (b"", b"")], timestamp_ms=1_700_000_000_123, headers=headers)
    rows = read_topic(spark, topic).orderBy("offset").collect()
    assert rows[0].__fields__ == list(COLUMNS)
    assert [(row.key, row.value) for row in rows] == [(b"k\x00", b"\xfe"), (None, None), (b"", b"")]
    assert {row.topic for row in rows} == {topic}
    assert [row.offset for row in rows] == [0, 1, 2]
    assert {row.timestamp.replace(tzinfo=UTC) for row in rows} == {datetime.fromtimestamp(1_700_000_000.123, UTC)}
    assert rows[0].headers == (
        '[{"name": "a", "value": "1"}, {"name": "a", "value": null}, {"name": "b", "value": "\\\\377\\\\000"}]'
    )


def test_a_binary_key_can_be_filtered_by(spark, new_topic, produce) -> None:
    topic = new_topic()
    produce(topic, [(f"k{number}".encode(), b"v") for number in range(5)])
    assert read_topic(spark, topic).where("key = binary('k3')").select("offset").collect() == [(3,)]


def test_filters_and_columns_reach_the_database(spark, new_topic, produce, capsys) -> None:
    topic = new_topic()
    produce(topic, [b"v"] * 3)
    rows = read_topic(spark, topic, columns=["offset", "timestamp"])
    assert rows.columns == ["offset", "timestamp"]
    rows.where("offset > 1 AND timestamp > '2020-01-01'").explain("formatted")
    plan = capsys.readouterr().out
    assert "GreaterThan(offset,1)" in plan
    assert "GreaterThan(timestamp,2020-01-01" in plan
    assert "ReadSchema: struct<offset:bigint,timestamp:timestamp>" in plan
    assert rows.where("offset > 1").count() == 1


@pytest.mark.parametrize("kept", ["headers LIKE '%\"yes\"%'", "headers <> '[]' AND topic LIKE 'pipe%'"])
def test_headers_are_text_to_filters(spark, new_topic, produce, kept: str) -> None:
    topic = new_topic()
    produce(topic, [b"with"], headers=[("x", b"yes")])
    produce(topic, [b"without"])
    assert [bytes(row.value) for row in read_topic(spark, topic).where(kept).collect()] == [b"with"]


def test_large_partitions_are_read_by_several_tasks(spark, new_topic, produce) -> None:
    topic = new_topic(2)
    produce(topic, [b"v"] * 100)
    produce(topic, [b"v"] * 10, partition=1)
    rows = read_topic(spark, topic, rows_per_task=30)
    assert rows.rdd.getNumPartitions() == 5
    assert sorted(rows.rdd.mapPartitions(lambda part: [sum(1 for _ in part)]).collect()) == [10, 25, 25, 25, 25]
    assert read_topic(spark, topic, start="latest").count() == 0


def test_of_large_rows_a_task_holds_few_at_a_time(new_topic, produce, connection) -> None:
    small, large = new_topic(), new_topic()
    produce(small, [b"v"] * 100)
    produce(large, [os.urandom(100_000) for _ in range(20)])
    assert _fetch_rows(connection, fix_cut(connection, small)) > 1_000
    assert 100 < _fetch_rows(connection, fix_cut(connection, [small, large])) < 200


def test_a_task_reads_by_the_primary_key_of_its_topics_table_only(spark, new_topic, produce, connection) -> None:
    topic = new_topic(2)
    produce(topic, [b"v"] * 50)
    connection.execute("ANALYZE kafka.messages")
    [first, _] = fix_cut(connection, topic, start={topic: {0: 20}}).ranges
    plan = "\n".join(
        row[0] for row in connection.execute(f"EXPLAIN SELECT * FROM {TABLE} WHERE {range_predicate(first)}").fetchall()
    )
    tables = [line for line in plan.splitlines() if " on messages_" in line]
    assert len(tables) == 1, plan
    assert f"messages_{first.topic_id}_pkey" in tables[0], plan
    assert '("offset" >= 20)' in plan


def test_two_reads_of_one_cut_are_equal_whatever_is_produced_in_between(spark, new_topic, produce) -> None:
    topic = new_topic(2)
    produce(topic, [b"a", b"b"])
    cut = fix_cut(read_settings(spark), topic)
    before = as_records(read_cut(spark, cut))
    late = read_cut(spark, cut)
    produce(topic, [b"c"])
    produce(topic, [b"d"], partition=1)
    assert as_records(late) == before == as_records(read_cut(spark, Cut.from_json(cut.to_json())))
    assert as_records(read_as_of(spark, topic, cut)) == before == as_records(read_as_of(spark, topic, cut.to_json()))
    assert [one.value for one in as_records(read_topic(spark, topic, start=cut))] == [b"c", b"d"]


def test_a_topic_as_of_a_time(spark, new_topic, produce) -> None:
    topic = new_topic()
    for second in (10, 20, 30):
        produce(topic, [str(second).encode()], timestamp_ms=1_700_000_000_000 + second * 1000)
    at = datetime.fromtimestamp(1_700_000_020, UTC)
    assert [one.value for one in as_records(read_as_of(spark, topic, at))] == [b"10"]
    assert [one.value for one in as_records(read_topic(spark, topic, start=at))] == [b"20", b"30"]


def test_bad_input_is_refused_with_what_to_do(spark, new_topic, produce, connection) -> None:
    topic = new_topic()
    produce(topic, [b"v"] * 5)
    with pytest.raises(UnknownTopics, match="There is no topic"):
        read_topic(spark, "nobody.knows")
    with pytest.raises(PipelineError, match="There is no column size: choose from topic, partition"):
        read_topic(spark, topic, columns=["size"])
    with pytest.raises(PipelineError, match="rows_per_task must be at least 1"):
        read_topic(spark, topic, rows_per_task=0)
    cut = fix_cut(connection, topic)
    connection.execute("UPDATE kafka.partitions SET log_start_offset = 3 WHERE topic_id = %s", [cut.ranges[0].topic_id])
    with pytest.raises(OffsetsUnavailable, match="deleted by retention since this cut was fixed"):
        read_cut(spark, cut)
    with pytest.raises(OffsetsUnavailable, match='start="earliest"'):
        read_topic(spark, topic, start={topic: {0: 1}})
    assert read_topic(spark, topic).count() == 2


def test_rows_that_are_deleted_before_they_are_read_are_an_error_and_no_gap(
    spark, new_topic, produce, bootstrap
) -> None:
    """A DataFrame is read when its rows are asked for, and again each time."""
    topic = new_topic(2)
    produce(topic, [b"v"] * 5)
    rows = read_topic(spark, topic)
    piece = fix_cut(read_settings(spark), topic).ranges[0]
    assert sum(batch.num_rows for batch in read_range(read_settings(spark), piece)) == rows.count() == 5
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, 3)
    admin.delete_records([place])[place].result(WAIT_S)
    said = f"Offsets from 0 of partition 0 of topic {topic} were deleted since this cut was fixed"
    with pytest.raises(Exception, match=said):
        rows.where("value = binary('none of them')").collect()
    with pytest.raises(PipelineError, match=said):
        list(read_range(read_settings(spark), piece))


def test_text_and_json_values_become_columns(spark, new_topic, produce) -> None:
    topic = new_topic()
    produce(topic, [(b"a", b'{"id": 1, "name": "one"}'), (b"b", b'{"id": 2}'), (b"c", None)])
    rows = with_json(
        with_text(read_topic(spark, topic, columns=["offset", "topic", "partition", "key", "value"])),
        "id long, name string",
    )
    assert sorted((row.key, row.id, row.name) for row in rows.collect()) == [
        ("a", 1, "one"),
        ("b", 2, None),
        ("c", None, None),
    ]


@pytest.mark.parametrize("value", [b"not json", b"[1]", b'{"id": "x"}', b"", b'{"id": 1', b"\xff", b"7"])
def test_a_value_that_is_not_json_fails_or_goes_where_it_was_told_to(spark, new_topic, produce, value: bytes) -> None:
    topic = new_topic()
    produce(topic, [b'{"id": 1}', value])
    rows = read_topic(spark, topic)
    with pytest.raises(Exception, match=f"at offset 1 of partition 0 of topic {topic} is not JSON"):
        with_json(rows, "id long").collect()
    assert [row.id for row in with_json(rows, "id long", bad="null").orderBy("offset").collect()] == [1, None]
    found = with_json(rows, "id long", bad="column").orderBy("offset").collect()
    assert [row.id for row in found] == [1, None]
    assert found[0].bad_value is None
    assert found[1].bad_value is not None


def test_a_schema_that_cannot_be_used_is_refused(spark, new_topic, produce) -> None:
    rows = read_topic(spark, new_topic())
    with pytest.raises(PipelineError, match="The rows have a column offset already"):
        with_json(rows, "offset long")
    with pytest.raises(PipelineError, match='bad is "fail", "null" or "column"'):
        with_json(rows, "id long", bad="skip")  # type: ignore[arg-type]


class Load:
    """Transactional and plain producers in threads; transactions write the same number of records to each partition."""

    def __init__(self, bootstrap: str, topic: str, *, transactional: int = 3) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._is_over = threading.Event()
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._transact, number)) for number in range(transactional)
        ]
        self._threads.append(threading.Thread(target=self._guarded, args=(self._write, 0)))
        self._open: confluent_kafka.Producer | None = None

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not self.failures, self.failures

    def _guarded(self, work, number: int) -> None:
        try:
            work(number)
        except BaseException as failure:
            self.failures.append(failure)
            raise

    def _transact(self, number: int) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0}
        )
        producer.init_transactions(WAIT_S)
        round_number = 0
        while not self._is_over.is_set():
            round_number += 1
            producer.begin_transaction()
            name = f"{number}-{round_number}"
            for copy in range(1 + number):
                for partition in range(PARTITIONS):
                    producer.produce(self._topic, f"{copy}", name, partition)
                # In several requests, so that transactions interleave.
                producer.flush(WAIT_S)
            if round_number % 4 == 3:
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
        # The last one stays open.
        producer.begin_transaction()
        producer.produce(self._topic, b"never", b"open", number % PARTITIONS)
        producer.flush(WAIT_S)
        self._open = producer

    def _write(self, _: int) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 1})
        number = 0
        while not self._is_over.is_set():
            producer.produce(self._topic, str(number), b"plain", number % PARTITIONS)
            number += 1
            if number % 10 == 0:
                producer.flush(WAIT_S)
        producer.flush(WAIT_S)


def read_settings(spark):
    from gateway.pipeline import database_of

    return database_of(spark)


def torn(records: list[Record]) -> dict[bytes, Counter[int]]:
    """Transactions of which some partition has not all that was written to it."""
    copies: dict[bytes, Counter[int]] = defaultdict(Counter)
    for one in records:
        if one.key is not None and one.key not in (b"plain", b"open"):
            copies[one.key][one.partition] += 1
    return {
        key: counts
        for key, counts in copies.items()
        if [counts[partition] for partition in range(PARTITIONS)] != [1 + int(key.split(b"-")[0])] * PARTITIONS
    }


def test_under_load_cuts_are_whole_equal_and_what_a_consumer_of_committed_records_sees(
    spark, new_topic, bootstrap, consume, gateway, tmp_path
) -> None:
    topic = new_topic(PARTITIONS)
    database = read_settings(spark)
    cuts: list[Cut] = []
    first_reads = []
    with Load(bootstrap, topic):
        while len(cuts) < 8 or sum(cut.size for cut in cuts) < 500:
            cuts.append(fix_cut(database, topic, start=cuts[-1] if cuts else "earliest"))
            first_reads.append(as_records(read_cut(spark, cuts[-1], rows_per_task=50)))
    for cut, records in zip(cuts, first_reads, strict=True):
        assert as_records(read_cut(spark, cut)) == records, "a cut read later has the same rows"
        assert not torn(records), "each transaction is in one cut, in all its partitions"
    assert sum(bool(records) for records in first_reads) > 2

    consumed = [one for partition in range(PARTITIONS) for one in consume(topic, partition)]
    ends = cuts[-1].ends
    read = sorted(one for records in first_reads for one in records)
    assert read == [one for one in consumed if one.offset < ends[topic, one.partition]]
    assert not [one for one in consumed if one.key == b"open" or one.key.endswith(b"-3")]

    batches: list[list[Record]] = []
    stream = spark.readStream.format("tablewire").option("topics", topic).option("maxRowsPerBatch", 1000).load()
    query = (
        stream.writeStream.foreachBatch(lambda rows, _: batches.append(as_records(rows)))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert not [torn(records) for records in batches if torn(records)], "nor does a stream tear one apart"
    ends = fix_cut(database, topic).ends
    streamed = sorted(one for records in batches for one in records)
    assert streamed == [one for one in consumed if one.offset < ends[topic, one.partition]]
