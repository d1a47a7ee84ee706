"""A member of a group that speaks in raw requests, each in any version, and what is asked about groups."""

from __future__ import annotations

import struct
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.wire_client import WireClient

NONE, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, OFFSET_METADATA_TOO_LARGE = 0, 15, 16, 12
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 3, 100
ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID = 22, 23, 24, 25
INVALID_SESSION_TIMEOUT, REBALANCE_IN_PROGRESS = 26, 27
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 68, 69, 79, 82
GROUP_SUBSCRIBED_TO_TOPIC = 86
SESSION_MS = 30_000


def subscription(*topics: str) -> bytes:
    """What a consumer says when it joins, as version 0 of the consumer protocol."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def text(data: bytes) -> str:
    """Bytes as the wire client's answers show them."""
    return data.decode(errors="backslashreplace")


class Member:
    """A member of a group with a connection of its own, whose calls may wait."""

    def __init__(self, bootstrap: str, group_id: str, *, instance_id: str | None = None, topic: str = "t") -> None:
        self.wire = WireClient(bootstrap)
        self.group_id = group_id
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.topic = topic
        self._thread = ThreadPoolExecutor(1)

    def join(self, version: int = 9, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "session_timeout_ms": SESSION_MS,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription(self.topic)}],
            "rebalance_timeout_ms": 30_000,
            "group_instance_id": self.instance_id,
            "reason": "test",
        }
        since = {"rebalance_timeout_ms": 1, "group_instance_id": 5, "reason": 8}
        fields = {name: value for name, value in {**fields, **changes}.items() if version >= since.get(name, 0)}
        answer = self.wire.call("JoinGroup", version, **fields)
        if answer["error_code"] == MEMBER_ID_REQUIRED:
            self.member_id = answer["member_id"]
            answer = self.wire.call("JoinGroup", version, **{**fields, "member_id": self.member_id})
        if answer["error_code"] == NONE:
            self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        return answer

    def begin_join(self) -> Future[dict[str, Any]]:
        return self._thread.submit(self.join)

    def sync(self, version: int = 5, assignments: dict[str, bytes] | None = None, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "assignments": [
                {"member_id": member_id, "assignment": assignment}
                for member_id, assignment in (assignments or {}).items()
            ],
        }
        if version >= 3:
            fields["group_instance_id"] = self.instance_id
        if version >= 5:
            fields |= {"protocol_type": "consumer", "protocol_name": "range"}
        return self.wire.call("SyncGroup", version, **{**fields, **changes})

    def heartbeat(self, version: int = 4, **changes: Any) -> int:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
        }
        if version >= 3:
            fields["group_instance_id"] = self.instance_id
        code: int = self.wire.call("Heartbeat", version, **{**fields, **changes})["error_code"]
        return code

    def leave(self, version: int = 5) -> dict[str, Any]:
        if version < 3:
            return self.wire.call("LeaveGroup", version, group_id=self.group_id, member_id=self.member_id)
        identity: dict[str, Any] = {"member_id": self.member_id, "group_instance_id": self.instance_id}
        if version >= 5:
            identity["reason"] = "done"
        return self.wire.call("LeaveGroup", version, group_id=self.group_id, members=[identity])

    def settle(self) -> None:
        """Join alone and become the stable group."""
        assert self.join()["error_code"] == NONE
        assert self.sync(assignments={self.member_id: b"all"})["error_code"] == NONE

    def commit(self, topic: str, offset: int, **changes: Any) -> int:
        answer = commit(
            self.wire, 9, self.group_id, {topic: {0: offset}},
            **{"generation_id_or_member_epoch": self.generation, "member_id": self.member_id, **changes},
        )  # fmt: skip
        return answer[topic][0]

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.wire.close()


def commit(
    wire: WireClient, version: int, group_id: str, offsets: dict[Any, dict[int, int]], *,
    metadata: str = "", leader_epoch: int = -1, **changes: Any,
) -> dict[Any, dict[int, int]]:  # fmt: skip
    """OffsetCommit; error codes by topic and partition."""
    label, named = ("topic_id", uuid.UUID) if version >= 10 else ("name", str)

    def partition(index: int, offset: int) -> dict[str, Any]:
        fields = {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        return {**fields, "committed_leader_epoch": leader_epoch} if version >= 6 else fields

    fields: dict[str, Any] = {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {label: named(name), "partitions": [partition(*one) for one in partitions.items()]}
            for name, partitions in offsets.items()
        ],
    }
    if version >= 7:
        fields["group_instance_id"] = None
    if version <= 4:
        fields["retention_time_ms"] = -1
    answer = wire.call("OffsetCommit", version, **{**fields, **changes})
    return {
        str(topic[label]): {one["partition_index"]: one["error_code"] for one in topic["partitions"]}
        for topic in answer["topics"]
    }


def fetch(
    wire: WireClient, version: int, group_id: str, topics: dict[Any, list[int]] | None, **changes: Any
) -> dict[Any, dict[int, tuple[int, str, int]]]:
    """OffsetFetch; offset, metadata and error code by topic and partition. A group's own error is raised."""
    label, named = ("topic_id", uuid.UUID) if version >= 10 else ("name", str)
    asked = None
    if topics is not None:
        asked = [{label: named(name), "partition_indexes": indexes} for name, indexes in topics.items()]
    fields: dict[str, Any] = {"group_id": group_id, "topics": asked}
    if version >= 9:
        fields |= {"member_id": None, "member_epoch": -1}
    if version >= 8:
        fields = {"groups": [fields]}
    if version >= 7:
        fields["require_stable"] = False
    answer = wire.call("OffsetFetch", version, **{**fields, **changes})
    if version >= 8:
        (answer,) = answer["groups"]
    if version >= 2 and answer["error_code"]:
        raise AssertionError(answer["error_code"])
    return {
        str(topic[label]): {
            one["partition_index"]: (one["committed_offset"], one["metadata"], one["error_code"])
            for one in topic["partitions"]
        }
        for topic in answer["topics"]
    }


def describe_group(wire: WireClient, group_id: str, version: int = 6, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"groups": [group_id]}
    if version >= 3:
        fields["include_authorized_operations"] = False
    (group,) = wire.call("DescribeGroups", version, **{**fields, **changes})["groups"]
    found: dict[str, Any] = group
    return found
