"""CreatePartitions: add partitions to topics.

v2 flexible · validate-only in all versions
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gateway.broker.catalog import Topic
from gateway.domain.topics import decide_added_partitions, require_partitions_per_request
from gateway.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from gateway.handlers.registry import Deadline, RequestContext, error_fields, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, milliseconds


@handles(ApiKey.CREATE_PARTITIONS, versions=range(0, 4))
async def create_partitions(request: Request, context: RequestContext) -> Tree:
    deadline = Deadline(milliseconds(request.timeout))
    times = Counter(topic.name for topic in request.topics)
    found = await outcome(_find(request, context))
    answers = []
    for asked in {topic.name: topic for topic in request.topics}.values():
        result: object
        if isinstance(found, KafkaError):
            result = found
        elif times[asked.name] > 1:
            result = InvalidRequest("Duplicate topic name.")
        else:
            grown = _grow(asked, found, context, deadline, validate_only=request.validate_only)
            result = await outcome(grown)
        answers.append({"name": asked.name, **error_fields(result)})
    return {"results": answers}


async def _find(request: Request, context: RequestContext) -> dict[str, Topic]:
    """The topics to grow, unless the request asks for too much as a whole."""
    topics = await context.broker.catalog.find_now([topic.name for topic in request.topics])
    added = (asked.count - topics[asked.name].partition_count for asked in request.topics if asked.name in topics)
    require_partitions_per_request(sum(max(0, count) for count in added))
    return topics


async def _grow(
    asked: Any,
    found: Mapping[str, Topic],
    context: RequestContext,
    deadline: Deadline,
    *,
    validate_only: bool,
) -> None:
    topic = found.get(asked.name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {asked.name} does not exist")
    decide_added_partitions(
        asked.name,
        current=topic.partition_count,
        wanted=asked.count,
        assignments=None if asked.assignments is None else [one.broker_ids for one in asked.assignments],
        known_broker_ids=context.broker.cluster.node_ids,
    )
    if not validate_only:
        deadline.require_time()
        await context.broker.catalog.grow(topic, new_count=asked.count)
