"""The classic group protocol, by example."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from gateway.domain.groups.classic import (
    ClassicGroup,
    GroupState,
    Identity,
    Joined,
    JoinRequest,
    Limits,
    Synced,
)
from gateway.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)

SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000
NEW_MEMBER_MS = 300_000
RANGE = (("range", b"topics"),)


class Harness:
    """A group, a clock, and the answers given so far."""

    def __init__(self, *, delay_ms: int = 0, max_size: int = 100) -> None:
        self.limits = Limits(initial_rebalance_delay_ms=delay_ms, max_size=max_size)
        self.group = ClassicGroup(self.limits)
        self.now_ms = 1_000
        self.answers: dict[str, Any] = {}
        self.saves = 0
        self._numbers = count()

    def join(self, member_id: str = "", **changes: Any) -> str:
        """Send JoinGroup; the ticket is returned, a refusal raised."""
        number = next(self._numbers)
        ticket = f"join-{number}"
        request = {
            "member_id": member_id,
            "new_member_id": f"member-{number}",
            "instance_id": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "must_know_its_id": False,
        }
        try:
            self.group.join(JoinRequest(**{**request, **changes}), ticket, now_ms=self.now_ms)
        finally:
            self._step()
        return ticket

    def sync(self, member_id: str, assignments: Sequence[tuple[str, bytes]] = (), **changes: Any) -> str:
        ticket = f"sync-{next(self._numbers)}"
        request = {
            "member_id": member_id,
            "instance_id": None,
            "generation": self.group.generation,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": assignments,
        }
        try:
            self.group.sync(ticket, **{**request, **changes}, now_ms=self.now_ms)
        finally:
            self._step()
        return ticket

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance_id: str | None = None) -> None:
        generation = self.group.generation if generation is None else generation
        self.group.heartbeat(member_id, instance_id, generation, now_ms=self.now_ms)

    def leave(self, *identities: Identity) -> list[KafkaError | None]:
        outcomes = self.group.leave(identities, now_ms=self.now_ms)
        self._step()
        return outcomes

    def pass_time(self, ms: int) -> None:
        """Let the time pass as a coordinator's timer does: from deadline to deadline."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.group.expire(now_ms=self.now_ms)
            self._step()
        self.now_ms = end_ms

    def stable(self, size: int = 1, **changes: Any) -> list[str]:
        """Bring `size` members into a stable group; each is assigned its own id."""
        tickets = [self.join(**changes)]
        ids = [self.joined(tickets[0]).member_id]
        for _ in range(size - 1):
            ticket = self.join(**changes)
            again = [self.join(member_id) for member_id in ids]
            ids.append(self.joined(ticket).member_id)
            del again
        for member_id in sorted(ids, key=lambda one: one == self.group.leader_id):
            self.sync(member_id, [(one, one.encode()) for one in ids])
        assert self.group.state is GroupState.STABLE
        return ids

    def joined(self, ticket: str) -> Joined:
        answer = self.answers[ticket]
        assert isinstance(answer, Joined), answer
        return answer

    def _step(self) -> None:
        step = self.group.take_step()
        self.saves += step.must_save
        for ticket, result in step.answers:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = result


def test_the_first_member_leads_and_gets_what_it_assigns_to_itself() -> None:
    group = Harness()
    joined = group.joined(group.join())
    assert (joined.generation, joined.leader_id, joined.protocol_name) == (1, joined.member_id, "range")
    assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, b"topics")]
    ticket = group.sync(joined.member_id, [(joined.member_id, b"all")])
    assert group.answers[ticket] == Synced("consumer", "range", b"all")
    assert group.group.state is GroupState.STABLE
    assert group.saves == 1


def test_a_dynamic_member_is_given_an_id_and_joins_with_it() -> None:
    group = Harness()
    with pytest.raises(MemberIdRequired) as required:
        group.join(must_know_its_id=True)
    assert group.group.state is GroupState.EMPTY
    joined = group.joined(group.join(required.value.member_id, must_know_its_id=True))
    assert joined.member_id == required.value.member_id


def test_an_id_that_was_given_out_and_not_used_is_forgotten_after_a_session() -> None:
    group = Harness()
    with pytest.raises(MemberIdRequired) as required:
        group.join(must_know_its_id=True)
    group.pass_time(SESSION_MS)
    with pytest.raises(UnknownMemberId):
        group.join(required.value.member_id, must_know_its_id=True)
    assert not group.group.is_waited_for


def test_a_new_group_waits_for_more_members_as_long_as_they_come() -> None:
    group = Harness(delay_ms=DELAY_MS)
    first = group.join()
    group.pass_time(DELAY_MS - 1)
    second = group.join()
    group.pass_time(DELAY_MS)
    assert group.answers == {}
    group.pass_time(DELAY_MS)
    assert group.joined(first).generation == group.joined(second).generation == 1
    assert len(group.joined(first).members) == 2
    assert group.joined(second).members == ()


def test_a_new_group_waits_no_longer_than_the_rebalance_timeout() -> None:
    group = Harness(delay_ms=DELAY_MS)
    started_ms = group.now_ms
    tickets = [group.join()]
    while tickets[0] not in group.answers:
        group.pass_time(1_000)
        tickets.append(group.join())
    assert group.now_ms - started_ms <= REBALANCE_MS + DELAY_MS


def test_a_second_member_makes_the_first_join_again() -> None:
    group = Harness()
    (first,) = group.stable()
    second = group.join()
    assert second not in group.answers
    with pytest.raises(RebalanceInProgress):
        group.heartbeat(first)
    again = group.join(first)
    assert group.joined(again).generation == group.joined(second).generation == 2
    assert group.joined(again).leader_id == first


def test_followers_get_their_assignment_when_the_leader_has_spoken() -> None:
    group = Harness()
    leader = group.joined(group.join()).member_id
    ticket = group.join()
    group.join(leader)
    follower = group.joined(ticket).member_id
    waiting = group.sync(follower)
    assert waiting not in group.answers
    group.sync(leader, [(leader, b"l"), (follower, b"f")])
    assert group.answers[waiting].assignment == b"f"


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    group = Harness()
    leader = group.joined(group.join()).member_id
    assert group.answers[group.sync(leader, [("somebody else", b"x")])].assignment == b""


def test_a_member_that_asks_again_for_its_assignment_gets_it_again() -> None:
    group = Harness()
    (member,) = group.stable()
    assert group.answers[group.sync(member)].assignment == member.encode()
    assert group.saves == 1


def test_a_member_silent_for_a_session_is_removed_and_the_others_rebalance() -> None:
    group = Harness()
    first, second = group.stable(2)
    group.pass_time(SESSION_MS - 1)
    group.heartbeat(first)
    group.pass_time(1)
    with pytest.raises(UnknownMemberId):
        group.heartbeat(second)
    with pytest.raises(RebalanceInProgress):
        group.heartbeat(first)
    assert group.joined(group.join(first)).generation == 3


def test_a_member_that_does_not_join_again_in_time_is_left_behind() -> None:
    group = Harness()
    first, second = group.stable(2)
    again = group.join(first)  # the leader wants to assign anew
    for _ in range(REBALANCE_MS // 5_000):
        with pytest.raises(RebalanceInProgress):
            group.heartbeat(second)
        group.pass_time(5_000)
    assert [one.member_id for one in group.joined(again).members] == [first]
    with pytest.raises(UnknownMemberId):
        group.heartbeat(second, generation=3)


def test_a_member_that_never_asks_for_its_assignment_is_removed() -> None:
    group = Harness()
    leader = group.joined(group.join()).member_id
    ticket = group.join()
    group.join(leader)
    follower = group.joined(ticket).member_id
    group.sync(leader, [(leader, b"l")])
    for _ in range(REBALANCE_MS // 5_000):
        group.heartbeat(leader)
        group.heartbeat(follower)
        group.pass_time(5_000)
    assert list(group.group.members) == [leader]
    assert group.group.state is GroupState.PREPARING


def test_a_follower_that_joins_unchanged_is_answered_without_a_rebalance() -> None:
    group = Harness()
    _, follower = group.stable(2)
    assert group.joined(group.join(follower)).generation == 2
    assert group.group.state is GroupState.STABLE


def test_a_follower_that_supports_something_else_now_starts_a_rebalance() -> None:
    group = Harness()
    first, follower = group.stable(2)
    again = group.join(follower, protocols=(("range", b"other topics"),))
    assert again not in group.answers
    members = group.joined(group.join(first)).members
    assert {one.metadata for one in members} == {b"topics", b"other topics"}


def test_the_last_to_leave_empties_the_group() -> None:
    group = Harness()
    (member,) = group.stable()
    assert group.leave(Identity(member, None)) == [None]
    assert (group.group.state, group.group.generation, group.group.leader_id) == (GroupState.EMPTY, 2, None)
    assert group.saves == 2


def test_several_leave_at_once_and_each_is_told_its_own_outcome() -> None:
    group = Harness()
    first, second = group.stable(2)
    gone, unknown = group.leave(Identity(second, None), Identity("nobody", None))
    assert gone is None
    assert isinstance(unknown, UnknownMemberId)
    assert list(group.group.members) == [first]


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    group = Harness()
    (member,) = group.stable(instance_id="worker-1")
    assert group.leave(Identity("", "worker-1")) == [None]
    assert member not in group.group.members


def test_a_static_member_comes_back_without_a_rebalance_and_fences_its_predecessor() -> None:
    group = Harness()
    (old,) = group.stable(instance_id="worker-1")
    joined = group.joined(group.join(instance_id="worker-1"))
    assert (joined.generation, joined.skip_assignment, joined.leader_id) == (1, True, joined.member_id)
    assert group.group.state is GroupState.STABLE
    assert group.saves == 2
    assert group.answers[group.sync(joined.member_id, instance_id="worker-1")].assignment == old.encode()
    with pytest.raises(FencedInstanceId):
        group.heartbeat(old, instance_id="worker-1")
    with pytest.raises(UnknownMemberId):
        group.heartbeat(old)


def test_an_old_client_that_comes_back_as_static_leader_is_not_told_that_it_leads() -> None:
    group = Harness()
    (old,) = group.stable(instance_id="worker-1")
    joined = group.joined(group.join(instance_id="worker-1", may_skip_assignment=False))
    assert (joined.leader_id, joined.members, joined.skip_assignment) == (old, (), False)


def test_a_static_member_that_waits_is_fenced_at_once_by_its_successor() -> None:
    group = Harness(delay_ms=DELAY_MS)
    waiting = group.join(instance_id="worker-1")
    group.join(instance_id="worker-1")
    assert isinstance(group.answers[waiting], FencedInstanceId)


def test_a_static_member_that_comes_back_with_another_protocol_starts_a_rebalance() -> None:
    group = Harness()
    group.stable(instance_id="worker-1")
    joined = group.joined(group.join(instance_id="worker-1", protocols=(("sticky", b""), *RANGE)))
    assert (joined.generation, joined.protocol_name, joined.skip_assignment) == (2, "sticky", False)


def test_a_static_member_keeps_its_place_in_a_rebalance_it_missed() -> None:
    group = Harness()
    static = group.joined(group.join(instance_id="worker-1", session_timeout_ms=REBALANCE_MS * 3)).member_id
    group.sync(static, [(static, b"x")])
    ticket = group.join()
    group.pass_time(REBALANCE_MS)
    joined = group.joined(ticket)
    assert joined.leader_id == joined.member_id
    assert {one.instance_id for one in joined.members} == {None, "worker-1"}


def test_the_protocol_is_one_that_all_support_and_most_like_best() -> None:
    group = Harness(delay_ms=DELAY_MS)
    group.join(protocols=(("only-me", b""), ("range", b""), ("sticky", b"")))
    group.join(protocols=(("sticky", b""), ("range", b"")))
    ticket = group.join(protocols=(("sticky", b""), ("range", b"")))
    group.pass_time(2 * DELAY_MS)
    assert group.joined(ticket).protocol_name == "sticky"


@pytest.mark.parametrize(
    "changes",
    [{"protocols": (("other", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}, {"protocol_type": ""}],
)
def test_a_member_with_nothing_in_common_is_refused(changes: dict[str, Any]) -> None:
    group = Harness()
    group.stable()
    with pytest.raises(InconsistentGroupProtocol):
        group.join(**changes)


def test_a_full_group_takes_nobody_else() -> None:
    group = Harness(max_size=2)
    first, _ = group.stable(2)
    with pytest.raises(GroupMaxSizeReached):
        group.join()
    group.join(first)  # who is in may join again
    assert first in group.group.members


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_only_the_current_generation_counts(generation: int) -> None:
    group = Harness()
    (member,) = group.stable()
    for act in (group.heartbeat, group.sync):
        with pytest.raises(IllegalGeneration):
            act(member, generation=generation)


def test_sync_refuses_another_protocol() -> None:
    group = Harness()
    member = group.joined(group.join()).member_id
    with pytest.raises(InconsistentGroupProtocol):
        group.sync(member, protocol_name="sticky")
    with pytest.raises(InconsistentGroupProtocol):
        group.sync(member, protocol_type="connect")


def test_whoever_waits_is_told_when_another_gateway_takes_over() -> None:
    group = Harness(delay_ms=DELAY_MS)
    ticket = group.join()
    group.group.kill(NotCoordinator("moved"))
    group._step()
    assert isinstance(group.answers[ticket], NotCoordinator)
    assert group.group.next_deadline_ms() is None


def test_a_stable_group_goes_on_under_another_coordinator() -> None:
    group = Harness()
    first, second = group.stable(2)
    group.group = ClassicGroup(group.limits, group.group.snapshot(), now_ms=group.now_ms)
    assert (group.group.state, group.group.generation) == (GroupState.STABLE, 2)
    group.heartbeat(first)
    assert group.answers[group.sync(second)].assignment == second.encode()
    group.pass_time(SESSION_MS)
    assert not group.group.is_waited_for


def test_a_join_that_was_lost_is_answered_again() -> None:
    group = Harness()
    leader = group.joined(group.join()).member_id
    again = group.joined(group.join(leader))
    assert (again.generation, again.leader_id) == (1, leader)


def test_a_new_member_that_vanished_while_joining_is_given_up_in_the_end() -> None:
    group = Harness()
    (first,) = group.stable(rebalance_timeout_ms=NEW_MEMBER_MS * 2)
    ticket = group.join()
    for _ in range(NEW_MEMBER_MS // 5_000):
        with pytest.raises(RebalanceInProgress):
            group.heartbeat(first)
        group.pass_time(5_000)
    assert isinstance(group.answers[ticket], UnknownMemberId)


class TestCommits:
    def check(self, group: Harness, member_id: str, generation: int, **changes: Any) -> None:
        arguments = {"instance_id": None, "is_transactional": False, **changes}
        group.group.check_commit(
            member_id, arguments["instance_id"], generation,
            is_transactional=arguments["is_transactional"], now_ms=group.now_ms,
        )  # fmt: skip

    def test_anybody_without_a_generation_commits_to_an_empty_group(self) -> None:
        self.check(Harness(), "", -1)

    def test_only_members_commit_to_a_group_that_has_some(self) -> None:
        group = Harness()
        (member,) = group.stable()
        self.check(group, member, 1)
        with pytest.raises(UnknownMemberId):
            self.check(group, "", -1)
        with pytest.raises(IllegalGeneration):
            self.check(group, member, 0)
        with pytest.raises(UnknownMemberId):
            self.check(group, "nobody", 1)
        with pytest.raises(UnknownMemberId):
            self.check(group, member, 1, instance_id="worker-1")

    def test_a_transaction_of_an_old_client_names_no_member(self) -> None:
        group = Harness()
        group.stable()
        self.check(group, "", -1, is_transactional=True)

    def test_nobody_commits_between_two_generations(self) -> None:
        group = Harness()
        member = group.joined(group.join()).member_id
        with pytest.raises(RebalanceInProgress):
            self.check(group, member, 1)
        self.check(group, member, 1, is_transactional=True)

    def test_a_commit_is_a_sign_of_life(self) -> None:
        group = Harness()
        (member,) = group.stable()
        group.pass_time(SESSION_MS - 1)
        self.check(group, member, 1)
        group.pass_time(SESSION_MS - 1)
        group.heartbeat(member)
