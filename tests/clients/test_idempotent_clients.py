"""Real clients with idempotence on, behind a proxy that cuts their connections at the worst moments.

Exactly the values sent are in the table afterwards: once each, in order per partition, offsets without a gap.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import psycopg
import pytest

from tests.support import java
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import HandmadeProducer
from tests.support.kafka_clients import JavaClient, Record, Sent
from tests.support.proxy import CUTS, Proxy

RECORDS = 100_000
PARTITIONS = 4
WANTED_CUTS = 100
DEADLINE_S = 180.0
"""The tests take a tenth of it on two cores; beyond it the client is stuck."""

Acknowledged = list[tuple[int, int]]  # (partition, offset) of record n
Send = Callable[[str, str], Acknowledged]


@pytest.fixture
def proxied(database_url: str, tmp_path: Path) -> Iterator[tuple[GatewayProcess, Proxy]]:
    """A gateway that clients reach through the proxy only."""
    gateway = GatewayProcess(database_url, directory=tmp_path)
    with Proxy(gateway.port) as proxy:
        gateway.settings = {"TABLEWIRE_ADVERTISED": proxy.address}
        with gateway:
            yield gateway, proxy


def value(n: int) -> bytes:
    return b"value-%d" % n


def send_with_librdkafka(bootstrap: str, topic: str) -> Acknowledged:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": 100,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "message.timeout.ms": int(DEADLINE_S * 1000),
            "log_level": 2,
        }
    )
    acknowledged: dict[int, tuple[int, int]] = {}
    failures: Counter[str] = Counter()

    def remember(n: int) -> Callable[[Any, Any], None]:
        def report(error: Any, message: Any) -> None:
            if error is not None:
                failures[str(error)] += 1
            else:
                acknowledged[n] = (message.partition(), message.offset())

        return report

    for n in range(RECORDS):
        while True:
            try:
                producer.produce(topic, value(n), partition=n % PARTITIONS, on_delivery=remember(n))
                break
            except BufferError:
                producer.poll(0.1)
        if n % 100 == 0:
            producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert failures == {}
    return [acknowledged[n] for n in range(RECORDS)]


def send_with_aiokafka(bootstrap: str, topic: str) -> Acknowledged:
    async def send_all() -> Acknowledged:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=2,
            max_batch_size=1000,
            retry_backoff_ms=10,
            request_timeout_ms=20_000,
        ) as producer:
            futures = [await producer.send(topic, value(n), partition=n % PARTITIONS) for n in range(RECORDS)]
            done = [await asyncio.wait_for(future, DEADLINE_S) for future in futures]
        return [(one.partition, one.offset) for one in done]

    return asyncio.run(send_all())


def send_with_kafka_python(bootstrap: str, topic: str) -> Acknowledged:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        linger_ms=5,
        batch_size=1000,
        retry_backoff_ms=10,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=50,
        delivery_timeout_ms=int(DEADLINE_S * 1000),
        request_timeout_ms=20_000,
    )
    try:
        futures = [producer.send(topic, value=value(n), partition=n % PARTITIONS) for n in range(RECORDS)]
        producer.flush(DEADLINE_S)
        done = [future.get(timeout=DEADLINE_S) for future in futures]
        return [(one.partition, one.offset) for one in done]
    finally:
        producer.close(timeout=10)


@pytest.fixture
def send_with_java(request: pytest.FixtureRequest) -> Send:
    process: java.JavaClient = request.getfixturevalue("java_process")

    def send(bootstrap: str, topic: str) -> Acknowledged:
        answers = JavaClient(bootstrap, process).produce_many(
            [(topic, n % PARTITIONS, Record(value(n))) for n in range(RECORDS)],
            **{
                "enable.idempotence": "true",
                "acks": "all",
                "linger.ms": "5",
                "batch.size": "1000",
                "max.request.size": "1048576",
                "retry.backoff.ms": "10",
                "retry.backoff.max.ms": "50",
                "reconnect.backoff.ms": "10",
                "reconnect.backoff.max.ms": "50",
                "delivery.timeout.ms": str(int(DEADLINE_S * 1000)),
                "request.timeout.ms": "20000",
            },
        )
        assert all(isinstance(one, Sent) for one in answers), Counter(map(str, answers)).most_common(3)
        return [(one.partition, one.offset) for one in answers if isinstance(one, Sent)]

    return send


CUT_EVERY = {"librdkafka": 10, "aiokafka": 4, "kafka-python": 4, "java": 6}
"""Which Produce request meets a fault: the clients send different numbers of requests for the same records."""


@pytest.mark.parametrize("client", CUT_EVERY)
def test_cut_connections_neither_lose_nor_double_nor_reorder(
    client: str, proxied: tuple[GatewayProcess, Proxy], request: pytest.FixtureRequest
) -> None:
    gateway, proxy = proxied
    send: Send = {
        "librdkafka": lambda: send_with_librdkafka,
        "aiokafka": lambda: send_with_aiokafka,
        "kafka-python": lambda: send_with_kafka_python,
        "java": lambda: request.getfixturevalue("send_with_java"),
    }[client]()
    topic = f"cut.{client}"
    with HandmadeProducer(gateway.bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    proxy.cut_every = CUT_EVERY[client]
    acknowledged = send(proxy.address, topic)
    assert proxy.cuts >= WANTED_CUTS
    assert all(proxy.counts[cut] > 0 for cut in CUTS)
    check_log(gateway.database_url, topic, acknowledged)


def check_log(database_url: str, topic: str, acknowledged: Acknowledged) -> None:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            'SELECT m.partition, m."offset", m.value, m.producer_id, m.producer_epoch, m.sequence'
            " FROM kafka.messages m JOIN kafka.topics t USING (topic_id) WHERE t.name = %s"
            ' ORDER BY m.partition, m."offset"',
            [topic],
        ).fetchall()
        ends = connection.execute(
            "SELECT partition, next_offset FROM kafka.partition_offsets WHERE topic = %s ORDER BY partition",
            [topic],
        ).fetchall()
    values: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for partition, offset, content, *_ in rows:
        assert offset == len(values[partition]), f"partition {partition} has a gap before {offset}"
        values[partition].append(content)
    for partition, found in values.items():
        sent = [value(n) for n in range(partition, RECORDS, PARTITIONS)]
        assert len(found) == len(sent)
        assert found == sent, f"partition {partition} is not as it was sent"
    assert ends == [(partition, len(found)) for partition, found in values.items()]
    identities = Counter((row[0], *row[3:]) for row in rows)
    assert None not in {row[3] for row in rows}, "a record was written without a producer id"
    assert max(identities.values()) == 1
    for n, (partition, offset) in enumerate(acknowledged):
        assert partition == n % PARTITIONS
        # An old duplicate (46) is acknowledged without an offset; any offset that is told must be true.
        assert offset < 0 or values[partition][offset] == value(n)
    assert sum(offset >= 0 for _, offset in acknowledged) > RECORDS * 0.9
