"""TxnOffsetCommit: offsets of a group that become true when the producer's transaction commits.

v3 flexible, names the group's member so that a zombie is fenced (KIP-447) · v4 knows TRANSACTION_ABORTABLE, v5 adds the
group by itself (KIP-890)
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.broker.producers import readable
from gateway.domain.connections import RequestKind
from gateway.domain.producers import Producer
from gateway.errors import (
    ErrorCode,
    IllegalGeneration,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    OffsetMetadataTooLarge,
    StaleMemberEpoch,
    TransactionAbortable,
)
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field
from gateway.storage.transactions import PendingOffset

FIRST_VERSION_WITH_ABORTABLE = 4
FIRST_VERSION_THAT_BEGINS = 5
NEVER = 1000


@handles(ApiKey.TXN_OFFSET_COMMIT, versions=range(0, 6))
async def txn_offset_commit(request: Request, context: RequestContext) -> Tree:
    context.broker.connections.hear(
        RequestKind.COMMIT_OFFSETS, producer_id=request.producer_id, connection=context.connection
    )
    found = await context.find_topics([topic.name for topic in request.topics], by_id=False)
    judged = {
        (topic.name, one.partition_index): _judge(found[topic.name], one, context)
        for topic in request.topics
        for one in topic.partitions
    }
    pending = [offset for offset in judged.values() if isinstance(offset, PendingOffset)]
    result = await outcome(_commit(request, pending, context)) if pending or not judged else None
    if isinstance(result, InvalidTxnState) and context.version >= FIRST_VERSION_WITH_ABORTABLE:
        result = TransactionAbortable(result.message)
    # The group's coordinator answers here: a fenced producer is an invalid epoch to it, in every version.
    code = context.producer_error(result, fenced_since=NEVER)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": _code(judged[topic.name, one.partition_index], code, context),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def _commit(request: Request, pending: list[PendingOffset], context: RequestContext) -> None:
    try:
        claim_epoch = await context.broker.groups.require_member(
            request.group_id,
            field(request, "member_id", ""),
            field(request, "generation_id", -1),
            field(request, "group_instance_id", None),
        )
    except StaleMemberEpoch as error:
        # A transactional producer takes a code it does not know as its end; this one lets it abort and go on.
        raise IllegalGeneration(str(error)) from error
    await context.broker.transactions.commit_offsets(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        request.group_id,
        pending,
        may_begin=context.version >= FIRST_VERSION_THAT_BEGINS,
        client_id=readable(context.client_id),
        claim_epoch=claim_epoch,
    )


def _judge(topic: Topic | KafkaError, asked: Any, context: RequestContext) -> PendingOffset | KafkaError:
    if isinstance(topic, KafkaError):
        return topic
    metadata = asked.committed_metadata or ""
    limit = context.broker.settings.offset_metadata_max_bytes
    try:
        key = topic.partition(asked.partition_index)
    except KafkaError as error:
        return error
    if len(metadata) > limit:
        return OffsetMetadataTooLarge(f"the metadata has {len(metadata)} characters, allowed are {limit}")
    if asked.committed_offset < 0 or "\0" in metadata:
        return InvalidRequest("an offset must not be negative, nor its metadata hold a NUL character")
    return PendingOffset(key, asked.committed_offset, field(asked, "committed_leader_epoch", -1), metadata)


def _code(judged: PendingOffset | KafkaError, code: ErrorCode, context: RequestContext) -> ErrorCode:
    return context.producer_error(judged, fenced_since=NEVER) if isinstance(judged, KafkaError) else code
