"""ConsumerGroupHeartbeat: join a consumer group, stay in it, learn what to read, leave it (KIP-848).

v1 topics by pattern, and the client makes its member id
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID, uuid4

from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.consumer import Heartbeat, Reply
from gateway.errors import ErrorCode, InvalidRequest, KafkaError
from gateway.handlers.registry import RequestContext, error_fields, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field, milliseconds

NO_TOPIC = UUID(int=0)


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=range(0, 2))
async def consumer_group_heartbeat(request: Request, context: RequestContext) -> Tree:
    reply = await group_outcome(_beat(request, context))
    if isinstance(reply, KafkaError):
        return {**error_fields(reply), "member_id": None, "member_epoch": 0, "heartbeat_interval": 0}
    is_member = reply.epoch >= 0
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "member_id": reply.member_id,
        "member_epoch": reply.epoch,
        "heartbeat_interval": context.broker.settings.group_consumer_heartbeat_interval_ms if is_member else 0,
        "assignment": None if reply.assignment is None else {"topic_partitions": _by_topic(reply.assignment)},
    }


async def _beat(request: Request, context: RequestContext) -> Reply:
    names = request.subscribed_topic_names
    texts = (request.member_id, request.instance_id, request.rack_id, *(names or ()))
    if any("\0" in text for text in texts if text is not None):
        raise InvalidRequest("PostgreSQL's text cannot hold a NUL character")
    timeout_ms = milliseconds(request.rebalance_timeout)
    said = Heartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if timeout_ms < 0 else timeout_ms,
        topic_names=None if names is None else frozenset(names),
        topic_pattern=field(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else frozenset(_partitions(request.topic_partitions)),
        client_id=(context.client_id or "").replace("\0", "\N{REPLACEMENT CHARACTER}"),
        client_host=context.client_host,
    )
    return await context.broker.groups.consumer_heartbeat(
        request.group_id, said, new_member_id=str(uuid4()), version=context.version
    )


def _partitions(topics: Iterable[Request]) -> Iterable[Partition]:
    return (Partition(topic.topic_id or NO_TOPIC, number) for topic in topics for number in topic.partitions)


def _by_topic(assignment: Iterable[Partition]) -> list[Tree]:
    by_topic: dict[UUID, list[int]] = {}
    for topic, number in sorted(assignment):
        by_topic.setdefault(topic, []).append(number)
    return [{"topic_id": topic, "partitions": numbers} for topic, numbers in by_topic.items()]
