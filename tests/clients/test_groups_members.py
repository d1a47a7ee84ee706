"""Groups of each client under load: members come, go, are killed and freeze; no record is missed, no commit lost."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import CLIENTS, OTHER_BROKER
from tests.support import java
from tests.support.gateway_process import GatewayProcess
from tests.support.group_auditor import CONSUMER_SETTINGS, Load, Worker, finish, require_commits_kept
from tests.support.waiting import wait_for

PARTITIONS = 12
CONSUMER = "consumer"

Shape = tuple[str, int, int]


@pytest.fixture(scope="module")
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess | None]:
    """A gateway with short sessions for members of the consumer protocol; None when another broker is tested."""
    if OTHER_BROKER:
        yield None
        return
    url: str = request.getfixturevalue("module_database_url")
    with GatewayProcess(url, directory=tmp_path_factory.mktemp("groups"), settings=CONSUMER_SETTINGS) as process:
        yield process


@pytest.fixture(scope="module")
def bootstrap(gateway: GatewayProcess | None) -> str:
    return OTHER_BROKER if gateway is None else gateway.bootstrap  # type: ignore[return-value]


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def start_worker(bootstrap: str, group: str) -> Callable[..., Worker]:
    def start(client: str, topic: str, *, assignor: str = "range") -> Worker:
        try:
            return Worker(client, bootstrap, group, topic, assignor=assignor)
        except java.JavaMissing as missing:
            pytest.skip(str(missing))

    return start


@pytest.fixture
def shape(assignor: str, admin: AdminClient, group: str, gateway: GatewayProcess | None) -> Callable[[], Shape]:
    """Reads the group's state, its members, and how many partitions they own."""

    def by_client() -> Shape:
        found = admin.describe_consumer_groups([group])[group].result(60)
        owned = [one.partition for member in found.members for one in member.assignment.topic_partitions]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        return found.state.name, len(found.members), len(owned)

    def by_rows() -> Shape:
        assert gateway is not None
        with psycopg.connect(gateway.database_url) as connection:
            state = connection.execute("SELECT state FROM kafka.groups WHERE group_id = %s", [group]).fetchone()
            members = connection.execute(
                "SELECT assigned_partitions FROM kafka.group_members WHERE group_id = %s", [group]
            ).fetchall()
        owned = [one for (topics,) in members for partitions in (topics or {}).values() for one in partitions]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        return str(state[0]).upper() if state else "", len(members), len(owned)

    if assignor != CONSUMER:
        return by_client
    if gateway is None:
        pytest.skip("needs short sessions and rows: TABLEWIRE_TEST_BOOTSTRAP names another broker")
    return by_rows  # librdkafka cannot describe groups of the consumer protocol


def lag(admin: AdminClient, group: str, topic: str) -> int:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    committed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    ends = {
        one.partition: found.result(60).offset
        for one, found in admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest())).items()
    }
    offsets = {one.partition: one.offset for one in committed.topic_partitions}
    return sum(end - max(offsets.get(index, 0), 0) for index, end in ends.items())


@pytest.mark.parametrize(
    ("client", "assignor"),
    [*((client, "range") for client in CLIENTS), ("confluent-kafka", CONSUMER), ("java", CONSUMER)],
)
def test_a_group_grows_to_six_members_loses_three_at_once_and_shrinks_to_one(
    client: str,
    assignor: str,
    shape: Callable[[], Shape],
    admin: AdminClient,
    bootstrap: str,
    group: str,
    new_topic: Callable[..., str],
    start_worker: Callable[..., Worker],
) -> None:
    topic = new_topic(PARTITIONS)
    load = Load(bootstrap, topic)
    with (
        start_worker(client, topic, assignor=assignor) as stays,
        start_worker(client, topic, assignor=assignor) as dies,
    ):
        stays.add()
        wait_for(lambda: stays.count("record") > 0, wanted=True, timeout_s=90)
        stays.add(2)
        dies.add(3)
        wait_for(shape, ("STABLE", 6, PARTITIONS), timeout_s=60)
        wait_for(lambda: dies.count("committed") > 0, wanted=True)
        dies.kill9()
        wait_for(shape, ("STABLE", 3, PARTITIONS), timeout_s=60)
        stays.remove(2)
        wait_for(shape, ("STABLE", 1, PARTITIONS), timeout_s=60)
        finish(load, stays, dies)
        wait_for(lambda: lag(admin, group, topic), 0)
        require_commits_kept(stays, dies)
    wait_for(shape, ("EMPTY", 0, 0))


@pytest.mark.parametrize(
    ("client", "assignor"),
    [
        ("confluent-kafka", "cooperative-sticky"),
        ("java", "range"),
        ("confluent-kafka", CONSUMER),
        ("java", CONSUMER),
    ],
)
def test_a_member_that_freezes_for_longer_than_its_session_comes_back(
    client: str,
    assignor: str,
    shape: Callable[[], Shape],
    admin: AdminClient,
    bootstrap: str,
    group: str,
    new_topic: Callable[..., str],
    start_worker: Callable[..., Worker],
) -> None:
    topic = new_topic(PARTITIONS)
    load = Load(bootstrap, topic)
    with (
        start_worker(client, topic, assignor=assignor) as stays,
        start_worker(client, topic, assignor=assignor) as sleeps,
    ):
        stays.add()
        sleeps.add()
        wait_for(shape, ("STABLE", 2, PARTITIONS), timeout_s=60)
        wait_for(lambda: sleeps.count("committed") > 0, wanted=True)
        sleeps.freeze()
        try:
            wait_for(shape, ("STABLE", 1, PARTITIONS), timeout_s=60)
        finally:
            sleeps.thaw()
        before = sleeps.count("committed")
        wait_for(shape, ("STABLE", 2, PARTITIONS), timeout_s=60)
        wait_for(lambda: sleeps.count("committed") > before, wanted=True, timeout_s=30)
        finish(load, stays, sleeps)
        wait_for(lambda: lag(admin, group, topic), 0)
        require_commits_kept(stays, sleeps)
