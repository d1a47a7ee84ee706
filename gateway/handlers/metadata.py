"""Metadata: the cluster, its topics and who serves their partitions.

v1 null means all topics · v4 auto-creation may be declined · v9 flexible · v10 topic ids · v12 topics by id
"""

from __future__ import annotations

from gateway.broker.catalog import Topic
from gateway.domain.topics import validate_topic_name
from gateway.errors import ErrorCode, KafkaError, UnknownTopicId, UnknownTopicOrPartition
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field
from gateway.storage.failures import DATABASE_ERRORS, translate

MAX_CREATED_PER_REQUEST = 100
"""More topics than this are not created by one request; the client asks again for the rest."""


@handles(ApiKey.METADATA, versions=range(0, 14))
async def metadata(request: Request, context: RequestContext) -> Tree:
    node = context.broker.node
    return {
        "brokers": [{**node._asdict(), "rack": None}],
        "cluster_id": context.broker.cluster_id,
        "controller_id": node.node_id,
        "topics": await _topics(request, context),
        "error_code": ErrorCode.none,
    }


async def _topics(request: Request, context: RequestContext) -> list[Tree]:
    catalog = context.broker.catalog
    if request.topics is None or (context.version == 0 and not request.topics):
        try:
            return [_topic(topic, context) for topic in await catalog.list_all()]
        except DATABASE_ERRORS:
            return []  # there is no place for an error; the client keeps what it knows and asks again
    names = [topic.name for topic in request.topics if topic.name is not None]
    ids = [topic.topic_id for topic in request.topics if topic.name is None]
    try:
        by_name = await catalog.find_now(names)
        by_id = await catalog.find_by_uuid(ids) if ids else {}
    except DATABASE_ERRORS as error:
        refusal = translate(error)
        return [_refused(topic.name, refusal, field(topic, "topic_id", None)) for topic in request.topics]
    may_create = field(request, "allow_auto_topic_creation", True) and context.broker.settings.auto_create_topics_enable
    answers, created = [], 0
    for topic_id in ids:
        found = by_id.get(topic_id)
        answers.append(_topic(found, context) if found else _refused(None, UnknownTopicId("no such id"), topic_id))
    for name in dict.fromkeys(names):
        if name in by_name:
            answers.append(_topic(by_name[name], context))
            continue
        try:
            validate_topic_name(name)
            if not may_create or created >= MAX_CREATED_PER_REQUEST:
                raise UnknownTopicOrPartition(f"topic {name} does not exist")
            created += 1
            answers.append(_topic(await _create(name, context), context))
        except KafkaError as error:
            answers.append(_refused(name, error))
    return answers


async def _create(name: str, context: RequestContext) -> Topic:
    try:
        return await context.broker.catalog.create_on_demand(
            name, partition_count=context.broker.settings.num_partitions
        )
    except DATABASE_ERRORS as error:
        raise translate(error) from error


def _topic(topic: Topic, context: RequestContext) -> Tree:
    node_id = context.broker.node.node_id
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.uuid,
        "is_internal": False,
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": index,
                "leader_id": node_id,
                "leader_epoch": 0,
                "replica_nodes": [node_id],
                "isr_nodes": [node_id],
                "offline_replicas": [],
            }
            for index in range(topic.partition_count)
        ],
    }


def _refused(name: str | None, error: KafkaError, topic_id: object = None) -> Tree:
    return {"error_code": error.code, "name": name, "topic_id": topic_id, "partitions": []}
