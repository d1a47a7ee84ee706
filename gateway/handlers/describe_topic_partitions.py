"""DescribeTopicPartitions: topics and their partitions, a page at a time (KIP-966).

v0 only · topics come sorted by name; the cursor names the first partition of the next page
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.domain.operations import TOPIC_OPERATIONS, operations_mask
from gateway.domain.topics import validate_topic_name
from gateway.errors import ErrorCode, InvalidRequest, KafkaError, UnknownTopicOrPartition
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree

MAX_PARTITIONS_PER_RESPONSE = 2_000
"""max.request.partition.size.limit of a broker."""


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=range(0, 1))
async def describe_topic_partitions(request: Request, context: RequestContext) -> Tree:
    found = await outcome(_find(request, context))
    if isinstance(found, KafkaError):
        refused = [_refused(topic.name, found) for topic in request.topics]
        return {"topics": refused, "next_cursor": None}
    room = max(1, min(request.response_partition_limit, MAX_PARTITIONS_PER_RESPONSE))
    first = request.cursor.partition_index if request.cursor is not None else 0
    topics: list[Tree] = []
    for name, topic in found:
        if room == 0:
            return {"topics": topics, "next_cursor": _cursor(name, 0)}
        if request.cursor is None or name != request.cursor.topic_name:
            first = 0
        if topic is None:
            topics.append(_refused(name, _why_unknown(name), allowed=True))
            continue
        end = min(topic.partition_count, first + room)
        topics.append(_topic(topic, range(first, end), context))
        if end < topic.partition_count:
            return {"topics": topics, "next_cursor": _cursor(name, end)}
        room -= max(0, end - first)
    return {"topics": topics, "next_cursor": None}


async def _find(request: Request, context: RequestContext) -> list[tuple[str, Topic | None]]:
    """The topics asked for (all of them if none is named) from the cursor's on, sorted by name.

    The database sorts names by their bytes, which for the characters they may have is Python's order too.
    """
    cursor = request.cursor
    first_name = "" if cursor is None else cursor.topic_name
    if cursor is not None and cursor.partition_index < 0:
        raise InvalidRequest(f"the cursor's partition is {cursor.partition_index}")
    catalog = context.broker.catalog
    if not request.topics:
        return [(topic.name, topic) for topic in await catalog.list_all() if topic.name >= first_name]
    names = sorted({topic.name for topic in request.topics if topic.name >= first_name})
    if cursor is not None and cursor.topic_name not in names:
        raise InvalidRequest(f"the topics asked for must contain the cursor's, {cursor.topic_name}")
    topics = await catalog.find_now(names)
    return [(name, topics.get(name)) for name in names]


def _topic(topic: Topic, indexes: range, context: RequestContext) -> Tree:
    no_replicas: dict[str, Any] = {"eligible_leader_replicas": [], "last_known_elr": []}
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.uuid,
        "is_internal": False,
        "partitions": [{**context.describe_partition(topic, index), **no_replicas} for index in indexes],
        "topic_authorized_operations": operations_mask(TOPIC_OPERATIONS),
    }


def _why_unknown(name: str) -> KafkaError:
    try:
        validate_topic_name(name)
    except KafkaError as error:
        return error
    return UnknownTopicOrPartition(f"topic {name} does not exist")


def _refused(name: str, error: KafkaError, *, allowed: bool = False) -> Tree:
    refused: dict[str, Any] = {"error_code": error.code, "name": name, "topic_id": None, "partitions": []}
    if allowed:
        refused["topic_authorized_operations"] = operations_mask(TOPIC_OPERATIONS)
    return refused


def _cursor(name: str, partition: int) -> Tree:
    return {"topic_name": name, "partition_index": partition}
