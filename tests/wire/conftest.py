"""A gateway that wire tests talk to in raw requests.

`TABLEWIRE_TEST_BOOTSTRAP` points them at another broker, such as Apache Kafka itself, to compare: tests that use
`wire` only state what Kafka does too.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient, new_topic_entry, partition_count

OTHER_BROKER = os.environ.get("TABLEWIRE_TEST_BOOTSTRAP")


@pytest.fixture(scope="session")
def wire_gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for all tests that need nothing special of it; each of them uses topics of its own."""
    if OTHER_BROKER:
        pytest.skip("needs the gateway: TABLEWIRE_TEST_BOOTSTRAP names another broker")
    database_url: str = request.getfixturevalue("wire_database_url")
    settings = {"TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    directory = tmp_path_factory.mktemp("wire-gateway")
    with GatewayProcess(database_url, directory=directory, settings=settings) as process:
        yield process


@pytest.fixture(scope="session")
def wire_bootstrap(request: pytest.FixtureRequest) -> str:
    if OTHER_BROKER:
        return OTHER_BROKER
    process: GatewayProcess = request.getfixturevalue("wire_gateway")
    return process.bootstrap


@pytest.fixture
def wire(wire_bootstrap: str) -> Iterator[WireClient]:
    with WireClient(wire_bootstrap) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A topic name that nobody has used."""
    return f"wire-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(wire: WireClient, topic: str) -> Callable[..., str]:
    """Create a fresh topic and return its name once the broker knows it."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"{topic}-{len(created)}"
        created.append(name)
        entry = new_topic_entry(name, partitions, **configs)
        answer = wire.call("CreateTopics", 7, topics=[entry], timeout_ms=10_000, validate_only=False)
        assert answer["topics"][0]["error_code"] == 0, answer
        wait_for(lambda: partition_count(wire, name), partitions)
        return name

    created: list[str] = []
    return create
