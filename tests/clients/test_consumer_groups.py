"""Consumers with `group.protocol=consumer` (KIP-848), each in a process of its own: they come, go, die and return.

Kafka's Java client and librdkafka, also together with classic consumers in one group.
"""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from typer.testing import CliRunner

from gateway.cli import app
from tests.support import java
from tests.support.consumer_processes import ConsumerProcess, Kind
from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_for

KINDS: tuple[Kind, ...] = ("confluent-kafka", "java")
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PATIENCE_S = 90.0

# Quick, so that no test waits for a client's slow heart.
SETTINGS = {
    "TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "TABLEWIRE_GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS": "1000",
    "TABLEWIRE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "8000",
    "TABLEWIRE_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": "100",
    "TABLEWIRE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "300",
}


@pytest.fixture(scope="module")
def quick_gateway(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("quick-gateway")
    with GatewayProcess(module_database_url, directory=directory, settings=SETTINGS) as process:
        yield process


@pytest.fixture(scope="module")
def bootstrap(quick_gateway: GatewayProcess) -> str:
    return quick_gateway.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def start(bootstrap: str, group: str) -> Iterator[Callable[..., ConsumerProcess]]:
    """Start a member of `group`; it is closed when the test ends."""
    members: list[ConsumerProcess] = []

    def start(kind: Kind, *topics: str, is_held: bool = False, **settings: str) -> ConsumerProcess:
        try:
            member = ConsumerProcess(kind, bootstrap, group, topics=list(topics), is_held=is_held, **settings)
        except java.JavaMissing as missing:
            pytest.skip(str(missing))
        members.append(member)
        return member

    yield start
    for member in members:
        member.close()
        assert not member.errors


class Load:
    """A producer that never stops until it is told to; remembers what it sent."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: set[str] = set()
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._is_over.wait(0.002):
                break
            value = f"{self._topic}/{number}"
            self._producer.produce(self._topic, value, key=str(number))
            self.sent.add(value)
            self._producer.poll(0)

    def stop(self) -> set[str]:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.sent


@pytest.fixture
def load(bootstrap: str) -> Iterator[Callable[[str], Load]]:
    loads: list[Load] = []

    def begin(topic: str) -> Load:
        loads.append(Load(bootstrap, topic))
        return loads[-1]

    yield begin
    for one in loads:
        one.stop()


def share(*members: ConsumerProcess) -> list[int]:
    """How many partitions each has, sorted; empty while two members say that they own the same one."""
    owned = [partition for member in members for partition in member.assigned]
    if len(set(owned)) != len(owned):
        return []
    return sorted(len(member.assigned) for member in members)


def received(*members: ConsumerProcess) -> set[str]:
    return {value for member in members for value in member.values}


@pytest.mark.parametrize("kind", KINDS)
def test_members_share_partitions_evenly_as_they_come_and_go(
    kind: Kind, new_topic: Callable[..., str], start: Callable[..., ConsumerProcess], load: Callable[[str], Load]
) -> None:
    topic = new_topic(6)
    work = load(topic)
    first = start(kind, topic)
    wait_for(lambda: share(first), [6], timeout_s=PATIENCE_S)
    others = [start(kind, topic) for _ in range(3)]
    wait_for(lambda: share(first, *others), [1, 1, 2, 2], timeout_s=PATIENCE_S)
    for other in others:
        other.close()
    wait_for(lambda: share(first), [6], timeout_s=PATIENCE_S)
    sent = work.stop()
    wait_for(lambda: sent - received(first, *others), set[str](), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_member_had_goes_to_the_others(
    kind: Kind, new_topic: Callable[..., str], start: Callable[..., ConsumerProcess], load: Callable[[str], Load]
) -> None:
    topic = new_topic(4)
    work = load(topic)
    survivor, victim = start(kind, topic), start(kind, topic)
    wait_for(lambda: share(survivor, victim), [2, 2], timeout_s=PATIENCE_S)
    kept = survivor.assigned
    victim.kill9()
    wait_for(lambda: share(survivor), [4], timeout_s=PATIENCE_S)
    assert kept < survivor.assigned
    sent = work.stop()
    wait_for(lambda: sent - received(survivor, victim), set[str](), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_takes_in_topics_that_are_created_and_grow(
    kind: Kind, new_topic: Callable[..., str], start: Callable[..., ConsumerProcess], admin: AdminClient
) -> None:
    topic = new_topic(1)
    member = start(kind, pattern=f"{topic.replace('.', '[.]')}.*")
    wait_for(lambda: member.assigned, frozenset({(topic, 0)}), timeout_s=PATIENCE_S)
    admin.create_topics([NewTopic(f"{topic}-more", 1, 1)])[f"{topic}-more"].result(60)
    wait_for(lambda: member.topics, {topic, f"{topic}-more"}, timeout_s=PATIENCE_S)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    wait_for(lambda: share(member), [4], timeout_s=PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_member_that_restarts_gets_its_partitions_back_and_disturbs_nobody(
    kind: Kind,
    new_topic: Callable[..., str],
    start: Callable[..., ConsumerProcess],
    group: str,
    quick_gateway: GatewayProcess,
) -> None:
    topic = new_topic(4)
    one, two = (start(kind, topic, group_instance_id=name) for name in ("one", "two"))
    again = start(kind, topic, group_instance_id="one", is_held=True)  # its session must not end while it starts
    wait_for(lambda: share(one, two), [2, 2], timeout_s=PATIENCE_S)
    before, untouched = one.assigned, two.assigned
    epoch = group_epoch(quick_gateway, group)
    one.close()
    again.begin()
    wait_for(lambda: again.assigned, before, timeout_s=PATIENCE_S)
    assert two.assigned == untouched
    assert group_epoch(quick_gateway, group) == epoch


def group_epoch(gateway: GatewayProcess, group: str) -> int:
    with psycopg.connect(gateway.database_url) as connection:
        row = connection.execute("SELECT generation FROM kafka.groups WHERE group_id = %s", [group]).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("classic_kind", KINDS)
def test_classic_and_new_consumers_share_a_group_while_it_is_upgraded_and_downgraded(
    classic_kind: Kind,
    new_topic: Callable[..., str],
    start: Callable[..., ConsumerProcess],
    load: Callable[[str], Load],
    group: str,
    quick_gateway: GatewayProcess,
) -> None:
    topic = new_topic(4)
    work = load(topic)
    old = start(classic_kind, topic, group_protocol="classic", heartbeat_interval_ms="300", session_timeout_ms="6000")
    wait_for(lambda: share(old), [4], timeout_s=PATIENCE_S)
    assert group_type(quick_gateway, group) == "classic"
    new = start("confluent-kafka", topic)
    wait_for(lambda: share(old, new), [2, 2], timeout_s=PATIENCE_S)
    assert group_type(quick_gateway, group) == "consumer"
    new.close()
    wait_for(lambda: share(old), [4], timeout_s=PATIENCE_S)
    wait_for(lambda: group_type(quick_gateway, group), "classic")
    sent = work.stop()
    wait_for(lambda: sent - received(old, new), set[str](), timeout_s=PATIENCE_S)


def group_type(gateway: GatewayProcess, group: str) -> str:
    with psycopg.connect(gateway.database_url) as connection:
        row = connection.execute("SELECT group_type FROM kafka.groups WHERE group_id = %s", [group]).fetchone()
    return "" if row is None else str(row[0])


def test_kafkas_tool_shows_the_group(
    new_topic: Callable[..., str], start: Callable[..., ConsumerProcess], group: str, bootstrap: str
) -> None:
    topic = new_topic(2)
    member = start("confluent-kafka", topic, client_id="shown")
    wait_for(lambda: share(member), [2], timeout_s=PATIENCE_S)

    def tool(*arguments: str) -> str:
        done = java.run_tool(CONSUMER_GROUPS, "--bootstrap-server", bootstrap, *arguments)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        return done.stdout.decode()

    try:
        listed = tool("--list", "--type")
    except java.JavaMissing as missing:
        pytest.skip(str(missing))
    assert [line.split() for line in listed.splitlines() if group in line] == [[group, "Consumer"]]
    (state,) = [
        line.split()
        for line in tool("--describe", "--group", group, "--state", "--verbose").splitlines()
        if line.startswith(group)
    ]
    assert {"uniform", "Stable", "1"} <= set(state)
    (shown,) = [
        line
        for line in tool("--describe", "--group", group, "--members", "--verbose").splitlines()
        if line.startswith(group)
    ]
    assert f"{topic}:0,1" in shown.replace(" ", "") or f"{topic}(0,1)" in shown.replace(" ", "")
    assert "shown" in shown


def test_tablewire_shows_the_group(
    new_topic: Callable[..., str],
    start: Callable[..., ConsumerProcess],
    load: Callable[[str], Load],
    group: str,
    quick_gateway: GatewayProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", quick_gateway.database_url)

    def tablewire(*arguments: str, refused: bool = False) -> str:
        done = CliRunner().invoke(app, ["groups", *arguments])
        assert done.exit_code == (1 if refused else 0), done.output
        return done.stderr if refused else done.stdout

    def described() -> Any:
        return json.loads(tablewire("describe", group, "--json"))

    topic = new_topic(2)
    work = load(topic)
    pattern = f"{topic.replace('.', '[.]')}.*"
    by_name = start("confluent-kafka", topic, client_id="by-name", group_instance_id="fixed")
    by_pattern = start("confluent-kafka", pattern=pattern, client_id="by-pattern")
    wait_for(lambda: share(by_name, by_pattern), [1, 1], timeout_s=PATIENCE_S)
    wait_for(lambda: described()["state"], "Stable")
    wait_for(lambda: {one["partition"] for one in described()["offsets"]}, {0, 1})
    work.stop()
    wait_for(lambda: sum(one["lag"] for one in described()["offsets"]), 0)
    found = described()
    assert (found["group_type"], found["protocol_type"], found["protocol"]) == ("consumer", "consumer", "uniform")
    assert found["coordinator"] == quick_gateway.node_id
    assert found["generation"] == group_epoch(quick_gateway, group)
    assert [(one["client_id"], one["instance_id"], one["topics"], one["host"]) for one in found["members"]] == [
        ("by-name", "fixed", [topic], "/127.0.0.1"),
        ("by-pattern", None, [], "/127.0.0.1"),
    ]
    (shown,) = [one["pattern"] for one in found["members"] if one["pattern"] is not None]
    assert pattern in shown
    text = tablewire("describe", group)
    assert all(word in text for word in ("uniform", "by-name", "fixed", shown, topic))
    assert "stop them first" in tablewire("delete", group, refused=True)
    by_name.kill9()
    by_pattern.close()
    wait_for(lambda: (described()["state"], described()["members"]), ("Empty", []), timeout_s=PATIENCE_S)
    tablewire("reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    assert [one["offset"] for one in described()["offsets"]] == [0, 0]
    tablewire("delete", group)
    assert "There is no group" in tablewire("describe", group, refused=True)
