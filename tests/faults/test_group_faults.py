"""PostgreSQL dies and comes back while groups are in use: members are told to ask again, and go on as who they were."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from tests.faults.conftest import CrashingServer
from tests.support.gateway_process import GatewayProcess
from tests.support.group_member import COORDINATOR_NOT_AVAILABLE, NONE, Member, commit, fetch
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

StartGateway = Callable[..., GatewayProcess]
NewTopic = Callable[..., str]


def test_members_outlive_a_database_that_is_killed(
    crashing_server: CrashingServer, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(crashing_server.url, group_initial_rebalance_delay_ms=0)
    topic = new_topic(gateway)
    member = Member(gateway.bootstrap, f"faults-{uuid.uuid4().hex[:8]}")
    assert member.join(session_timeout_ms=60_000)["error_code"] == NONE
    member.sync(assignments={member.member_id: b"all"})
    assert member.commit(topic, 5) == NONE
    crashing_server.kill9()
    try:
        assert member.commit(topic, 6) == COORDINATOR_NOT_AVAILABLE
        other = Member(gateway.bootstrap, f"faults-{uuid.uuid4().hex[:8]}")
        assert other.join()["error_code"] == COORDINATOR_NOT_AVAILABLE
        with WireClient(gateway.bootstrap) as wire:
            assert commit(wire, 9, other.group_id, {topic: {0: 1}})[topic][0] != NONE
    finally:
        crashing_server.start_again()
    wait_for(member.heartbeat, NONE, timeout_s=30)
    wait_for(lambda: member.commit(topic, 7), NONE)
    assert fetch(member.wire, 9, member.group_id, {topic: [0]})[topic][0][0] == 7
    assert member.sync()["assignment"] == "all"
    wait_for(lambda: other.join()["error_code"], NONE)
    other.leave()
    member.leave()
    for one in (member, other):
        one.close()


def test_a_generation_that_could_not_be_written_is_not_told(
    crashing_server: CrashingServer, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(crashing_server.url, group_initial_rebalance_delay_ms=0)
    member = Member(gateway.bootstrap, f"faults-{uuid.uuid4().hex[:8]}")
    assert member.join(session_timeout_ms=60_000)["error_code"] == NONE
    crashing_server.kill9()
    try:
        assert member.sync(assignments={member.member_id: b"all"})["error_code"] == COORDINATOR_NOT_AVAILABLE
    finally:
        crashing_server.start_again()
    member.member_id = ""

    def settle() -> int:
        code: int = member.join()["error_code"]
        return code or member.sync(assignments={member.member_id: b"all"})["error_code"]

    wait_for(settle, NONE, timeout_s=30)
    member.leave()
    member.close()
