"""The classic group protocol under random histories: clients that join, sync, stay silent, crash and come back.

Clients behave as Kafka's do. Whatever happens, each partition has exactly one owner in a stable generation, nobody
waits for ever, and a generation is never handed out twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
    IllegalGeneration,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)

SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 30_000, 3_000
PARTITIONS = range(7)


@dataclass
class Client:
    """A consumer: what it knows of itself, and what it waits for."""

    number: int
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    owned: tuple[int, ...] | None = None
    waiting: str | None = None
    last_heard_ms: int = 0
    joined: Joined | None = field(default=None, repr=False)


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = ClassicGroup(Limits(initial_rebalance_delay_ms=DELAY_MS))
        self.now_ms = 0
        self.clients: list[Client] = []
        self.tickets: dict[str, Client] = {}
        self.numbers = count()
        self.generations: dict[int, frozenset[str]] = {}

    # --- what clients do ----------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 5)
    @rule(is_static=st.booleans())
    def start(self, is_static: bool) -> None:
        number = next(self.numbers)
        instances = {client.instance_id for client in self.clients}
        instance_id = next((f"i{n}" for n in range(5) if f"i{n}" not in instances), None) if is_static else None
        self.clients.append(Client(number, instance_id))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """A client does what it would do next."""
        ready = [client for client in self.clients if client.waiting is None]
        if ready:
            self._act(data.draw(st.sampled_from(ready)))

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        if self.clients:
            self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ready = [client for client in self.clients if client.waiting is None and client.member_id]
        if ready:
            client = data.draw(st.sampled_from(ready))
            self.clients.remove(client)
            self.group.leave([Identity(client.member_id, client.instance_id)], now_ms=self.now_ms)
            self._step()

    @rule(ms=st.integers(1, 12_000))
    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.group.expire(now_ms=self.now_ms)
            self._step()
        self.now_ms = end_ms

    @rule()
    def move_to_another_gateway(self) -> None:
        """What was last saved goes on; those who wait are told to look for the new coordinator."""
        if self.group.state in (GroupState.STABLE, GroupState.EMPTY):
            snapshot = self.group.snapshot()
            self.group.kill(RebalanceInProgress("moved"))
            self._step()
            self.group = ClassicGroup(Limits(initial_rebalance_delay_ms=DELAY_MS), snapshot, now_ms=self.now_ms)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def each_partition_has_one_owner(self) -> None:
        owners = [
            partition
            for client in self.clients
            if client.owned is not None and client.generation == self.group.generation
            and client.member_id in self.group.members
            for partition in client.owned
        ]  # fmt: skip
        assert len(owners) == len(set(owners)), owners
        if self.group.state is GroupState.STABLE:
            given = [list(member.assignment) for member in self.group.members.values()]
            assert sorted(chain.from_iterable(given)) == list(PARTITIONS)

    @invariant()
    def the_leader_is_a_member(self) -> None:
        assert (self.group.leader_id in self.group.members) == bool(self.group.members)
        instances = [one.instance_id for one in self.group.members.values() if one.instance_id is not None]
        assert len(instances) == len(set(instances))

    @invariant()
    def somebody_will_answer_whoever_waits(self) -> None:
        if any(client.waiting for client in self.clients):
            assert self.group.next_deadline_ms() is not None

    def teardown(self) -> None:
        """Left in peace, the clients that live reach a generation that holds exactly them."""
        for _ in range(200):
            if self._is_settled():
                break
            for client in list(self.clients):
                if client.waiting is None:
                    self._act(client)
            self.pass_time(2_000)
        assert self.group.state is (GroupState.STABLE if self.clients else GroupState.EMPTY)
        assert {client.member_id for client in self.clients} == set(self.group.members)
        assert sorted(chain.from_iterable(client.owned or () for client in self.clients)) == (
            list(PARTITIONS) if self.clients else []
        )

    def _is_settled(self) -> bool:
        is_quiet = self.group.state in (GroupState.STABLE, GroupState.EMPTY)
        return (
            is_quiet
            and set(self.group.members) == {client.member_id for client in self.clients}
            and all(client.owned is not None and client.generation == self.group.generation for client in self.clients)
        )

    # --- a client as Kafka's are --------------------------------------------------------------

    def _act(self, client: Client) -> None:
        client.last_heard_ms = self.now_ms
        try:
            if client.joined is not None:
                self._sync(client, client.joined)
            elif client.owned is None:
                self._join(client)
            else:
                self.group.heartbeat(client.member_id, client.instance_id, client.generation, now_ms=self.now_ms)
        except MemberIdRequired as required:
            client.member_id, client.waiting = required.member_id, None
        except KafkaError as error:
            self._refused(client, error)
        finally:
            self._step()

    def _join(self, client: Client) -> None:
        number = next(self.numbers)
        client.waiting = f"join-{number}"
        self.tickets[client.waiting] = client
        request = JoinRequest(
            client.member_id, f"m{number}", client.instance_id, f"c{client.number}", "/127.0.0.1",
            SESSION_MS, REBALANCE_MS, "consumer", (("range", b""),),
        )  # fmt: skip
        self.group.join(request, client.waiting, now_ms=self.now_ms)

    def _sync(self, client: Client, joined: Joined) -> None:
        members = [one.member_id for one in joined.members]
        assignments = [(member_id, bytes(PARTITIONS[index :: len(members)])) for index, member_id in enumerate(members)]
        client.waiting = f"sync-{next(self.numbers)}"
        self.tickets[client.waiting] = client
        self.group.sync(
            client.waiting,
            member_id=client.member_id,
            instance_id=client.instance_id,
            generation=client.generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[] if joined.skip_assignment else assignments,
            now_ms=self.now_ms,
        )

    def _refused(self, client: Client, error: KafkaError) -> None:
        client.waiting, client.joined, client.owned = None, None, None
        if isinstance(error, (UnknownMemberId, FencedInstanceId)):
            client.member_id = ""
        if isinstance(error, (UnknownMemberId, IllegalGeneration, FencedInstanceId)):
            client.generation = -1

    def _step(self) -> None:
        for ticket, result in self.group.take_step().answers:
            client = self.tickets.pop(str(ticket))
            if client.waiting != ticket:
                continue  # it crashed, or asked again
            client.waiting = None
            match result:
                case Joined():
                    members = self.generations.setdefault(result.generation, frozenset(self.group.members))
                    assert result.member_id in self.group.members
                    assert len(members) > 0
                    client.member_id, client.generation, client.joined = result.member_id, result.generation, result
                case Synced():
                    client.owned, client.joined = tuple(result.assignment), None
                case error:
                    self._refused(client, error)


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
