"""What pipeline tests share: one database with its gateway, and one Spark session, for all files of a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.config import Settings
from gateway.pipeline.session import JavaMissing, require_java, spark_session
from tests.conftest import _scratch_database
from tests.support.gateway_process import GatewayProcess
from tests.support.spark import TEST_CONFIG, ConnectorMissing, connector_config, fetching_alone
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 30.0


class Record(NamedTuple):
    """One record as any reader of committed records must see it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first starts Spark, which may take a minute on busy cores."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def pipeline_database_url(server_url: str, template_database: str) -> Iterator[str]:
    """One migrated database for all pipeline tests: each of them uses topics of its own."""
    with _scratch_database(server_url, template_database) as url:
        yield url


@pytest.fixture(scope="session")
def pipeline_settings(pipeline_database_url: str) -> Settings:
    return Settings(database_url=pipeline_database_url)


@pytest.fixture(scope="session")
def gateway(pipeline_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("pipeline-gateway")
    with GatewayProcess(pipeline_database_url, directory=directory) as process:
        yield process


@pytest.fixture(scope="session")
def bootstrap(gateway: GatewayProcess) -> str:
    return gateway.bootstrap


@pytest.fixture(scope="session")
def connector() -> dict[str, str] | ConnectorMissing:
    """Properties for Spark's own Kafka connector: they count when the JVM starts, so every session has them."""
    try:
        with fetching_alone():
            return connector_config()
    except ConnectorMissing as missing:
        return missing


@pytest.fixture(scope="session")
def spark(
    pipeline_settings: Settings,
    connector: dict[str, str] | ConnectorMissing,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """The worker's session. Do not stop it."""
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    config = {
        **TEST_CONFIG,
        **({} if isinstance(connector, ConnectorMissing) else connector),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    with fetching_alone():
        session = spark_session("tests", master="local[2]", config=config, settings=pipeline_settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connection(pipeline_database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(pipeline_database_url, autocommit=True) as connected:
        yield connected


@pytest.fixture(scope="session")
def new_topic(bootstrap: str) -> Callable[..., str]:
    """Create a topic that nobody has used, and return its name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(partitions: int = 1, name: str | None = None, **configs: str) -> str:
        name = name or f"pipeline.{uuid.uuid4().hex[:12]}"
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(WAIT_S)
        wait_for(lambda: len(admin.list_topics(name, timeout=WAIT_S).topics[name].partitions), wanted=partitions)
        return name

    return create


@pytest.fixture(scope="session")
def produce(bootstrap: str) -> Callable[..., None]:
    """Produce values, or (key, value) pairs, to a partition, and wait until they are acknowledged."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def send(
        topic: str, values: Sequence[Any], *, partition: int = 0, timestamp_ms: int = 0, headers: Any = None
    ) -> None:
        failures: list[Any] = []
        for one in values:
            key, value = one if isinstance(one, tuple) else (None, one)
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
                timestamp=timestamp_ms,
                headers=headers,
            )
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        assert not failures, failures

    return send


@pytest.fixture(scope="session")
def consume(bootstrap: str) -> Callable[[str, int], list[Record]]:
    """Everything a read_committed consumer gets of a partition, up to where it ends for that consumer."""

    def read(topic: str, partition: int = 0) -> list[Record]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused: partitions are assigned",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        records: list[Record] = []
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(WAIT_S)
                assert message is not None, "the consumer gets nowhere"
                if message.error() is None:
                    records.append(
                        Record(
                            topic,
                            partition,
                            message.offset(),
                            message.timestamp()[1],
                            message.key(),
                            message.value(),
                        )
                    )
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return records
                else:
                    raise confluent_kafka.KafkaException(message.error())
        finally:
            consumer.close()

    return read


def as_records(rows: DataFrame) -> list[Record]:
    """The rows of a DataFrame as records, in order of topic, partition and offset."""
    selected = rows.selectExpr("topic", "partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value")
    return sorted(
        Record(
            row.topic,
            row.partition,
            row.offset,
            row.timestamp,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
        )
        for row in selected.collect()
    )
