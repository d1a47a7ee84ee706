"""Metadata: the cluster, its topics and who serves their partitions.

v1 null means all topics · v4 auto-creation may be declined · v8 authorized operations (KIP-430)
v9 flexible · v10 topic ids · v12 topics by id
"""

from __future__ import annotations

from gateway.broker.catalog import Topic
from gateway.domain.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, operations_mask
from gateway.domain.topics import validate_topic_name
from gateway.errors import ErrorCode, KafkaError, UnknownTopicId, UnknownTopicOrPartition
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field
from gateway.storage.failures import DATABASE_ERRORS, translate

MAX_CREATED_PER_REQUEST = 100
"""More topics than this are not created by one request; the client asks again for the rest."""
NAME_MAY_BE_NULL = 12
"""Versions 10 and 11 let a client name a topic by id, but not the answer be without a name."""


@handles(ApiKey.METADATA, versions=range(0, 14))
async def metadata(request: Request, context: RequestContext) -> Tree:
    cluster = context.broker.cluster
    topics = await _topics(request, context)
    if field(request, "include_topic_authorized_operations", None):
        allowed = {"topic_authorized_operations": operations_mask(TOPIC_OPERATIONS)}
        topics = [{**topic, **allowed} for topic in topics]
    answer = {
        "brokers": [{**node._asdict(), "rack": None} for node in cluster.nodes],
        "cluster_id": context.broker.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": topics,
        "error_code": ErrorCode.none,
    }
    if field(request, "include_cluster_authorized_operations", None):
        answer["cluster_authorized_operations"] = operations_mask(CLUSTER_OPERATIONS)
    return answer


async def _topics(request: Request, context: RequestContext) -> list[Tree]:
    catalog = context.broker.catalog
    if request.topics is None or (context.version == 0 and not request.topics):
        try:
            return [_topic(topic, context) for topic in await catalog.list_all()]
        except DATABASE_ERRORS:
            return []  # there is no place for an error; the client keeps what it knows and asks again
    # Java names a topic by id with an empty name beside it, others with none.
    ids = [topic_id for topic in request.topics if (topic_id := field(topic, "topic_id", None)) is not None]
    names = [topic.name or "" for topic in request.topics if field(topic, "topic_id", None) is None]
    try:
        by_name = await catalog.find_now(names)
        by_id = await catalog.find_by_uuid(ids) if ids else {}
    except DATABASE_ERRORS as error:
        refusal = translate(error)
        return [_refused(topic.name, refusal, context, field(topic, "topic_id", None)) for topic in request.topics]
    may_create = field(request, "allow_auto_topic_creation", True) and context.broker.settings.auto_create_topics_enable
    answers, created = [], 0
    for topic_id in ids:
        found = by_id.get(topic_id)
        unknown = UnknownTopicId("no such id")
        answers.append(_topic(found, context) if found else _refused(None, unknown, context, topic_id))
    for name in dict.fromkeys(names):
        if name in by_name:
            answers.append(_topic(by_name[name], context))
            continue
        made = await outcome(_create(name, context, is_allowed=may_create and created < MAX_CREATED_PER_REQUEST))
        if isinstance(made, KafkaError):
            answers.append(_refused(name, made, context))
        else:
            created += 1
            answers.append(_topic(made, context))
    return answers


async def _create(name: str, context: RequestContext, *, is_allowed: bool) -> Topic:
    validate_topic_name(name)
    if not is_allowed:
        raise UnknownTopicOrPartition(f"topic {name} does not exist")
    return await context.broker.catalog.create_on_demand(name, partition_count=context.broker.settings.num_partitions)


def _topic(topic: Topic, context: RequestContext) -> Tree:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.uuid,
        "is_internal": False,
        "partitions": [context.describe_partition(topic, index) for index in range(topic.partition_count)],
    }


def _refused(name: str | None, error: KafkaError, context: RequestContext, topic_id: object = None) -> Tree:
    if name is None and context.version < NAME_MAY_BE_NULL:
        name = ""
    return {"error_code": error.code, "name": name, "topic_id": topic_id, "partitions": []}
