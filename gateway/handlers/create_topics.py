"""CreateTopics: make topics with their partitions and configs.

v4 defaults by -1 · v5 flexible, tells what was made (KIP-525) · v7 tells the topic's id, null if only judged
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from gateway.broker.catalog import Topic
from gateway.domain.configs import DescribedConfig, describe_topic, validate_topic_configs
from gateway.domain.topics import (
    USE_DEFAULT,
    NewTopic,
    collision_key,
    decide_new_topic,
    require_partitions_per_request,
)
from gateway.errors import InvalidRequest, KafkaError, TopicAlreadyExists
from gateway.handlers.registry import Deadline, RequestContext, error_fields, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, milliseconds


@handles(ApiKey.CREATE_TOPICS, versions=range(2, 8))
async def create_topics(request: Request, context: RequestContext) -> Tree:
    deadline = Deadline(milliseconds(request.timeout))
    times = Counter(topic.name for topic in request.topics)
    in_the_way = await outcome(_find_colliding(request, context))
    answers = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        if isinstance(in_the_way, KafkaError):
            answers.append(_refused(topic.name, in_the_way))
            continue
        if times[topic.name] > 1:
            answers.append(_refused(topic.name, InvalidRequest("Duplicate topic name.")))
            continue
        existing = in_the_way[collision_key(topic.name)]
        made = await outcome(_create(topic, context, deadline, existing=existing, validate_only=request.validate_only))
        answers.append(_answer(topic.name, made))
        if not isinstance(made, KafkaError):
            existing.append(topic.name)
    return {"topics": answers}


async def _find_colliding(request: Request, context: RequestContext) -> dict[str, list[str]]:
    """Refuse a request that is too large as a whole, else find the names in its topics' way, by collision key."""
    default = context.broker.settings.num_partitions
    counts = (len(topic.assignments) or topic.num_partitions for topic in request.topics)
    require_partitions_per_request(sum(default if count == USE_DEFAULT else max(1, count) for count in counts))
    found: dict[str, list[str]] = defaultdict(list)
    for name in await context.broker.catalog.find_colliding(topic.name for topic in request.topics):
        found[collision_key(name)].append(name)
    return found


async def _create(
    topic: Any, context: RequestContext, deadline: Deadline, *, existing: Sequence[str], validate_only: bool
) -> tuple[NewTopic, list[DescribedConfig], Topic | None]:
    """What the topic is to be, what is in force for it, and the topic unless it was only judged."""
    broker = context.broker
    if topic.name in existing:
        raise TopicAlreadyExists(f"Topic '{topic.name}' already exists.")
    new = decide_new_topic(
        topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(one.partition_index, one.broker_ids) for one in topic.assignments],
        default_partitions=broker.settings.num_partitions,
        known_broker_ids=broker.cluster.node_ids,
        existing=existing,
    )
    inherited = await broker.catalog.load_broker_configs()
    overrides = validate_topic_configs({config.name: config.value for config in topic.configs}, inherited)
    configs = describe_topic(overrides, inherited)
    if validate_only:
        return new, configs, None
    deadline.require_time()
    return new, configs, await broker.catalog.create(new, overrides)


def _answer(name: str, made: tuple[NewTopic, list[DescribedConfig], Topic | None] | KafkaError) -> Tree:
    if isinstance(made, KafkaError):
        return _refused(name, made)
    new, configs, topic = made
    return {
        "name": name,
        "topic_id": None if topic is None else topic.uuid,
        **error_fields(made),
        "num_partitions": new.partition_count,
        "replication_factor": new.replication_factor,
        "configs": [
            {
                "name": config.name,
                "value": config.value,
                "read_only": config.read_only,
                "config_source": config.source,
                "is_sensitive": config.is_sensitive,
            }
            for config in configs
        ],
    }


def _refused(name: str, error: KafkaError) -> Tree:
    return {"name": name, "topic_id": None, **error_fields(error), "configs": []}
