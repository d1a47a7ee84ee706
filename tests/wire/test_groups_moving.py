"""Groups on several gateways: one coordinator at a time, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.group_member import (
    COORDINATOR_NOT_AVAILABLE,
    NONE,
    NOT_COORDINATOR,
    Member,
    commit,
    describe_group,
    fetch,
)
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient, known_brokers, new_topic_entry

SETTINGS = {
    "TABLEWIRE_BROKER_HEARTBEAT_INTERVAL_MS": "100",
    "TABLEWIRE_BROKER_SESSION_TIMEOUT_MS": "3000",
    "TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}


@pytest.fixture(scope="module")
def pair(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, GatewayProcess]]:
    directory = tmp_path_factory.mktemp("gateways")
    with ExitStack() as stack:
        found = {}
        for name in "ab":
            process = GatewayProcess(module_database_url, directory=directory, name=name, settings=SETTINGS)
            found[process.node_id] = process.start(wait=False)
        for process in found.values():
            process.wait_ready()
            stack.enter_context(process)
        yield found


@pytest.fixture
def gateways(pair: dict[int, GatewayProcess]) -> dict[int, GatewayProcess]:
    """Two gateways by node id, each knowing the other."""
    for process in pair.values():
        if not process.is_running:
            process.restart()
    for process in pair.values():
        wait_for(lambda process=process: known_brokers(process.bootstrap), sorted(pair))
    return pair


def coordinator(gateway: GatewayProcess, group_id: str) -> int:
    with WireClient(gateway.bootstrap) as wire:
        answer = wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=[group_id])
    found: int = answer["coordinators"][0]["node_id"]
    return found


def group_of(gateway: GatewayProcess) -> str:
    """A group that this gateway coordinates."""
    while True:
        group_id = f"group-{uuid.uuid4().hex[:8]}"
        if coordinator(gateway, group_id) == gateway.node_id:
            return group_id


def create_topic(gateway: GatewayProcess) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    with WireClient(gateway.bootstrap) as wire:
        wire.call("CreateTopics", 7, topics=[new_topic_entry(name, 1)], timeout_ms=10_000, validate_only=False)
    return name


def move(member: Member, gateway: GatewayProcess) -> None:
    """The member connects to another gateway and goes on as who it was."""
    member.wire.close()
    member.wire = WireClient(gateway.bootstrap)


def settle_as(gateway: GatewayProcess, **options: Any) -> Member:
    member = Member(gateway.bootstrap, group_of(gateway), **options)
    member.settle()
    return member


def test_another_gateway_says_that_it_is_not_the_coordinator(gateways: dict[int, GatewayProcess]) -> None:
    first, second = gateways.values()
    member = settle_as(first)
    topic = create_topic(first)
    group_id = member.group_id
    with WireClient(second.bootstrap) as wire:
        assert commit(wire, 9, group_id, {topic: {0: 1}}) == {topic: {0: NOT_COORDINATOR}}
        assert describe_group(wire, group_id)["error_code"] == NOT_COORDINATOR
        with pytest.raises(AssertionError, match=str(NOT_COORDINATOR)):
            fetch(wire, 9, group_id, None)
        (deleted,) = wire.call("DeleteGroups", 2, groups_names=[group_id])["results"]
        assert deleted["error_code"] == NOT_COORDINATOR
        listed = wire.call("ListGroups", 5, states_filter=[], types_filter=[])["groups"]
        assert group_id not in [group["group_id"] for group in listed]
    move(member, second)
    assert member.heartbeat() == NOT_COORDINATOR
    assert member.join()["error_code"] == NOT_COORDINATOR
    assert member.sync()["error_code"] == NOT_COORDINATOR
    assert member.leave()["error_code"] == NOT_COORDINATOR
    move(member, first)
    assert member.heartbeat() == NONE
    member.close()


def test_a_stable_group_goes_on_when_its_coordinator_is_killed(gateways: dict[int, GatewayProcess]) -> None:
    first, second = gateways.values()
    topic = create_topic(first)
    member = settle_as(first, instance_id="worker")
    assert member.commit(topic, 5, group_instance_id="worker") == NONE
    first.kill9()
    wait_for(lambda: coordinator(second, member.group_id), second.node_id)
    move(member, second)
    assert member.heartbeat() == NONE
    assert member.generation == 1
    assert member.sync()["assignment"] == "all"
    assert fetch(member.wire, 9, member.group_id, None) == {topic: {0: (5, "", NONE)}}
    assert member.commit(topic, 6, group_instance_id="worker") == NONE
    member.close()


def test_a_stable_group_goes_on_when_its_only_gateway_restarts(gateways: dict[int, GatewayProcess]) -> None:
    first, second = gateways.values()
    second.stop_cleanly()
    wait_for(lambda: known_brokers(first.bootstrap), [first.node_id])
    member = settle_as(first)
    first.kill9()
    first.restart()
    move(member, first)
    assert member.heartbeat() == NONE
    member.close()


def test_members_that_wait_are_sent_on_when_their_gateway_drains(gateways: dict[int, GatewayProcess]) -> None:
    first, second = gateways.values()
    member = settle_as(first)
    other = Member(first.bootstrap, member.group_id)
    joining = other.begin_join()
    wait_for(lambda: describe_group(member.wire, member.group_id)["group_state"], "PreparingRebalance")
    first.stop_cleanly()
    assert joining.result(60)["error_code"] == NOT_COORDINATOR
    wait_for(lambda: coordinator(second, member.group_id), second.node_id)
    move(member, second)
    assert member.heartbeat() == NONE
    member.close()
    other.close()


def test_sessions_end_though_coordinator_and_members_died_together(
    gateways: dict[int, GatewayProcess], module_database_url: str
) -> None:
    first, second = gateways.values()
    member = Member(first.bootstrap, group_of(first))
    member.join(session_timeout_ms=6_000)
    member.sync(assignments={member.member_id: b"all"})
    first.kill9()
    member.close()

    def state() -> tuple[str, int]:
        with psycopg.connect(module_database_url) as connection:
            row = connection.execute(
                "SELECT state, coordinator_id FROM kafka.groups WHERE group_id = %s", [member.group_id]
            ).fetchone()
        assert row is not None
        return row[0], row[1]

    wait_for(state, ("Empty", second.node_id), timeout_s=30)


def test_a_zombie_can_neither_commit_nor_answer_for_its_group(
    gateways: dict[int, GatewayProcess], module_database_url: str
) -> None:
    first, second = gateways.values()
    topic = create_topic(first)
    member = settle_as(first)
    assert member.commit(topic, 5) == NONE
    os.kill(first.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: coordinator(second, member.group_id), second.node_id)
        taken_over = Member(second.bootstrap, member.group_id)
        taken_over.member_id, taken_over.generation = member.member_id, member.generation
        assert taken_over.heartbeat() == NONE
        assert taken_over.commit(topic, 8) == NONE
        # What the zombie finds in its socket when it wakes up was sent while it slept.
        before = member.wire.requests_sent
        late = member._thread.submit(member.commit, topic, 6)
        wait_for(lambda: member.wire.requests_sent, before + 1)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    answer = late.result(60)
    # Not asked over the wire: the group returns to its gateway at some moment from now on. On a busy machine that may
    # be before it comes to the request, which is then heard by the group's coordinator; it must have become it first.
    with psycopg.connect(module_database_url) as connection:
        kept = connection.execute(
            "SELECT o.committed_offset, g.coordinator_id, to_timestamp(g.coordinator_epoch / 1e6) < o.committed_at"
            " FROM kafka.consumer_offsets o JOIN kafka.groups g USING (group_id) WHERE group_id = %s",
            [member.group_id],
        ).fetchone()
    assert kept is not None
    if answer == NONE:
        assert kept == (6, first.node_id, True)
    else:
        assert answer in (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE)
        assert kept[0] == 8
    wait_for(lambda: known_brokers(second.bootstrap), sorted(gateways))
    for one in (member, taken_over):
        one.close()


def test_a_group_comes_back_to_a_gateway_that_comes_back(gateways: dict[int, GatewayProcess]) -> None:
    first, second = gateways.values()
    member = settle_as(first)
    first.kill9()
    wait_for(lambda: coordinator(second, member.group_id), second.node_id)
    move(member, second)
    assert member.heartbeat() == NONE
    first.restart()
    wait_for(lambda: coordinator(second, member.group_id), first.node_id)
    assert member.heartbeat() == NOT_COORDINATOR
    move(member, first)
    assert member.heartbeat() == NONE
    member.close()
