"""Unmodified transactional clients of both generations: Java with KIP-890 and without, librdkafka, aiokafka,
kafka-python; and Kafka's own tool for transactions. What is stated here holds for Apache Kafka too."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.support import java
from tests.support.gateway_process import GatewayProcess
from tests.support.transactional_clients import (
    SOURCE,
    AioKafka,
    Client,
    Confluent,
    Failed,
    Fenced,
    Java,
    KafkaPython,
    Producer,
)
from tests.support.waiting import wait_for

PARTITIONS = 2
KIP_890 = "java"
CLASSIC_CLIENTS = ("java-3.9", "confluent-kafka", "aiokafka", "kafka-python")


@pytest.fixture(scope="module")
def java_processes() -> Iterator[Callable[[str], java.JavaClient]]:
    started: dict[str, java.JavaClient] = {}

    def start(version: str) -> java.JavaClient:
        if version not in started:
            try:
                started[version] = java.JavaClient(SOURCE, version)
            except java.JavaMissing as missing:
                pytest.skip(str(missing))
        return started[version]

    yield start
    for process in started.values():
        process.close()


@pytest.fixture(params=[KIP_890, *CLASSIC_CLIENTS])
def client(request: pytest.FixtureRequest, bootstrap: str, java_processes: Callable[[str], java.JavaClient]) -> Client:
    return make(request.param, bootstrap, java_processes)


def make(name: str, bootstrap: str, java_processes: Callable[[str], java.JavaClient]) -> Client:
    if name.startswith("java"):
        version = java.KAFKA_VERSION if name == KIP_890 else java.CLASSIC_VERSION
        return Java(bootstrap, java_processes(version))
    return {"confluent-kafka": Confluent, "aiokafka": AioKafka, "kafka-python": KafkaPython}[name](bootstrap)  # type: ignore[return-value]


@pytest.fixture
def name() -> str:
    """A transactional id that nobody has used."""
    return f"id.{uuid.uuid4().hex[:12]}"


@pytest.fixture
def opened() -> Iterator[Callable[[Producer], Producer]]:
    """Producers that are closed at the end, whatever became of them."""
    producers: list[Producer] = []

    def keep(producer: Producer) -> Producer:
        producers.append(producer)
        return producer

    yield keep
    for producer in producers:
        producer.close()


def test_commit_and_abort(
    client: Client, name: str, new_topic: Callable[..., str], opened: Callable[[Producer], Producer]
) -> None:
    topic = new_topic(PARTITIONS)
    producer = opened(client.open(name))
    for number in range(4):
        producer.begin()
        producer.send(topic, f"{number}a", f"{number}b")
        producer.send(topic, f"{number}c", partition=1)
        if number % 2 == 0:
            producer.commit()
        else:
            producer.abort()
    assert client.read(topic) == ["0a", "0b", "2a", "2b"]
    assert client.read(topic, partition=1) == ["0c", "2c"], "and the aborted tail is passed"
    everything = [f"{number}{letter}" for number in range(4) for letter in "ab"]
    assert client.read(topic, committed=False) == everything


def test_what_is_open_is_not_seen_by_readers_of_committed_records(
    client: Client, name: str, new_topic: Callable[..., str], opened: Callable[[Producer], Producer]
) -> None:
    topic = new_topic()
    slow, quick = opened(client.open(name)), opened(client.open(f"{name}-quick"))
    slow.begin()
    slow.send(topic, "slow")
    quick.begin()
    quick.send(topic, "quick")
    quick.commit()
    assert client.read(topic) == []
    assert client.read(topic, committed=False) == ["slow", "quick"]
    slow.commit()
    assert client.read(topic) == ["slow", "quick"]


def test_an_empty_transaction(
    client: Client, name: str, new_topic: Callable[..., str], opened: Callable[[Producer], Producer]
) -> None:
    topic = new_topic()
    producer = opened(client.open(name))
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    producer.begin()
    producer.send(topic, "v")
    producer.commit()
    assert client.read(topic) == ["v"]


def test_a_second_instance_fences_the_first(
    client: Client, name: str, new_topic: Callable[..., str], opened: Callable[[Producer], Producer]
) -> None:
    topic = new_topic()
    first = opened(client.open(name))
    first.begin()
    first.send(topic, "of the first")
    second = opened(client.open(name))
    with pytest.raises((Fenced, Failed)):
        first.send(topic, "late")
    second.begin()
    second.send(topic, "of the second")
    with pytest.raises((Fenced, Failed)):
        first.commit()
    second.commit()
    assert client.read(topic) == ["of the second"]


def test_fenced_at_the_commit(
    client: Client, name: str, new_topic: Callable[..., str], opened: Callable[[Producer], Producer]
) -> None:
    topic = new_topic()
    first = opened(client.open(name))
    first.begin()
    first.send(topic, "of the first")
    opened(client.open(name))
    with pytest.raises(Fenced):
        first.commit()
    assert client.read(topic) == []


def test_a_transaction_past_its_time_is_aborted(
    client: Client,
    name: str,
    new_topic: Callable[..., str],
    opened: Callable[[Producer], Producer],
    database: psycopg.Connection[Any],
) -> None:
    topic = new_topic()
    late = opened(client.open(name))
    late.begin()
    late.send(topic, "too late")
    let_its_time_pass(database, name)
    wait_for(lambda: state_of(database, name), "CompleteAbort")
    with pytest.raises((Fenced, Failed)):
        late.commit()
    producer = opened(client.open(name))
    producer.begin()
    producer.send(topic, "again")
    producer.commit()
    assert client.read(topic) == ["again"]


def let_its_time_pass(database: psycopg.Connection[Any], name: str) -> None:
    """The open transaction of this id began an hour ago. A short time-out would also hit clients that are only slow."""
    database.execute(
        "UPDATE kafka.transactions SET started_at = started_at - interval '1 hour' WHERE transactional_id = %s", [name]
    )


def state_of(database: psycopg.Connection[Any], name: str) -> str:
    ((state,),) = database.execute(
        "SELECT state FROM kafka.transactions WHERE transactional_id = %s", [name]
    ).fetchall()
    return str(state)


def test_with_kip_890_a_producer_goes_on_after_its_transaction_timed_out(
    bootstrap: str,
    java_processes: Callable[[str], java.JavaClient],
    name: str,
    new_topic: Callable[..., str],
    opened: Callable[[Producer], Producer],
    database: psycopg.Connection[Any],
) -> None:
    client = make(KIP_890, bootstrap, java_processes)
    topic = new_topic()
    producer = opened(client.open(name))
    for number, notice in enumerate((lambda: producer.send(topic, "later"), producer.commit)):
        producer.begin()
        producer.send(topic, "too late")
        let_its_time_pass(database, name)
        wait_for(lambda: state_of(database, name), "CompleteAbort")
        with pytest.raises((Fenced, Failed)):
            notice()
        producer.abort()
        producer.begin()
        producer.send(topic, f"again {number}")
        producer.commit()
    assert client.read(topic) == ["again 0", "again 1"]


def test_consume_transform_produce(
    client: Client, name: str, new_topic: Callable[..., str], opened: Callable[[Producer], Producer]
) -> None:
    """Each record is copied once though every third transaction is aborted and done again."""
    source, target = new_topic(PARTITIONS), new_topic(PARTITIONS)
    filler = opened(client.open(f"{name}-filler"))
    filler.begin()
    filler.send(source, "aborted")
    filler.abort()
    filler.begin()
    for partition in range(PARTITIONS):
        filler.send(source, *(f"{partition}/{number}" for number in range(60)), partition=partition)
    filler.commit()
    copier = opened(client.open(name))
    assert copier.copy(source, target, group=f"{name}-group", count=120) == 120
    for partition in range(PARTITIONS):
        assert client.read(target, partition=partition) == [f"copy of {partition}/{number}" for number in range(60)]


@pytest.mark.parametrize("client", [KIP_890, "confluent-kafka"], indirect=True)
def test_a_copier_that_dies_is_continued_by_the_next(
    client: Client,
    name: str,
    new_topic: Callable[..., str],
    opened: Callable[[Producer], Producer],
) -> None:
    source, target = new_topic(1), new_topic(1)
    filler = opened(client.open(f"{name}-filler"))
    for start in (0, 40):
        filler.begin()
        filler.send(source, *(str(number) for number in range(start, start + 40)))
        filler.commit()
        copier = opened(client.open(name))
        assert copier.copy(source, target, group=f"{name}-group", count=40) == 40
        copier.begin()
        copier.send(target, "what a dead copier left open")
    opened(client.open(name))
    assert client.read(target) == [f"copy of {number}" for number in range(80)]


def test_committed_records_are_the_same_for_every_client_and_psql(
    bootstrap: str,
    java_processes: Callable[[str], java.JavaClient],
    name: str,
    new_topic: Callable[..., str],
    opened: Callable[[Producer], Producer],
    database: psycopg.Connection[Any],
) -> None:
    topic = new_topic()
    clients = {each: make(each, bootstrap, java_processes) for each in (KIP_890, *CLASSIC_CLIENTS)}
    producers = {each: opened(client.open(f"{name}-{each}")) for each, client in clients.items()}
    for round_number in range(3):
        for each, producer in producers.items():
            producer.begin()
            producer.send(topic, f"{each} {round_number}")
        for number, producer in enumerate(producers.values()):
            if (number + round_number) % 2:
                producer.commit()
            else:
                producer.abort()
    rows = database.execute(
        'SELECT value FROM kafka.committed_messages WHERE topic = %s ORDER BY "offset"', [topic]
    ).fetchall()
    values = [row[0].decode() for row in rows]
    assert len(values) in (7, 8)
    for each, client in clients.items():
        assert client.read(topic) == values, each


# --- Kafka's own tool ------------------------------------------------------------------------


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_the_transactions_tool(
    gateway: GatewayProcess | None,
    bootstrap: str,
    java_processes: Callable[[str], java.JavaClient],
    name: str,
    new_topic: Callable[..., str],
    opened: Callable[[Producer], Producer],
    run_tool: Callable[..., str],
) -> None:
    client = make(KIP_890, bootstrap, java_processes)
    topic = new_topic()
    producer = opened(client.open(name))
    producer.begin()
    producer.send(topic, "held", "back")

    listed = columns(run_tool(java.TRANSACTIONS, "list"))
    (found,) = [row for row in listed if row[0] == name]
    producer_id = found[2]
    assert found[3] == "Ongoing"
    listed = columns(run_tool(java.TRANSACTIONS, "list", "--transactional-id-pattern", f"{name}.*"))
    assert [row[0] for row in listed[1:]] == [name]

    described = run_tool(java.TRANSACTIONS, "describe", "--transactional-id", name)
    assert re.search(rf"\b{producer_id}\b", described)
    assert f"{topic}-0" in described

    producers = columns(run_tool(java.TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0"))
    assert producers[1][0] == producer_id
    assert "0" in producers[1], "where its transaction began"

    hanging = run_tool(java.TRANSACTIONS, "find-hanging", "--broker-id", broker_of(run_tool))
    assert topic not in hanging, "a transaction that its coordinator knows is not hanging"

    run_tool(java.TRANSACTIONS, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert client.read(topic) == []
    if gateway is not None:  # Kafka writes the one marker, and lets the producer commit the rest
        with pytest.raises((Fenced, Failed)):
            producer.commit()
    producers = columns(run_tool(java.TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0"))
    assert producers[1][-1] == "None"


def broker_of(run_tool: Callable[..., str]) -> str:
    found = re.search(r"id: (\d+)", run_tool(java.BROKER_API_VERSIONS))
    assert found is not None
    return found.group(1)
