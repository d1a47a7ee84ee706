"""One group of several clients while its coordinator is killed: another gateway goes on with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.conftest import CLIENTS, OTHER_BROKER
from tests.support import java
from tests.support.gateway_process import GatewayProcess
from tests.support.group_auditor import CONSUMER_SETTINGS, Load, Worker, finish, require_commits_kept
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient, known_brokers

PARTITIONS = 8
GROUP, TOPIC = "mixed", "numbers"
MOVED_WITHIN_S = 60.0


@pytest.fixture
def gateways(database_url: str, tmp_path: Path) -> Iterator[dict[int, GatewayProcess]]:
    if OTHER_BROKER:
        pytest.skip("needs gateways to kill: TABLEWIRE_TEST_BOOTSTRAP names another broker")
    with ExitStack() as stack:
        found = {}
        for name in "ab":
            process = GatewayProcess(database_url, directory=tmp_path, name=name, settings=CONSUMER_SETTINGS)
            found[process.node_id] = process.start(wait=False)
        for process in found.values():
            process.wait_ready()
            stack.enter_context(process)
        for process in found.values():
            # kafka-python and aiokafka never ask anybody whom they were not told of.
            wait_for(lambda process=process: known_brokers(process.bootstrap), sorted(found))
        yield found


def coordinator(gateway: GatewayProcess) -> int:
    with WireClient(gateway.bootstrap) as wire:
        answer = wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=[GROUP])
    found: int = answer["coordinators"][0]["node_id"]
    return found


def members(database_url: str) -> tuple[str, int]:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT state, (SELECT count(*) FROM kafka.group_members m WHERE m.group_id = g.group_id)"
            " FROM kafka.groups g WHERE group_id = %s",
            [GROUP],
        ).fetchone()
    return (row[0], row[1]) if row else ("", 0)


def lag(database_url: str) -> tuple[int, int]:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT count(*), sum(lag)::bigint FROM kafka.consumer_lag WHERE group_id = %s", [GROUP]
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def told(workers: list[Worker], killed_at: float, database_url: str, survivor: GatewayProcess) -> str:
    """What is known when a group does not go on: each member's last events, the group's rows, the survivor's log."""
    lines = []
    for worker in workers:
        lines.append(f"{worker.client} (exit code {worker.process.poll()}), seconds after the kill:")
        lines += [
            f"  {one.time_ns / 1e9 - killed_at:7.2f} {one.kind} {one.partition} {one.offset}"
            for one in worker.events[-6:]
        ]
        lines += [f"  said: {line}" for line in list(worker.errors)[-40:]]
    with psycopg.connect(database_url) as connection:
        for table in ("brokers", "groups", "group_members"):
            lines.append(f"{table}:")
            lines += [f"  {row}" for row in connection.execute(f"SELECT to_json(t) FROM kafka.{table} t").fetchall()]
    return "\n".join([*lines, "the survivor's log:", *survivor.log_text().splitlines()[-40:]])


def committed_again(worker: Worker, killed_at: float) -> list[float]:
    """When, in seconds after the kill; what was on its way then is not counted."""
    times = [one.time_ns / 1e9 - killed_at for one in list(worker.events) if one.kind == "committed"]
    return [since for since in times if since > 1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("assignor", "clients"),
    [("range", CLIENTS), ("consumer", ("confluent-kafka", "java"))],
    ids=["classic", "consumer"],
)
def test_a_mixed_group_outlives_its_coordinator(
    assignor: str, clients: tuple[str, ...], gateways: dict[int, GatewayProcess], database_url: str
) -> None:
    bootstrap = ",".join(gateway.bootstrap for gateway in gateways.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(60)
    try:
        java.jar_directory()
    except java.JavaMissing:
        clients = tuple(client for client in clients if client != "java")
    load = Load(bootstrap, TOPIC)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(client, bootstrap, GROUP, TOPIC, assignor=assignor)) for client in clients
        ]
        for worker in workers:
            worker.add()
        wait_for(lambda: members(database_url), ("Stable", len(clients)), timeout_s=60)
        for worker in workers:
            wait_for(lambda worker=worker: worker.count("committed") > 0, wanted=True, timeout_s=60)
        victim = gateways[coordinator(next(iter(gateways.values())))]
        survivor = next(gateway for gateway in gateways.values() if gateway is not victim)
        victim.kill9()
        killed_at = time.monotonic()
        wait_for(lambda: coordinator(survivor), survivor.node_id, timeout_s=MOVED_WITHIN_S)
        wait_for(
            lambda: [worker.client for worker in workers if len(committed_again(worker, killed_at)) < 3],
            wanted=[],
            timeout_s=MOVED_WITHIN_S,
            explain=lambda: told(workers, killed_at, database_url, survivor),
        )
        for worker in workers:
            print(f"{worker.client} committed again {committed_again(worker, killed_at)[0]:.1f} s after the kill")
        finish(load, *workers, timeout_s=60)
        wait_for(lambda: lag(database_url), (PARTITIONS, 0), timeout_s=30)
        require_commits_kept(*workers)
    wait_for(lambda: members(database_url), ("Empty", 0))
