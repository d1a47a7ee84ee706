"""OffsetFetch: where groups go on reading.

v1 oldest served · v2 null means all topics · v5 leader epoch · v6 flexible · v7 offsets that no open transaction may
change (KIP-447) · v8 several groups · v9 the consumer protocol (KIP-848) · v10 topics by id
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.broker.catalog import Topic
from gateway.errors import ErrorCode, KafkaError, UnknownTopicId, UnstableOffsetCommit
from gateway.handlers.registry import RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field
from gateway.storage.keys import PartitionKey
from gateway.storage.offsets import CommittedOffset

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_BY_ID = 10
NOTHING = CommittedOffset(-1, -1, "")


class _Asked(NamedTuple):
    """One group's part of the request; no topics means all."""

    group_id: str
    topics: Sequence[tuple[Any, Sequence[int]]] | None
    member_id: str | None
    member_epoch: int


@handles(ApiKey.OFFSET_FETCH, versions=range(1, 11))
async def offset_fetch(request: Request, context: RequestContext) -> Tree:
    if context.version >= FIRST_VERSION_WITH_GROUPS:
        return {"groups": [await _group(one, request, context) for one in request.groups]}
    answer = await _group(request, request, context)
    if answer["error_code"] is not ErrorCode.none and request.topics is not None:
        code = answer["error_code"]
        topics = [
            {"name": topic.name, "partitions": [_partition(index, code) for index in topic.partition_indexes]}
            for topic in request.topics
        ]
        return {"error_code": code, "topics": topics}
    return {"error_code": answer["error_code"], "topics": answer["topics"]}


async def _group(group: Any, request: Request, context: RequestContext) -> dict[str, Any]:
    by_id = context.version >= FIRST_VERSION_BY_ID
    asked = _Asked(
        group.group_id,
        None
        if group.topics is None
        else [(topic.topic_id if by_id else topic.name, topic.partition_indexes) for topic in group.topics],
        field(group, "member_id", None),
        field(group, "member_epoch", -1),
    )
    topics = await group_outcome(
        _fetch(asked, context, by_id=by_id, require_stable=field(request, "require_stable", False))
    )
    if isinstance(topics, KafkaError):
        return {"group_id": asked.group_id, "topics": [], "error_code": topics.code}
    return {"group_id": asked.group_id, "topics": topics, "error_code": ErrorCode.none}


async def _fetch(asked: _Asked, context: RequestContext, *, by_id: bool, require_stable: bool) -> list[Tree]:
    groups = context.broker.groups
    await groups.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)
    label = "topic_id" if by_id else "name"
    if asked.topics is None:
        found = await groups.fetch_all_offsets(asked.group_id)
        unstable = await groups.find_unstable(asked.group_id) if require_stable else set()
        by_topic: dict[Any, list[Tree]] = {}
        for one in found:
            name = one.topic_uuid if by_id else one.topic
            by_topic.setdefault(name, []).append(_judge(one.key, {one.key: one.committed}, unstable))
        return [{label: name, "partitions": partitions} for name, partitions in by_topic.items()]
    topics = await context.find_topics([name for name, _ in asked.topics], by_id=by_id)
    keys = [
        PartitionKey(topic.stored.topic_id, index)
        for name, indexes in asked.topics
        if isinstance(topic := topics[name], Topic)
        for index in indexes
    ]
    committed = await groups.fetch_offsets(asked.group_id, keys)
    unstable = await groups.find_unstable(asked.group_id) if require_stable else set()
    return [
        {label: name, "partitions": _partitions(topics[name], indexes, committed, unstable)}
        for name, indexes in asked.topics
    ]


def _partitions(
    topic: Topic | KafkaError,
    indexes: Sequence[int],
    committed: Mapping[PartitionKey, CommittedOffset],
    unstable: set[PartitionKey],
) -> list[Tree]:
    if isinstance(topic, Topic):
        return [_judge(PartitionKey(topic.stored.topic_id, index), committed, unstable) for index in indexes]
    # An unknown name simply has no offsets; an unknown id is told as such.
    code = topic.code if isinstance(topic, UnknownTopicId) else ErrorCode.none
    return [_partition(index, code) for index in indexes]


def _judge(key: PartitionKey, committed: Mapping[PartitionKey, CommittedOffset], unstable: set[PartitionKey]) -> Tree:
    if key in unstable:
        return _partition(key.partition, UnstableOffsetCommit.code)
    return _partition(key.partition, ErrorCode.none, committed.get(key, NOTHING))


def _partition(index: int, code: ErrorCode, committed: CommittedOffset = NOTHING) -> Tree:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }
