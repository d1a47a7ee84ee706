"""OffsetForLeaderEpoch: where the log of a leader epoch ends, for clients that look for truncation (KIP-320).

v3 replica id · v4 flexible · nothing is ever truncated here: the one epoch of a partition ends with the log
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.broker.reads import check_leader_epoch
from gateway.errors import ErrorCode, KafkaError, UnknownTopicOrPartition
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree

UNDEFINED = (-1, -1)


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=range(2, 5))
async def offset_for_leader_epoch(request: Request, context: RequestContext) -> Tree:
    found = await context.find_topics([topic.topic for topic in request.topics], by_id=False)
    return {
        "topics": [
            {
                "topic": asked.topic,
                "partitions": [
                    await _partition(found[asked.topic], partition, context) for partition in asked.partitions
                ],
            }
            for asked in request.topics
        ]
    }


async def _partition(topic: Topic | KafkaError, partition: Any, context: RequestContext) -> Tree:
    end = await outcome(_find_end(topic, partition, context))
    leader_epoch, end_offset = UNDEFINED if isinstance(end, KafkaError) else end
    return {
        "error_code": end.code if isinstance(end, KafkaError) else ErrorCode.none,
        "partition": partition.partition,
        "leader_epoch": leader_epoch,
        "end_offset": end_offset,
    }


async def _find_end(topic: Topic | KafkaError, partition: Any, context: RequestContext) -> tuple[int, int]:
    """The epoch asked for and where it ends; undefined for any but the current one."""
    if isinstance(topic, KafkaError):
        raise topic
    key = topic.partition(partition.partition)
    states = await context.broker.offsets.load([key])
    if key not in states:
        raise UnknownTopicOrPartition(f"partition {partition.partition} of topic {topic.name} does not exist")
    state = states[key]
    check_leader_epoch(partition.current_leader_epoch, current=state.leader_epoch)
    return (state.leader_epoch, state.next_offset) if partition.leader_epoch == state.leader_epoch else UNDEFINED
