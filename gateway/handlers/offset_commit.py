"""OffsetCommit: where a group will go on reading.

v2 oldest served · v5 without a retention time · v6 leader epoch · v7 static members · v8 flexible
v9 the consumer protocol (KIP-848), GROUP_ID_NOT_FOUND · v10 topics by id
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.broker.catalog import Topic
from gateway.domain.groups.assignors import Partition
from gateway.errors import (
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRequest,
    KafkaError,
    OffsetMetadataTooLarge,
)
from gateway.handlers.registry import Answer, RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field, milliseconds
from gateway.storage.offsets import OffsetToCommit

FIRST_VERSION_WITH_GROUP_NOT_FOUND = 9
FIRST_VERSION_BY_ID = 10


class _Judged(NamedTuple):
    """One partition of the request: what to commit, or why not."""

    topic: Any
    partition: int
    offset: OffsetToCommit | KafkaError


@handles(ApiKey.OFFSET_COMMIT, versions=range(2, 11))
async def offset_commit(request: Request, context: RequestContext) -> Answer:
    by_id = context.version >= FIRST_VERSION_BY_ID
    names = [topic.topic_id if by_id else topic.name for topic in request.topics]
    topics = await context.find_topics(names, by_id=by_id)
    retention = field(request, "retention_time", None)
    retention_ms = None if retention is None or milliseconds(retention) < 0 else milliseconds(retention)
    judged = [
        _Judged(name, partition.partition_index, _judge(topics[name], partition, context, retention_ms))
        for name, topic in zip(names, request.topics, strict=True)
        for partition in topic.partitions
    ]
    offsets = [one.offset for one in judged if isinstance(one.offset, OffsetToCommit)]
    uuids = {name: topic.uuid for name, topic in topics.items() if isinstance(topic, Topic)}
    partitions = [Partition(uuids[one.topic], one.partition) for one in judged if one.topic in uuids]
    is_due = bool(offsets) or not judged
    committing = await group_outcome(_commit(request, offsets, partitions, context)) if is_due else None
    return _answer(names, judged, committing, by_id=by_id)


def _judge(
    topic: Topic | KafkaError, partition: Any, context: RequestContext, retention_ms: int | None
) -> OffsetToCommit | KafkaError:
    if isinstance(topic, KafkaError):
        return topic
    metadata = partition.committed_metadata or ""
    limit = context.broker.settings.offset_metadata_max_bytes
    try:
        key = topic.partition(partition.partition_index)
    except KafkaError as error:
        return error
    if len(metadata) > limit:
        return OffsetMetadataTooLarge(f"the metadata has {len(metadata)} characters, allowed are {limit}")
    if partition.committed_offset < 0 or "\0" in metadata:
        return InvalidRequest("an offset must not be negative, nor its metadata hold a NUL character")
    return OffsetToCommit(
        key, partition.committed_offset, field(partition, "committed_leader_epoch", -1), metadata, retention_ms
    )


async def _commit(
    request: Request, offsets: list[OffsetToCommit], partitions: list[Partition], context: RequestContext
) -> Future[None]:
    is_new = context.version >= FIRST_VERSION_WITH_GROUP_NOT_FOUND
    groups = context.broker.groups
    epoch = await groups.require_member(
        request.group_id,
        request.member_id,
        request.generation_id_or_member_epoch,
        field(request, "group_instance_id", None),
        is_transactional=False,
        unknown=GroupIdNotFound if is_new else IllegalGeneration,
        partitions=partitions,
    )
    return groups.commit_offsets(request.group_id, offsets, epoch=epoch)


async def _answer(
    names: list[Any], judged: list[_Judged], committing: Future[None] | KafkaError | None, *, by_id: bool
) -> Tree:
    refusal = committing if isinstance(committing, KafkaError) else None
    if isinstance(committing, Future):
        committed = await group_outcome(committing)
        refusal = committed if isinstance(committed, KafkaError) else None
    partitions: Mapping[Any, list[Tree]] = {name: [] for name in names}
    for one in judged:
        error = one.offset if isinstance(one.offset, KafkaError) else refusal
        code = ErrorCode.none if error is None else error.code
        partitions[one.topic].append({"partition_index": one.partition, "error_code": code})
    label = "topic_id" if by_id else "name"
    return {"topics": [{label: name, "partitions": answers} for name, answers in partitions.items()]}
