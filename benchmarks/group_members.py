"""Many groups and their live members in raw requests: 200 real clients would need a machine of their own.

Each member joins over a connection of its own. Heartbeats share a few connections and are spread over time, as
those of members that know nothing of each other.
"""

from __future__ import annotations

import asyncio
import io
import struct
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4 import HeartbeatRequest, HeartbeatResponse
from kio.schema.join_group.v9 import JoinGroupRequest, JoinGroupResponse
from kio.schema.join_group.v9.request import JoinGroupRequestProtocol
from kio.schema.leave_group.v5 import LeaveGroupRequest, LeaveGroupResponse
from kio.schema.leave_group.v5.request import MemberIdentity
from kio.schema.offset_commit.v9 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v9.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.sync_group.v5 import SyncGroupRequest, SyncGroupResponse
from kio.schema.sync_group.v5.request import SyncGroupRequestAssignment
from kio.serial import entity_reader, entity_writer

from benchmarks.clients import ClientFailed
from benchmarks.workload import GroupLoad

__all__ = ["time_heartbeats"]

HEARTBEAT_INTERVAL_S = 1.0
"""Clients send one in three seconds; three times as many give p99 something to stand on."""
ANSWER_TIMEOUT_S = 30.0
COMMITTING_CONNECTIONS = 8

# kio has types of its own for numbers and names, and checks them itself: here its classes are plain callables.
Schema = Any


class Connection:
    """Requests one after the other; whoever comes while one is under way waits for its turn."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, bootstrap: str) -> Self:
        host, _, port = bootstrap.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def exchange(self, frame: bytes) -> bytes:
        async with self._turn, asyncio.timeout(ANSWER_TIMEOUT_S):
            self._writer.write(frame)
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def call(self, request: Schema, response: Schema, **fields: Any) -> Any:
        return _decode(response, await self.exchange(_encode(request, **fields)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@dataclass
class Member:
    group_id: str
    member_id: str = ""
    generation: int = -1
    heartbeat: bytes = field(default=b"", repr=False)
    """The request, made once."""

    async def introduce(self, connection: Connection, topic: str) -> None:
        """Get a member id (KIP-394)."""
        answer = await self._join(connection, topic)
        _require(answer.error_code, "the first JoinGroup", expected=ErrorCode.member_id_required)
        self.member_id = answer.member_id

    async def join(self, connection: Connection, topic: str) -> None:
        """Become part of the group's generation; its leader gives every member an assignment."""
        answer = await self._join(connection, topic)
        _require(answer.error_code, "JoinGroup")
        self.generation = answer.generation_id
        assign: Schema = SyncGroupRequestAssignment
        synced = await connection.call(
            SyncGroupRequest,
            SyncGroupResponse,
            **self._identity(),
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(assign(member_id=one.member_id, assignment=b"some") for one in answer.members),
        )
        _require(synced.error_code, "SyncGroup")
        self.heartbeat = _encode(HeartbeatRequest, **self._identity())

    async def beat(self, connection: Connection) -> float:
        """Milliseconds until the heartbeat was answered."""
        started = time.perf_counter()
        frame = await connection.exchange(self.heartbeat)
        took_ms = (time.perf_counter() - started) * 1000
        _require(_decode(HeartbeatResponse, frame).error_code, "Heartbeat")
        return took_ms

    async def leave(self, connection: Connection) -> None:
        members = (MemberIdentity(member_id=self.member_id),)
        await connection.call(LeaveGroupRequest, LeaveGroupResponse, group_id=self.group_id, members=members)

    def _identity(self) -> dict[str, Any]:
        return {"group_id": self.group_id, "generation_id": self.generation, "member_id": self.member_id}

    async def _join(self, connection: Connection, topic: str) -> Any:
        return await connection.call(
            JoinGroupRequest,
            JoinGroupResponse,
            group_id=self.group_id,
            session_timeout=timedelta(seconds=45),
            rebalance_timeout=timedelta(seconds=60),
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=_subscription(topic)),),
        )


async def time_heartbeats(
    bootstrap: str, topic: str, partitions: int, load: GroupLoad, *, begin: Callable[[], Callable[[], bool]]
) -> list[float]:
    """Milliseconds of each heartbeat.

    When all groups have offsets and all members are in, `begin` is called, in a thread: it starts what goes on
    meanwhile and returns the question whether that has ended.
    """
    group_ids = [f"bench-group-{number}" for number in range(load.groups)]
    await _commit_offsets(bootstrap, topic, partitions, group_ids)
    live = group_ids[: load.members // load.members_per_group]
    members = [Member(group_id) for group_id in live for _ in range(load.members_per_group)]
    await _join_all(bootstrap, topic, members)
    async with AsyncExitStack() as cleanup:
        connections = [
            await cleanup.enter_async_context(await Connection.open(bootstrap)) for _ in range(load.connections)
        ]
        has_ended = await asyncio.to_thread(begin)
        shared = [(member, connections[number % load.connections]) for number, member in enumerate(members)]
        beating = (
            _beat(member, connection, delay_s=number / len(shared) * HEARTBEAT_INTERVAL_S, has_ended=has_ended)
            for number, (member, connection) in enumerate(shared)
        )
        times_ms = [took for times in await asyncio.gather(*beating) for took in times]
        await asyncio.gather(*(member.leave(connection) for member, connection in shared))
    return times_ms


async def _beat(
    member: Member, connection: Connection, *, delay_s: float, has_ended: Callable[[], bool]
) -> list[float]:
    due = time.perf_counter() + delay_s
    times_ms: list[float] = []
    while True:
        await asyncio.sleep(due - time.perf_counter())
        if has_ended():
            return times_ms
        times_ms.append(await member.beat(connection))
        due += HEARTBEAT_INTERVAL_S


async def _join_all(bootstrap: str, topic: str, members: list[Member]) -> None:
    async with AsyncExitStack() as cleanup:
        seats = [(one, await cleanup.enter_async_context(await Connection.open(bootstrap))) for one in members]
        # All members of a group ask again within its initial rebalance delay: one rebalance takes them all.
        await asyncio.gather(*(member.introduce(connection, topic) for member, connection in seats))
        await asyncio.gather(*(member.join(connection, topic) for member, connection in seats))


async def _commit_offsets(bootstrap: str, topic: str, partitions: int, group_ids: list[str]) -> None:
    """As tools and consumers without a membership do."""

    offset: Schema = OffsetCommitRequestPartition
    offsets = tuple(
        offset(partition_index=number, committed_offset=1, committed_metadata="") for number in range(partitions)
    )
    in_topic: Schema = OffsetCommitRequestTopic

    async def commit(connection: Connection, group_id: str) -> None:
        answer = await connection.call(
            OffsetCommitRequest,
            OffsetCommitResponse,
            group_id=group_id,
            member_id="",
            topics=(in_topic(name=topic, partitions=offsets),),
        )
        for one in answer.topics[0].partitions:
            _require(one.error_code, "OffsetCommit")

    async with AsyncExitStack() as cleanup:
        connections = [
            await cleanup.enter_async_context(await Connection.open(bootstrap)) for _ in range(COMMITTING_CONNECTIONS)
        ]
        await asyncio.gather(
            *(commit(connections[number % len(connections)], name) for number, name in enumerate(group_ids))
        )


def _subscription(topic: str) -> bytes:
    """What a consumer says when it joins, as version 0 of the consumer protocol."""
    return struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic.encode(), -1)


def _encode(request: Schema, **fields: Any) -> bytes:
    """A whole request, its length included."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=1,  # answers come in order, and one at a time
        client_id="bench-member",
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    entity_writer(request)(buffer, request(**fields))
    return struct.pack(">i", buffer.tell()) + buffer.getvalue()


def _decode(response: Schema, frame: bytes) -> Any:
    _, size = entity_reader(response.__header_schema__)(frame, 0)
    return entity_reader(response)(frame, size)[0]


def _require(code: ErrorCode, what: str, *, expected: ErrorCode = ErrorCode.none) -> None:
    if code is not expected:
        raise ClientFailed(f"{what} was answered with {code.name}")
