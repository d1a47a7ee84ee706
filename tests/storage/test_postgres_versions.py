"""Every PostgreSQL that is promised, as an ordinary role, and PgBouncer's transaction pooling: one walk through
what a gateway does, with real clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import psycopg
import pytest

from gateway.storage.migrations import schema_differences
from gateway.storage.schema import check_schema, migrate
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import HandmadeProducer, make_batch, stored_rows
from tests.support.kafka_clients import ConfluentKafka
from tests.support.postgres_server import Missing, find_postgres, running_pgbouncer, running_postgres
from tests.support.waiting import wait_for

WAIT_S = 30
BROKER, TOPIC, SET = 4, 2, 0
TOO_LARGE = 10
AT_ONCE = {"TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


@pytest.fixture(params=[15, 16, 17, 18])
def ordinary_database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database of that PostgreSQL, for its owner."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(running_postgres(find_postgres(request.param)))
        except Missing as missing:
            pytest.skip(str(missing))
        with psycopg.connect(url) as connection:
            assert connection.info.server_version // 10_000 == request.param
        yield url


def test_an_ordinary_role_migrates_and_serves(ordinary_database_url: str, tmp_path: Path) -> None:
    migrate(ordinary_database_url)
    check_schema(ordinary_database_url)
    assert schema_differences(ordinary_database_url) == []
    with GatewayProcess(ordinary_database_url, directory=tmp_path, settings=AT_ONCE) as gateway:
        walk_through(gateway.bootstrap, ordinary_database_url)


def test_a_gateway_works_through_pgbouncers_transaction_pooling(empty_database_url: str, tmp_path: Path) -> None:
    settings = {**AT_ONCE, "TABLEWIRE_PREPARED_STATEMENTS": "false", "TABLEWIRE_TAIL_CACHE_BYTES": "0"}
    with ExitStack() as stack:
        try:
            # Fewer than one gateway's connections, so that each of them meets every session.
            pooled_url = stack.enter_context(running_pgbouncer(empty_database_url, server_connections=3))
        except Missing as missing:
            pytest.skip(str(missing))
        migrate(pooled_url)
        gateway = stack.enter_context(GatewayProcess(pooled_url, directory=tmp_path, settings=settings))
        walk_through(gateway.bootstrap, empty_database_url)


def walk_through(bootstrap: str, database_url: str) -> None:
    """Topics, configs, idempotence, records, a transaction, a group; the topic is gone at the end."""
    with HandmadeProducer(bootstrap) as producer:
        topic = producer.create_topic("walk", partitions=2)
        write_each_batch_once(producer, topic)
        alter_configs(producer, topic)
        read_back(bootstrap, topic)
        assert [row.value for row in stored_rows(database_url, topic)] == [b"a", b"b", b"c", b"d"]
        write_in_transactions(bootstrap, topic)
        consume_in_a_group(bootstrap, topic)
        producer.call("DeleteTopics", 6, topics=[{"name": topic, "topic_id": None}], timeout_ms=10_000)
    wait_for(lambda: tables_of_topics(database_url), 0)


def write_each_batch_once(producer: HandmadeProducer, topic: str) -> None:
    code, producer_id, epoch = producer.init_producer_id()
    assert code == 0
    for sequence, values in ((0, [b"a", b"b"]), (2, [b"c"])):
        batch = make_batch(values, producer_id=producer_id, epoch=epoch, sequence=sequence)
        assert [producer.produce(topic, batch)[:2] for _ in range(3)] == [(0, sequence)] * 3
    assert producer.produce(topic, make_batch([b"d"]), partition=1)[:2] == (0, 0)


def alter_configs(producer: HandmadeProducer, topic: str) -> None:
    wishes = ((TOPIC, topic, "retention.ms", "-1"), (BROKER, "", "message.max.bytes", "1000"))
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": SET, "value": value}],
        }
        for kind, name, key, value in wishes
    ]
    answer = producer.call("IncrementalAlterConfigs", 1, resources=resources, validate_only=False)
    assert [one["error_code"] for one in answer["responses"]] == [0, 0]
    assert producer.produce(topic, make_batch([b"x" * 2_000])).code == TOO_LARGE
    broker = {"resource_type": BROKER, "resource_name": "", "configs": []}
    answer = producer.call("AlterConfigs", 2, resources=[broker], validate_only=False)
    assert answer["responses"][0]["error_code"] == 0


def read_back(bootstrap: str, topic: str) -> None:
    client = ConfluentKafka(bootstrap)
    assert [one.value for one in client.consume(topic, 3)] == [b"a", b"b", b"c"]
    assert [one.value for one in client.consume(topic, 1, partition=1)] == [b"d"]
    positions = client.positions(topic)
    assert (positions.beginning, positions.end) == (0, 3)


def write_in_transactions(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "walker"})
    producer.init_transactions(WAIT_S)
    for value, ends_well in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=1)
        if ends_well:
            producer.commit_transaction(WAIT_S)
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)


def consume_in_a_group(bootstrap: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "walkers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.subscribe([topic])
        values: list[bytes] = []
        wait_for(lambda: _grow(values, consumer), 6, timeout_s=WAIT_S)
        assert sorted(values) == [b"a", b"b", b"c", b"d", b"kept", b"kept too"]
        committed = consumer.commit(asynchronous=False)
        assert [(one.partition, one.error) for one in sorted(committed, key=lambda one: one.partition)] == [
            (0, None),
            (1, None),
        ]
    finally:
        consumer.close()


def _grow(values: list[bytes], consumer: confluent_kafka.Consumer) -> int:
    for message in consumer.consume(10, timeout=0.5):
        assert message.error() is None
        values.append(message.value())
    return len(values)


def tables_of_topics(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_inherits WHERE inhparent = 'kafka.messages'::regclass"
        ).fetchone()
    assert found is not None
    return int(found[0])
