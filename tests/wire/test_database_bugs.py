"""A statement that fails for good: clients are not told to try for ever, and the gateway outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import HandmadeProducer, make_batch
from tests.support.kafka_clients import ConfluentKafka


@contextmanager
def renamed(database_url: str, table: str) -> Iterator[None]:
    """The table is not there for a while, as if the schema were another version's."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE kafka.{table} RENAME TO {table}_away".encode())
        try:
            yield
        finally:
            connection.execute(f"ALTER TABLE kafka.{table}_away RENAME TO {table}".encode())


def test_a_wrong_statement_closes_the_connection_and_nothing_else(database_url: str, tmp_path: Path) -> None:
    gateway = GatewayProcess(database_url, directory=tmp_path).start()
    try:
        with HandmadeProducer(gateway.bootstrap) as producer:
            producer.create_topic("t")
            assert producer.produce("t", make_batch([b"before"])).code == 0
            with renamed(database_url, "partitions"), pytest.raises(ConnectionError):
                producer.produce("t", make_batch([b"lost"]))
        with (
            HandmadeProducer(gateway.bootstrap) as producer,
            renamed(database_url, "topics"),
            pytest.raises(AssertionError, match="closed instead of answering"),
        ):
            producer.call("DescribeTopicPartitions", 0, topics=[{"name": "other"}], response_partition_limit=1)
        assert "UndefinedTable" in gateway.log_text(), "whoever runs the gateway can find out why"
        with HandmadeProducer(gateway.bootstrap) as producer:
            assert producer.produce("t", make_batch([b"after"]))[:2] == (0, 1)
        assert [one.value for one in ConfluentKafka(gateway.bootstrap).consume("t", 2)] == [b"before", b"after"]
        assert gateway.terminate() == 0
    finally:
        if gateway.is_running:
            gateway.kill9()
