"""The HTTP listener: metrics under kafka_exporter's names, and whether a gateway lives and can serve."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import confluent_kafka
import psycopg
from prometheus_client.parser import text_string_to_metric_families
from psycopg import sql

from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient, new_topic_entry

Series = dict[tuple[str, ...], float]


def get(gateway: GatewayProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{gateway.http_url}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def scrape(gateway: GatewayProcess) -> dict[str, Series]:
    """Values by metric and labels, as Prometheus' own parser reads them; every label is `name=value`."""
    status, text = get(gateway, "/metrics")
    assert status == 200
    return {
        family.name: {
            tuple(sorted(f"{name}={value}" for name, value in sample.labels.items())): sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def produce(gateway: GatewayProcess, topic: str, counts: list[int]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap})
    for partition, count in enumerate(counts):
        for _ in range(count):
            producer.produce(topic, b"", partition=partition)
    assert producer.flush(60) == 0


def consumer(gateway: GatewayProcess, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": gateway.bootstrap, "group.id": group, "enable.auto.commit": False}
    )


def place(topic: str, partition: int, offset: int) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(topic, partition, offset)


def test_lag_is_told_under_kafka_exporters_names(database_url: str, tmp_path: Path) -> None:
    group, nobody = "consumergroup=billing", "consumergroup=nobody"
    with (
        GatewayProcess(
            database_url, directory=tmp_path, settings={"TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
        ) as gateway,
        WireClient(gateway.bootstrap) as wire,
    ):
        topics = [new_topic_entry("orders", 2), new_topic_entry("quiet", 1)]
        wire.call("CreateTopics", 7, topics=topics, timeout_ms=9000, validate_only=False)
        produce(gateway, "orders", [5, 3])
        records = [{"name": "orders", "partitions": [{"partition_index": 1, "offset": 2}]}]
        assert wire.call("DeleteRecords", 2, topics=records, timeout_ms=9000)["topics"][0]["name"] == "orders"
        member, outsider = consumer(gateway, "billing"), consumer(gateway, "nobody")
        member.subscribe(["orders"])
        wait_for(lambda: (member.poll(0.1), len(member.assignment()))[1], 2)
        member.commit(offsets=[place("orders", 0, 1), place("orders", 1, 2)], asynchronous=False)
        outsider.commit(offsets=[place("quiet", 0, 0)], asynchronous=False)
        # What was told a moment ago is told again for some seconds.
        wait_for(lambda: scrape(gateway)["kafka_consumergroup_members"], {(group,): 1, (nobody,): 0})
        told = scrape(gateway)
        member.close()
        outsider.close()
    assert told["kafka_brokers"] == {(): 1}
    assert told["kafka_topic_partitions"] == {("topic=orders",): 2, ("topic=quiet",): 1}
    first, second = ("partition=0", "topic=orders"), ("partition=1", "topic=orders")
    quiet = ("partition=0", "topic=quiet")
    assert told["kafka_topic_partition_current_offset"] == {first: 5, second: 3, quiet: 0}
    assert told["kafka_topic_partition_oldest_offset"] == {first: 0, second: 2, quiet: 0}
    assert told["kafka_consumergroup_current_offset"] == {(group, *first): 1, (group, *second): 2, (nobody, *quiet): 0}
    assert told["kafka_consumergroup_lag"] == {(group, *first): 4, (group, *second): 1, (nobody, *quiet): 0}
    assert told["kafka_consumergroup_lag_sum"] == {(group, "topic=orders"): 5, (nobody, "topic=quiet"): 0}
    assert told["tablewire_produced_records"][()] == 8


def test_a_gateway_is_ready_while_its_database_can_be_written(
    database_url: str, server_url: str, tmp_path: Path
) -> None:
    settings = {
        "TABLEWIRE_BROKER_HEARTBEAT_INTERVAL_MS": "100",
        "TABLEWIRE_BROKER_SESSION_TIMEOUT_MS": "60000",
        "TABLEWIRE_DATABASE_TIMEOUT_MS": "1000",
    }
    name = urlsplit(database_url).path.lstrip("/")
    database = sql.Identifier(name)
    with (
        GatewayProcess(database_url, directory=tmp_path, settings=settings) as gateway,
        psycopg.connect(server_url, autocommit=True) as server,
    ):

        def hang_up() -> None:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

        wait_for(lambda: get(gateway, "/readyz"), (200, "ok\n"))  # a second for the database may be too little
        assert get(gateway, "/healthz") == (200, "ok\n")
        assert get(gateway, "/elsewhere")[0] == 404
        server.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(database))
        hang_up()
        wait_for(lambda: get(gateway, "/readyz"), (503, "The database is read-only.\n"))
        server.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(database))
        server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(database))
        hang_up()
        wait_for(lambda: get(gateway, "/readyz")[1].partition(":")[0], "The database does not answer")
        assert get(gateway, "/readyz")[0] == 503
        assert get(gateway, "/healthz") == (200, "ok\n")
        assert "kafka_brokers" in scrape(gateway), "the rest is told without the database"
        server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(database))
        wait_for(lambda: get(gateway, "/readyz"), (200, "ok\n"))
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("UPDATE kafka.alembic_version SET version_num = '9999'")
        said = "The database's schema is at 9999, this version needs "
        wait_for(lambda: get(gateway, "/readyz")[1][: len(said)], said)
        assert get(gateway, "/readyz")[0] == 503


def test_a_gateway_that_stops_is_not_ready(database_url: str, tmp_path: Path) -> None:
    with (
        GatewayProcess(database_url, directory=tmp_path) as gateway,
        WireClient(gateway.bootstrap) as wire,
        psycopg.connect(database_url) as other,
    ):
        other.execute("LOCK TABLE kafka.topics IN EXCLUSIVE MODE")  # a request that must be answered takes its time
        asking = threading.Thread(
            target=wire.call,
            args=("CreateTopics", 7),
            kwargs={"topics": [new_topic_entry("slow")], "timeout_ms": 9000, "validate_only": False},
        )
        asking.start()
        with psycopg.connect(database_url, autocommit=True) as watcher:
            wait_for(
                lambda: watcher.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone(),
                (1,),
            )
        stopping = threading.Thread(target=gateway.stop_cleanly)
        stopping.start()
        wait_for(lambda: get(gateway, "/readyz"), (503, "The gateway is stopping.\n"))
        other.rollback()
        asking.join()
        stopping.join()
