"""What every client test stands on: a broker to talk to, a fresh topic, and the rows behind it.

`TABLEWIRE_TEST_BOOTSTRAP` points the same tests at another broker, such as Apache Kafka itself: what they
state is Kafka's behaviour, so they must pass there too. Only the checks of rows are skipped then.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import java
from tests.support.gateway_process import GatewayProcess
from tests.support.kafka_clients import AioKafka, Client, ConfluentKafka, Headers, JavaClient, KafkaPython
from tests.support.waiting import wait_for

CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python", "java")
OTHER_BROKER = os.environ.get("TABLEWIRE_TEST_BOOTSTRAP")


@dataclass(frozen=True)
class Row:
    """One row of kafka.messages, as psycopg reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int
    producer_id: int
    producer_epoch: int
    sequence: int


@pytest.fixture(scope="session")
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess | None]:
    """The gateway under test, on a database of its own; None when another broker is tested."""
    if OTHER_BROKER:
        yield None
        return
    database_url: str = request.getfixturevalue("clients_database_url")
    with GatewayProcess(database_url, directory=tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture(scope="session")
def bootstrap(gateway: GatewayProcess | None) -> str:
    return OTHER_BROKER if gateway is None else gateway.bootstrap  # type: ignore[return-value]


@pytest.fixture(scope="session")
def cold_gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that keeps no batches in memory, so what it serves comes from rows."""
    if OTHER_BROKER:
        pytest.skip("needs the gateway: TABLEWIRE_TEST_BOOTSTRAP names another broker")
    database_url: str = request.getfixturevalue("cold_database_url")
    settings = {"TABLEWIRE_TAIL_CACHE_BYTES": "0"}
    with GatewayProcess(database_url, directory=tmp_path_factory.mktemp("cold-gateway"), settings=settings) as process:
        yield process


@pytest.fixture(scope="session")
def java_process() -> Iterator[java.JavaClient]:
    try:
        process = java.JavaClient()
    except java.JavaMissing as missing:
        pytest.skip(str(missing))
    yield process
    process.close()


@pytest.fixture(scope="session")
def make_client(request: pytest.FixtureRequest) -> Callable[[str, str], Client]:
    """A client by name for a bootstrap address."""

    def make(name: str, bootstrap: str) -> Client:
        if name == "java":
            return JavaClient(bootstrap, request.getfixturevalue("java_process"))
        return {"confluent-kafka": ConfluentKafka, "aiokafka": AioKafka, "kafka-python": KafkaPython}[name](bootstrap)

    return make


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, bootstrap: str, make_client: Callable[[str, str], Client]) -> Client:
    """Each client in turn: a test with this fixture holds for all of them."""
    return make_client(request.param, bootstrap)


@pytest.fixture
def java_client(bootstrap: str, java_process: java.JavaClient) -> JavaClient:
    return JavaClient(bootstrap, java_process)


@pytest.fixture(scope="session")
def run_tool(bootstrap: str) -> Callable[..., str]:
    """Run one of Kafka's console tools against the broker and return what it printed; it must exit with 0."""
    try:
        java.jar_directory()
    except java.JavaMissing as missing:
        pytest.skip(str(missing))

    def run(tool: str, *arguments: str, stdin: bytes = b"", fails: bool = False, after: bool = False) -> str:
        address = ("--bootstrap-server", bootstrap)  # a tool with subcommands wants it after them
        done = java.run_tool(tool, *((*arguments, *address) if after else (*address, *arguments)), stdin=stdin)
        text = (done.stdout + done.stderr).decode()
        assert (done.returncode != 0) == fails, f"{tool} ended with {done.returncode}:\n{text}"
        return text if fails else done.stdout.decode()

    return run


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic() -> str:
    """A topic name that nobody has used."""
    return f"clients.{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(admin: AdminClient, topic: str) -> Callable[..., str]:
    """Create a fresh topic with the given partitions and configs, and return its name."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = topic if topic not in created else f"{topic}.{len(created)}"
        created.append(name)
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(60)
        wait_for(lambda: is_known(name), wanted=True)
        return name

    def is_known(name: str) -> bool:
        # Not list_topics(name), which would create the topic that it asks for.
        return admin.describe_topics(TopicCollection([name]))[name].exception(20) is None

    created: list[str] = []
    return create


@pytest.fixture(scope="session")
def database(gateway: GatewayProcess | None) -> Iterator[psycopg.Connection[Any]]:
    if gateway is None:
        pytest.skip("reads rows: TABLEWIRE_TEST_BOOTSTRAP names a broker without a database")
    with psycopg.connect(gateway.database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def rows(database: psycopg.Connection[Any]) -> Callable[[str], list[Row]]:
    """The rows of a topic in the order of partition and offset."""
    return _rows_of(database)


@pytest.fixture(scope="session")
def cold_rows(cold_gateway: GatewayProcess) -> Iterator[Callable[[str], list[Row]]]:
    """The rows behind the gateway that keeps no batches in memory."""
    with psycopg.connect(cold_gateway.database_url, autocommit=True) as connection:
        yield _rows_of(connection)


def _rows_of(database: psycopg.Connection[Any]) -> Callable[[str], list[Row]]:
    def read(topic: str) -> list[Row]:
        found = database.execute(
            """
            SELECT m.partition, m."offset", m.key, m.value, m.header_names, m.header_values,
                   round(extract(epoch FROM m.timestamp) * 1000)::bigint, m.timestamp_type,
                   m.producer_id, m.producer_epoch, m.sequence
              FROM kafka.messages m JOIN kafka.topics t USING (topic_id)
             WHERE t.name = %s
             ORDER BY m.partition, m."offset"
            """,
            [topic],
        ).fetchall()
        return [
            Row(
                partition,
                offset,
                key,
                value,
                tuple(zip(names or (), values or (), strict=True)),
                timestamp_ms,
                timestamp_type,
                producer_id,
                producer_epoch,
                sequence,
            )
            for (
                partition,
                offset,
                key,
                value,
                names,
                values,
                timestamp_ms,
                timestamp_type,
                producer_id,
                producer_epoch,
                sequence,
            ) in found
        ]

    return read
