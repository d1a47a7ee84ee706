"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848) over the wire: each refusal, and both protocols together.

kafka-python does not know these two APIs, so they are written and read with kio's classes; that real clients understand
them is what tests/clients/test_consumer_groups.py shows.
"""

from __future__ import annotations

import io
import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tests.support.gateway_process import GatewayProcess
from tests.support.handmade_transactions import CLASSIC, KIP_890, Generation, TransactionConnection
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

HEARTBEAT, DESCRIBE = 68, 69
NONE, INVALID_REQUEST, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 0, 42, 22, 25, 27
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, FENCED_INSTANCE_ID = 68, 69, 81, 82
FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, UNSUPPORTED_ASSIGNOR, STALE_MEMBER_EPOCH = 110, 111, 112, 113
MEMBER_ID_REQUIRED, INVALID_REGULAR_EXPRESSION = 79, 128

SETTINGS = {
    "TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "TABLEWIRE_GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS": "500",
    "TABLEWIRE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "5000",
    "TABLEWIRE_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": "100",
    "TABLEWIRE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "1000",
    "TABLEWIRE_GROUP_CONSUMER_MAX_SIZE": "3",
}

HASTY = {**SETTINGS, "TABLEWIRE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "2000"}


@pytest.fixture(scope="module")
def consumer_gateway(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose consumer groups are small."""
    directory: Path = tmp_path_factory.mktemp("consumer-gateway")
    with GatewayProcess(module_database_url, directory=directory, settings=SETTINGS) as process:
        yield process


@pytest.fixture(scope="module")
def bootstrap(consumer_gateway: GatewayProcess) -> str:
    return consumer_gateway.bootstrap


@pytest.fixture
def wire(bootstrap: str) -> Iterator[WireClient]:
    with WireClient(bootstrap) as client:
        yield client


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return f"wire-group-{uuid.uuid4().hex[:12]}"


class Kio:
    """A connection that speaks by kio's classes."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._stream = self._socket.makefile("rb")

    def call(self, api_key: int, version: int, **fields: Any) -> Any:
        request_class: Any = load_request_schema(api_key, version)
        out = io.BytesIO()
        header_class = request_class.__header_schema__
        header = header_class(request_api_key=api_key, request_api_version=version, correlation_id=7, client_id="kio")
        entity_writer(header_class)(out, header)
        entity_writer(request_class)(out, request_class(**fields))
        self._socket.sendall(struct.pack(">i", len(out.getvalue())) + out.getvalue())
        head = self._stream.read(4)
        assert len(head) == 4, "the connection was closed instead of answering"
        frame = self._stream.read(*struct.unpack(">i", head))
        response_class: Any = load_response_schema(api_key, version)
        _, size = entity_reader(response_class.__header_schema__)(frame, 0)
        answer, rest = entity_reader(response_class)(frame, size)
        assert size + rest == len(frame)
        return answer

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Consumer:
    """A member of a consumer group that remembers its epoch and what it owns."""

    def __init__(self, kio: Kio, group_id: str, *, topics: tuple[str, ...] = (), instance: str | None = None) -> None:
        self._kio = kio
        self.group_id = group_id
        self.member_id = uuid.uuid4().hex
        self.instance = instance
        self.topics = topics
        self.epoch = 0
        self.owned: dict[uuid.UUID, tuple[int, ...]] = {}

    def send(self, version: int = 1, **changes: Any) -> Any:
        request_class: Any = load_request_schema(HEARTBEAT, version)
        owned = changes.pop("owned", None)
        topic_class = import_module(request_class.__module__).TopicPartitions
        partitions = None
        if owned is not None:
            partitions = tuple(topic_class(topic_id=topic, partitions=numbers) for topic, numbers in owned.items())
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "topic_partitions": partitions,
        }
        return self._kio.call(HEARTBEAT, version, **{**fields, **changes})

    def join(self, **changes: Any) -> Any:
        self.epoch = 0
        fields = {"subscribed_topic_names": self.topics, "rebalance_timeout": timedelta(seconds=30), "owned": {}}
        return self._heard(self.send(**{**fields, **changes}))

    def beat(self, **changes: Any) -> Any:
        return self._heard(self.send(**changes))

    def confirm(self) -> Any:
        """Say what is owned now."""
        return self.beat(owned=self.owned)

    def leave(self, epoch: int = -1) -> Any:
        return self.send(member_epoch=epoch)

    @property
    def count(self) -> int:
        return sum(map(len, self.owned.values()))

    def _heard(self, answer: Any) -> Any:
        if answer.error_code == NONE:
            self.member_id, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                self.owned = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}
        return answer


@pytest.fixture
def join(bootstrap: str, group: str) -> Iterator[Callable[..., Consumer]]:
    """A member that has joined `group`."""
    opened: list[Kio] = []

    def make(*topics: str, instance: str | None = None, joins: bool = True, **changes: Any) -> Consumer:
        opened.append(Kio(bootstrap))
        consumer = Consumer(opened[-1], group, topics=topics, instance=instance)
        if joins:
            answer = consumer.join(**changes)
            assert answer.error_code == NONE, answer
        return consumer

    yield make
    for kio in opened:
        kio.close()


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_reads_everything_and_leaves(
    join: Callable[..., Consumer], new_topic: Callable[..., str], version: int
) -> None:
    consumer = join(new_topic(3), joins=False)
    if version == 0:
        consumer.member_id = ""  # the gateway makes one
    answer = consumer.join(version=version)
    assert (answer.error_code, answer.member_epoch, answer.heartbeat_interval) == (NONE, 1, timedelta(seconds=1))
    assert list(consumer.owned.values()) == [(0, 1, 2)]
    quiet = consumer.beat(version=version)
    assert (quiet.error_code, quiet.assignment) == (NONE, None)
    assert consumer.leave().member_epoch == -1
    assert consumer.beat().error_code == UNKNOWN_MEMBER_ID


def test_partitions_go_over_only_when_they_were_given_up(
    join: Callable[..., Consumer], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    first = join(topic)
    second = join(topic)
    assert second.count == 0
    assert (first.beat().member_epoch, first.count) == (1, 2)
    assert (second.beat().error_code, second.count) == (NONE, 0)
    assert first.confirm().member_epoch == 2
    second.beat()
    assert second.count == 2
    assert not set(*first.owned.values()) & set(*second.owned.values())


def test_epochs_are_checked_and_a_lost_answer_can_be_had_again(
    join: Callable[..., Consumer], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    first = join(topic)
    join(topic)
    first.beat()
    lost = first.send(owned=first.owned)
    assert lost.member_epoch == 2
    assert first.confirm().member_epoch == 2, "with the previous epoch"
    assert first.send(member_epoch=9).error_code == FENCED_MEMBER_EPOCH
    assert first.send(member_epoch=1).error_code == FENCED_MEMBER_EPOCH


def test_refusals(join: Callable[..., Consumer], new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    stranger = join(topic, joins=False)
    assert stranger.send(member_epoch=1).error_code == GROUP_ID_NOT_FOUND
    assert stranger.join(group_id="").error_code == INVALID_REQUEST
    assert stranger.join(member_id="").error_code == INVALID_REQUEST
    assert stranger.join(member_id="a\0b").error_code == INVALID_REQUEST
    assert stranger.join(owned=None).error_code == INVALID_REQUEST
    assert stranger.join(server_assignor="sticky").error_code == UNSUPPORTED_ASSIGNOR
    regex = stranger.join(subscribed_topic_names=None, subscribed_topic_regex="(")
    assert regex.error_code == INVALID_REGULAR_EXPRESSION
    assert "(" in regex.error_message
    for _ in range(3):
        join(topic)
    assert stranger.join().error_code == GROUP_MAX_SIZE_REACHED
    assert stranger.send(member_epoch=1).error_code == UNKNOWN_MEMBER_ID


def test_static_members_hold_their_place(join: Callable[..., Consumer], new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    first = join(topic, instance="one")
    rival = join(topic, instance="one", joins=False)
    assert rival.join().error_code == UNRELEASED_INSTANCE_ID
    assert first.leave(-2).member_epoch == -2
    assert rival.join().error_code == NONE
    assert (rival.epoch, rival.count) == (1, 2)
    first.epoch = 1
    assert first.beat().error_code == FENCED_INSTANCE_ID


def test_a_pattern_follows_the_topics(join: Callable[..., Consumer], new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    stem = topic.rsplit("-", 1)[0]
    consumer = join(joins=False)
    consumer.join(subscribed_topic_names=None, subscribed_topic_regex=f"{stem}-.*")
    assert consumer.count == 1
    new_topic(2)

    def count() -> int:
        consumer.beat()
        return consumer.count

    wait_for(count, 3)


def test_offsets_are_fenced_by_the_member_epoch(
    join: Callable[..., Consumer], new_topic: Callable[..., str], wire: WireClient, group: str
) -> None:
    topic = new_topic(2)
    member = join(topic)

    def commit(member_id: str, epoch: int, partition: int = 0) -> int:
        answer = wire.call(
            "OffsetCommit",
            9,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            group_instance_id=None,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": partition,
                            "committed_offset": 5,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        )
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    def fetch(member_id: str | None, epoch: int) -> int:
        asked = {"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": None}
        answer = wire.call("OffsetFetch", 9, groups=[asked], require_stable=False)
        return int(answer["groups"][0]["error_code"])

    assert commit(member.member_id, 1) == NONE
    assert commit(member.member_id, 2) == STALE_MEMBER_EPOCH
    assert commit("stranger", 1) == UNKNOWN_MEMBER_ID
    assert commit("", -1) == UNKNOWN_MEMBER_ID, "the group has members"
    assert fetch(None, -1) == fetch(member.member_id, 1) == NONE
    assert fetch(member.member_id, 2) == STALE_MEMBER_EPOCH
    assert fetch("stranger", 1) == UNKNOWN_MEMBER_ID
    join(topic)
    member.beat()
    member.confirm()
    assert member.epoch == 2
    (kept,) = next(iter(member.owned.values()))
    assert commit(member.member_id, 1, kept) == NONE, "KIP-1251: it has had that partition since epoch 1"
    assert commit(member.member_id, 1, 1 - kept) == STALE_MEMBER_EPOCH


@pytest.mark.parametrize("generation", [CLASSIC, KIP_890], ids=lambda generation: generation.name)
def test_offsets_in_transactions_are_fenced_by_the_member_epoch(
    generation: Generation, join: Callable[..., Consumer], new_topic: Callable[..., str], bootstrap: str, group: str
) -> None:
    topic = new_topic(2)
    member = join(topic)
    with TransactionConnection(bootstrap, generation) as connection:
        producer = connection.start(group)

        def commit(member_id: str, epoch: int, offset: int) -> int:
            answer = connection.commit_offsets(
                group, producer, group, {(topic, 0): offset}, member_id=member_id, generation_id=epoch
            )
            return answer[topic, 0]

        if not generation.bumps:
            assert connection.add_offsets(group, producer, group) == NONE
        assert commit(member.member_id, 1, 5) == NONE
        join(topic)
        member.beat()
        member.confirm()
        assert member.epoch == 2
        assert commit(member.member_id, 1, 6) == ILLEGAL_GENERATION, "not the consumer's own code, as with Kafka"
        assert commit("stranger", 2, 7) == UNKNOWN_MEMBER_ID
        assert connection.end(group, producer, commit=True)[0] == NONE
        asked = [{"name": topic, "partition_indexes": [0]}]
        answer = connection.call("OffsetFetch", 5, group_id=group, topics=asked)
    assert answer["topics"][0]["partitions"][0]["committed_offset"] == 5


def test_groups_are_listed_described_and_deleted(
    join: Callable[..., Consumer], new_topic: Callable[..., str], wire: WireClient, group: str, bootstrap: str
) -> None:
    topic = new_topic(2)
    member = join(topic, rack_id="rack")
    (listed,) = [one for one in list_groups(wire) if one["group_id"] == group]
    assert (listed["group_type"].lower(), listed["group_state"], listed["protocol_type"]) == (
        "consumer",
        "Stable",
        "consumer",
    )
    assert group not in {one["group_id"] for one in list_groups(wire, types_filter=["classic"])}
    classic = wire.call("DescribeGroups", 6, groups=[group], include_authorized_operations=False)["groups"][0]
    assert (classic["error_code"], classic["group_state"]) == (GROUP_ID_NOT_FOUND, "Dead")
    described = describe(bootstrap, group)
    assert (described.error_code, described.group_state, described.assignor_name) == (NONE, "Stable", "uniform")
    assert (described.group_epoch, described.assignment_epoch) == (1, 1)
    (shown,) = described.members
    assert (shown.member_id, shown.member_epoch, shown.rack_id, shown.client_id) == (member.member_id, 1, "rack", "kio")
    assert (shown.member_type, shown.subscribed_topic_names) == (1, (topic,))
    for assignment in (shown.assignment, shown.target_assignment):
        assert [(one.topic_name, one.partitions) for one in assignment.topic_partitions] == [(topic, (0, 1))]
    assert delete(wire, group) == NON_EMPTY_GROUP
    member.leave()
    assert describe(bootstrap, group).group_state == "Empty"
    assert delete(wire, group) == NONE
    assert describe(bootstrap, group).error_code == GROUP_ID_NOT_FOUND


def list_groups(wire: WireClient, **filters: Any) -> list[dict[str, Any]]:
    fields = {"states_filter": [], "types_filter": [], **filters}
    return list(wire.call("ListGroups", 5, **fields)["groups"])


def describe(bootstrap: str, group: str) -> Any:
    kio = Kio(bootstrap)
    try:
        answer = kio.call(DESCRIBE, 1, group_ids=(group,), include_authorized_operations=True)
    finally:
        kio.close()
    return answer.groups[0]


def delete(wire: WireClient, group: str) -> int:
    return int(wire.call("DeleteGroups", 2, groups_names=[group])["results"][0]["error_code"])


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


class Classic:
    """A member that speaks the classic protocol, eagerly: it gives up everything before it joins."""

    def __init__(self, wire: WireClient, group_id: str, topic: str) -> None:
        self.wire = wire
        self.group_id = group_id
        self.topic = topic
        self.member_id = ""
        self.generation = -1

    def join(self) -> int:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription(self.topic)}],
            "reason": "test",
        }
        answer = self.wire.call("JoinGroup", 9, **fields)
        if answer["error_code"] == MEMBER_ID_REQUIRED:
            self.member_id = answer["member_id"]
            answer = self.wire.call("JoinGroup", 9, **{**fields, "member_id": self.member_id})
        if answer["error_code"] == NONE:
            self.member_id, self.generation, self.leader = (
                answer["member_id"],
                answer["generation_id"],
                answer["leader"],
            )
        return int(answer["error_code"])

    def sync(self, assignment: bytes | None = None) -> tuple[int, int]:
        """The error code, and how many partitions were assigned."""
        assignments = [] if assignment is None else [{"member_id": self.member_id, "assignment": assignment}]
        answer = self.wire.call(
            "SyncGroup",
            5,
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        # Version, topics, the name's length, the name, then the number of partitions.
        data = answer["assignment"] if isinstance(answer["assignment"], bytes) else answer["assignment"].encode()
        topics = struct.unpack_from(">i", data, 2)[0] if len(data) > 6 else 0
        return int(answer["error_code"]), struct.unpack_from(">i", data, 8 + len(self.topic))[0] if topics else 0

    def beat(self) -> int:
        answer = self.wire.call(
            "Heartbeat",
            4,
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
        )
        return int(answer["error_code"])


def test_a_classic_group_becomes_a_consumer_group_and_a_classic_one_again(
    join: Callable[..., Consumer], new_topic: Callable[..., str], wire: WireClient, group: str, bootstrap: str
) -> None:
    topic = new_topic(4)
    old = Classic(wire, group, topic)
    assert old.join() == NONE
    everything = struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i4ii", 4, 0, 1, 2, 3, -1)
    assert old.sync(everything) == (NONE, 4)
    new = join(topic)
    assert (new.epoch, new.count) == (2, 0)
    assert describe(bootstrap, group).members[0].member_type == 0
    assert old.beat() == REBALANCE_IN_PROGRESS
    assert (old.join(), old.leader) == (NONE, "")
    assert old.sync() == (NONE, 2)
    new.beat()
    assert new.count == 2
    assert old.beat() == NONE
    old.generation = 7
    assert old.beat() == ILLEGAL_GENERATION
    new.leave()
    (listed,) = [one for one in list_groups(wire) if one["group_id"] == group]
    assert listed["group_type"].lower() == "classic"
    assert old.join() == NONE
    assert old.leader == old.member_id
    assert old.sync(everything) == (NONE, 4)


def test_an_empty_group_is_of_the_protocol_of_its_next_member(
    join: Callable[..., Consumer], new_topic: Callable[..., str], wire: WireClient, group: str
) -> None:
    topic = new_topic(1)
    member = join(topic)
    epoch = member.epoch
    member.leave()
    old = Classic(wire, group, topic)
    assert old.join() == NONE
    assert old.generation > epoch
    assert old.leader == old.member_id
    left = wire.call(
        "LeaveGroup",
        5,
        group_id=group,
        members=[{"member_id": old.member_id, "group_instance_id": None, "reason": ""}],
    )
    assert left["error_code"] == NONE
    assert member.join().error_code == NONE
    assert member.count == 1


def test_another_gateway_goes_on_where_one_was_killed(database_url: str, tmp_path: Path, group: str) -> None:
    first = GatewayProcess(database_url, directory=tmp_path, name="first", settings=SETTINGS).start()
    kio = Kio(first.bootstrap)
    with WireClient(first.bootstrap) as wire:
        wire.call(
            "CreateTopics",
            7,
            topics=[{"name": "t", "num_partitions": 3, "replication_factor": -1, "assignments": [], "configs": []}],
            timeout_ms=10_000,
            validate_only=False,
        )
    member = Consumer(kio, group, topics=("t",))
    assert member.join().error_code == NONE
    assert member.count == 3
    first.kill9()
    kio.close()
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT group_type, state, generation, assignment_epoch FROM kafka.groups WHERE group_id = %s", [group]
        ).fetchone()
    assert row == ("consumer", "Stable", 1, 1)
    with GatewayProcess(database_url, directory=tmp_path, name="second", settings=HASTY) as second:
        successor = Kio(second.bootstrap)
        member._kio = successor

        def beat() -> int:
            return int(member.beat().error_code)

        wait_for(beat, NONE)
        assert member.epoch == 1, "nothing was rebalanced"
        successor.close()
        # It is silent now, and another gateway's clock ends its session.
        looker = Kio(second.bootstrap)

        def state() -> str:
            return str(
                looker.call(DESCRIBE, 1, group_ids=(group,), include_authorized_operations=False).groups[0].group_state
            )

        wait_for(state, "Empty")
        looker.close()
