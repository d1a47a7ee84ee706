"""Spark's own Kafka connector through the gateway: batch and streaming, both ways, committed records only."""

from __future__ import annotations

import json
import uuid

import confluent_kafka
import pytest

from gateway.pipeline import read_topic
from tests.pipeline.conftest import WAIT_S, as_records
from tests.support.spark import ConnectorMissing


@pytest.fixture(autouse=True)
def has_connector(connector, spark) -> None:
    if isinstance(connector, ConnectorMissing):
        pytest.skip(str(connector))


@pytest.fixture
def options(bootstrap: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"}


def write_transactions(bootstrap: str, topic: str) -> None:
    """Committed and aborted ones, in two partitions."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(WAIT_S)
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, f"v{number}", f"k{number}", partition)
        producer.flush(WAIT_S)
        if number % 3 == 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)


def test_a_batch_read_has_the_records_of_the_jdbc_read(spark, bootstrap, options, new_topic, produce) -> None:
    topic = new_topic(2)
    produce(topic, [(b"k", b"v"), (None, None), (b"", b"")])
    write_transactions(bootstrap, topic)
    by_connector = spark.read.format("kafka").options(**options, subscribe=topic).load()
    records = as_records(by_connector)
    assert records == as_records(read_topic(spark, topic))
    assert {one.value for one in records if one.key and one.key.startswith(b"k")} == {b"v", b"v0", b"v1", b"v3", b"v4"}
    some = {**options, "subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1, "1": 0}})}
    some["endingOffsets"] = json.dumps({topic: {"0": 3, "1": 1}})
    read = [(one.partition, one.offset) for one in as_records(spark.read.format("kafka").options(**some).load())]
    assert read == [(0, 1), (0, 2), (1, 0)]


def test_a_stream_reads_committed_records_once_and_goes_on_from_its_checkpoint(
    spark, bootstrap, options, new_topic, produce, tmp_path
) -> None:
    topic, copy = new_topic(2), new_topic()
    write_transactions(bootstrap, topic)

    def run() -> None:
        rows = spark.readStream.format("kafka").options(**options, subscribe=topic, startingOffsets="earliest").load()
        query = (
            rows.select("key", "value")
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": bootstrap}, topic=copy, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    produce(topic, [(b"later", b"one")])
    run()
    wanted = sorted((one.key, one.value) for one in as_records(read_topic(spark, topic)))
    assert sorted((one.key, one.value) for one in as_records(read_topic(spark, copy))) == wanted
    assert len(wanted) == 9


def test_a_batch_write_becomes_rows(spark, bootstrap, new_topic) -> None:
    topic = new_topic()
    rows = spark.range(50).selectExpr("CAST(id AS STRING) AS key", "CAST(id * 2 AS STRING) AS value")
    rows.write.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap}, topic=topic).save()
    read = {(int(one.key), int(one.value)) for one in as_records(read_topic(spark, topic))}
    assert read == {(number, number * 2) for number in range(50)}
