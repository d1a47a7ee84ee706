"""Business keys with real clients: what an application hears of duplicates, of open transactions and of owners."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import psycopg
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import OutOfOrderSequenceNumber, UnknownError
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError, KafkaError

from tests.support import java
from tests.support.gateway_process import GatewayProcess

Report = tuple[confluent_kafka.KafkaError | None, int]

HELD = "the key 'a' is held by an owner whose lease is not over"
INNOCENT = "Failed to append record because it was part of a batch which had one more more invalid records"
BLAMED, OTHER = (InvalidRecordError, HELD), (KafkaError, INNOCENT)


@pytest.fixture
def database(gateway: GatewayProcess | None) -> Iterator[psycopg.Connection[Any]]:
    if gateway is None:
        pytest.skip("needs the gateway: Kafka has no business keys")
    with psycopg.connect(gateway.database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def keyed_topic(database: psycopg.Connection[Any], bootstrap: str) -> str:
    name = f"keyed-{uuid.uuid4().hex[:12]}"
    new = NewTopic(name, 1, config={"idempotency.keys.enable": "true"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[name].result(60)
    return name


def produce(bootstrap: str, topic: str, *keys: str, **settings: Any) -> list[Report]:
    """One batch of a new librdkafka producer: error and offset of each record."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, **settings})
    reports: list[Report] = []
    for key in keys:
        producer.produce(
            topic,
            key,
            headers={"idempotency-key": key},
            on_delivery=lambda error, message: reports.append((error, message.offset())),
        )
    assert producer.flush(30) == 0
    return reports


@pytest.mark.parametrize("settings", [{}, {"enable.idempotence": True}, {"compression.type": "zstd"}])
def test_an_application_that_sends_again_is_told_success(
    bootstrap: str, keyed_topic: str, database: psycopg.Connection[Any], settings: dict[str, Any]
) -> None:
    for _ in range(3):
        assert [error for error, _ in produce(bootstrap, keyed_topic, "a", "b", "a", **settings)] == [None] * 3
    counted = database.execute("SELECT count(*) FROM kafka.committed_messages WHERE topic = %s", [keyed_topic])
    assert counted.fetchone() == (2,)


@pytest.mark.parametrize("is_committed", [True, False])
def test_who_meets_an_open_transaction_waits_for_it_by_itself(
    bootstrap: str, keyed_topic: str, database: psycopg.Connection[Any], is_committed: bool
) -> None:
    holder = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{uuid.uuid4().hex}"})
    holder.init_transactions(20)
    holder.begin_transaction()
    holder.produce(keyed_topic, "theirs", headers={"idempotency-key": "a"})
    assert holder.flush(20) == 0
    waiting = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    errors: list[confluent_kafka.KafkaError | None] = []
    waiting.produce(
        keyed_topic, "ours", headers={"idempotency-key": "a"}, on_delivery=lambda error, _: errors.append(error)
    )
    assert waiting.flush(0.5) == 1, "the client tries again and again"
    if is_committed:
        holder.commit_transaction(20)
    else:
        holder.abort_transaction(20)
    assert waiting.flush(30) == 0
    assert errors == [None]
    found = database.execute("SELECT value FROM kafka.committed_messages WHERE topic = %s", [keyed_topic]).fetchall()
    assert found == [(b"theirs" if is_committed else b"ours",)]


def test_a_key_that_an_owner_holds_is_an_error_at_once(
    bootstrap: str, keyed_topic: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("SELECT kafka.begin_once('', %s, '', 'a')", [keyed_topic])
    reports = produce(bootstrap, keyed_topic, "a")
    assert [error.code() for error, _ in reports if error is not None] == [87]


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_kafka_python_blames_the_record_and_goes_on_unless_it_is_idempotent(
    bootstrap: str, keyed_topic: str, database: psycopg.Connection[Any], is_idempotent: bool
) -> None:
    """An idempotent one takes any refusal for fatal."""
    database.execute("SELECT kafka.begin_once('', %s, '', 'a')", [keyed_topic])

    def connect() -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=500, enable_idempotence=is_idempotent)

    def send(*keys: str) -> list[Any]:
        return [producer.send(keyed_topic, key.encode(), headers=[("idempotency-key", key.encode())]) for key in keys]

    producer = connect()
    for refused, (error, reason) in zip(send("x", "a", "y"), (OTHER, BLAMED, OTHER), strict=True):
        with pytest.raises(error, match=reason):
            refused.get(20)
    if is_idempotent:
        with pytest.raises(InvalidRecordError, match=HELD):
            send("x")[0].get(20)
        producer.close(5)
        producer = connect()
    assert [sent.get(20).offset for sent in send("x", "y")] == [0, 1]
    producer.close(5)
    assert stored(database, keyed_topic) == [b"x", b"y"]


def stored(database: psycopg.Connection[Any], topic: str) -> list[bytes]:
    found = database.execute("SELECT value FROM kafka.committed_messages WHERE topic = %s", [topic])
    return [value for (value,) in found]


@pytest.mark.parametrize("idempotence", ["false", "true"])
def test_java_blames_the_record_and_the_others_of_its_batch_are_sent_again(
    bootstrap: str,
    keyed_topic: str,
    database: psycopg.Connection[Any],
    java_process: java.JavaClient,
    idempotence: str,
) -> None:
    """KIP-467: one record of the batch has an error of its own, the others are told that they were not to blame."""
    database.execute("SELECT kafka.begin_once('', %s, '', 'a')", [keyed_topic])
    first, again = java_process.call(
        "produce_again",
        settings={"bootstrap.servers": bootstrap, "linger.ms": "500", "enable.idempotence": idempotence},
        records=[
            {
                "topic": keyed_topic,
                "partition": 0,
                "value": java.encode(key.encode()),
                "headers": [["idempotency-key", java.encode(key.encode())]],
            }
            for key in ("x", "a", "y", "z")
        ],
    )
    assert [(answer["error"], answer["message"]) for answer in first] == [
        ("KafkaException", INNOCENT),
        ("InvalidRecordException", HELD),
        ("KafkaException", INNOCENT),
        ("KafkaException", INNOCENT),
    ]
    assert [answer["offset"] for answer in again] == [0, 1, 2]
    assert stored(database, keyed_topic) == [b"x", b"y", b"z"]
    database.execute("SELECT kafka.mark_failure('', %s, '', 'a', 'gave it up')", [keyed_topic])
    assert produce(bootstrap, keyed_topic, "a") == [(None, 3)]


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_librdkafka_reports_the_whole_batch_and_goes_on(
    bootstrap: str, keyed_topic: str, database: psycopg.Connection[Any], is_idempotent: bool
) -> None:
    database.execute("SELECT kafka.begin_once('', %s, '', 'a')", [keyed_topic])
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 500, "enable.idempotence": is_idempotent}
    )
    codes: dict[str, int] = {}

    def send(*keys: str) -> None:
        for key in keys:
            producer.produce(
                keyed_topic,
                key,
                headers={"idempotency-key": key},
                on_delivery=lambda error, _, key=key: codes.update({key: 0 if error is None else error.code()}),
            )
        assert producer.flush(30) == 0

    send("x", "a", "y")
    assert codes == {"x": 87, "a": 87, "y": 87}
    send("x", "y")
    assert codes == {"x": 0, "a": 87, "y": 0}
    assert stored(database, keyed_topic) == [b"x", b"y"]


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_aiokafka_reports_the_whole_batch_and_goes_on_unless_it_is_idempotent(
    bootstrap: str, keyed_topic: str, database: psycopg.Connection[Any], is_idempotent: bool
) -> None:
    """It does not know the code, and an idempotent one counts on behind a batch that was refused."""
    database.execute("SELECT kafka.begin_once('', %s, '', 'a')", [keyed_topic])

    async def send(producer: AIOKafkaProducer, *keys: str) -> list[object]:
        sent = [
            await producer.send(keyed_topic, key.encode(), headers=[("idempotency-key", key.encode())]) for key in keys
        ]
        return [
            type(each) if isinstance(each, BaseException) else each.offset
            for each in await asyncio.gather(*sent, return_exceptions=True)
        ]

    settings = {"bootstrap_servers": bootstrap, "linger_ms": 500, "enable_idempotence": is_idempotent}
    async with AIOKafkaProducer(**settings) as producer:
        assert await send(producer, "x", "a", "y") == [UnknownError] * 3
        again = await send(producer, "x", "y")
    if is_idempotent:
        assert again == [OutOfOrderSequenceNumber] * 2
        async with AIOKafkaProducer(**settings) as producer:
            again = await send(producer, "x", "y")
    assert again == [0, 1]
    assert stored(database, keyed_topic) == [b"x", b"y"]
