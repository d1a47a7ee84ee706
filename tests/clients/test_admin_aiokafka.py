"""Admin calls by aiokafka, which still speaks the oldest versions of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError

INVALID_CONFIG = 40
TOPIC_ALREADY_EXISTS = 36
UNKNOWN_TOPIC_OR_PARTITION = 3


@pytest_asyncio.fixture
async def aio_admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    yield client
    await client.close()


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Kafka's brokers learn of a change later than its controller answers."""
    async with asyncio.timeout(15):
        while not await condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)


async def configs_of(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((error_code, _, _, _, entries),) = response.resources
    assert error_code == 0
    return {entry[0]: entry[1] for entry in entries}


async def test_topics_are_created_described_and_deleted(aio_admin: AIOKafkaAdminClient, topic: str) -> None:

    async def is_listed() -> bool:
        return topic in await aio_admin.list_topics()

    async def is_gone() -> bool:
        return not await is_listed()

    wanted = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1000"})
    validated = await aio_admin.create_topics([wanted], validate_only=True)
    assert [error[1] for error in validated.topic_errors] == [0]
    assert topic not in await aio_admin.list_topics()
    made = await aio_admin.create_topics([wanted])
    assert [error[:2] for error in made.topic_errors] == [(topic, 0)]
    await wait_until(is_listed)
    again = await aio_admin.create_topics([wanted])
    assert [error[1] for error in again.topic_errors] == [TOPIC_ALREADY_EXISTS]
    (described,) = await aio_admin.describe_topics([topic])
    assert described["topic"] == topic
    assert [one["partition"] for one in described["partitions"]] == [0, 1]
    deleted = await aio_admin.delete_topics([topic])
    assert [error[1] for error in deleted.topic_error_codes] == [0]
    await wait_until(is_gone)
    gone = await aio_admin.delete_topics([topic])
    assert [error[1] for error in gone.topic_error_codes] == [UNKNOWN_TOPIC_OR_PARTITION]


async def test_partitions_are_added(aio_admin: AIOKafkaAdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    validated = await aio_admin.create_partitions({topic: NewPartitions(4)}, validate_only=True)
    assert [error[1] for error in validated.topic_errors] == [0]
    assert len((await aio_admin.describe_topics([topic]))[0]["partitions"]) == 2
    await aio_admin.create_partitions({topic: NewPartitions(4)})

    async def has_grown() -> bool:
        return len((await aio_admin.describe_topics([topic]))[0]["partitions"]) == 4

    await wait_until(has_grown)
    with pytest.raises(InvalidPartitionsError):
        await aio_admin.create_partitions({topic: NewPartitions(4)})


async def test_configs_are_described_and_replaced(
    aio_admin: AIOKafkaAdminClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(retention_ms="1000")
    assert (await configs_of(aio_admin, topic))["retention.ms"] == "1000"

    async def replace(configs: dict[str, str]) -> int:
        (response,) = await aio_admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
        return int(response.resources[0][0])

    assert await replace({"max.message.bytes": "7000"}) == 0

    async def is_replaced() -> bool:
        configs = await configs_of(aio_admin, topic)
        return (configs["max.message.bytes"], configs["retention.ms"]) == ("7000", "604800000")

    await wait_until(is_replaced)
    assert await replace({"no.such.config": "1"}) == INVALID_CONFIG
    assert (await configs_of(aio_admin, topic))["max.message.bytes"] == "7000"


async def test_records_are_deleted(
    aio_admin: AIOKafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for n in range(10):
            await producer.send_and_wait(topic, b"%d" % n, partition=0)
    place = TopicPartition(topic, 0)
    assert await aio_admin.delete_records({place: RecordsToDelete(before_offset=7)}) == {place: 7}
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        assert (await consumer.getone()).offset == 7


async def test_describe_cluster(aio_admin: AIOKafkaAdminClient, bootstrap: str) -> None:
    cluster = await aio_admin.describe_cluster()
    assert bootstrap in [f"{one['host']}:{one['port']}" for one in cluster["brokers"]]
    assert cluster["controller_id"] in [one["node_id"] for one in cluster["brokers"]]
    assert cluster["cluster_id"]
