"""DeleteTopics: delete topics with all their records.

v4 flexible · v5 error messages · v6 topics by id (KIP-516); before it a request names topics only
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from uuid import UUID

from gateway.broker.catalog import Topic
from gateway.errors import (
    InvalidRequest,
    KafkaError,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from gateway.handlers.registry import Deadline, RequestContext, error_fields, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, milliseconds

FIRST_VERSION_WITH_IDS = 6
FIRST_VERSION_THAT_KNOWS_DISABLED = 3


class _Asked(NamedTuple):
    """A topic as the request names it; one of the two is None."""

    name: str | None
    topic_id: UUID | None


@handles(ApiKey.DELETE_TOPICS, versions=range(1, 7))
async def delete_topics(request: Request, context: RequestContext) -> Tree:
    deadline = Deadline(milliseconds(request.timeout))
    if context.version >= FIRST_VERSION_WITH_IDS:
        times = Counter(_Asked(topic.name, topic.topic_id) for topic in request.topics)
    else:
        times = Counter(_Asked(name, None) for name in request.topic_names)
    found = await outcome(_find(list(times), context))
    ids = Counter() if isinstance(found, KafkaError) else Counter(topic.uuid for topic in found.values())
    answers = []
    for asked, count in times.items():
        topic: Topic | KafkaError
        if isinstance(found, KafkaError):
            topic = found
        elif count > 1:
            topic = InvalidRequest(f"Duplicate topic {'id' if asked.name is None else 'name'}.")
        else:
            topic = await outcome(_delete(asked, found.get(asked), ids, context, deadline))
        name, topic_id = asked if isinstance(topic, KafkaError) else (topic.name, topic.uuid)
        answers.append({"name": name, "topic_id": topic_id, **error_fields(topic)})
    return {"responses": answers}


async def _find(asked: list[_Asked], context: RequestContext) -> dict[_Asked, Topic]:
    """The topics that exist now: a name may belong to another topic than a moment ago."""
    if not context.broker.settings.delete_topic_enable:
        text = "Topic deletion is disabled: delete.topic.enable is false."
        knows = context.version >= FIRST_VERSION_THAT_KNOWS_DISABLED
        raise TopicDeletionDisabled(text) if knows else InvalidRequest(text)
    catalog = context.broker.catalog
    by_name = await catalog.find_now([one.name for one in asked if one.name is not None])
    by_id = await catalog.find_by_uuid([one.topic_id for one in asked if one.topic_id is not None])
    return {
        one: topic
        for one in asked
        if (topic := by_name.get(one.name or "") or by_id.get(one.topic_id or UUID(int=0))) is not None
    }


async def _delete(
    asked: _Asked, topic: Topic | None, ids: Counter[UUID], context: RequestContext, deadline: Deadline
) -> Topic:
    if asked.name is None and asked.topic_id is None:
        raise InvalidRequest("Neither topic name nor id were specified.")
    if asked.name is not None and asked.topic_id is not None:
        raise InvalidRequest("You may not specify both topic name and topic id.")
    try:
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {asked.name} does not exist")
        if ids[topic.uuid] > 1:
            raise InvalidRequest("The provided topic name maps to an ID that was already supplied.")
        deadline.require_time()
        await context.broker.catalog.delete(topic)
    except UnknownTopicOrPartition:
        if asked.topic_id is not None:
            raise UnknownTopicId("no topic has this id") from None
        raise
    return topic
