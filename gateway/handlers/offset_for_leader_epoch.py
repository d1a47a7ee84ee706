"""OffsetForLeaderEpoch: where the log of a leader epoch ends, for clients that look for truncation (KIP-320).

v3 replica id · v4 flexible · nothing is ever truncated here: the one epoch of a partition ends with the log
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.broker.catalog import Topic
from gateway.broker.reads import check_leader_epoch
from gateway.errors import ErrorCode, KafkaError, UnknownTopicOrPartition
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage.keys import PartitionKey
from gateway.storage.log import PartitionState


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=range(2, 5))
async def offset_for_leader_epoch(request: Request, context: RequestContext) -> Tree:
    topics = await context.find_topics([topic.topic for topic in request.topics], by_id=False)
    wanted = [
        topic.partition(partition.partition)
        for asked in request.topics
        for partition in asked.partitions
        if isinstance(topic := topics[asked.topic], Topic) and 0 <= partition.partition < topic.partition_count
    ]
    states = await outcome(context.broker.offsets.load(wanted))
    return {
        "topics": [
            {
                "topic": asked.topic,
                "partitions": [_find_end(topics[asked.topic], partition, states) for partition in asked.partitions],
            }
            for asked in request.topics
        ]
    }


def _find_end(
    topic: Topic | KafkaError, partition: Any, states: Mapping[PartitionKey, PartitionState] | KafkaError
) -> Tree:
    """The epoch asked for and where it ends; undefined for any but the current one."""
    answer = {"error_code": ErrorCode.none, "partition": partition.partition, "leader_epoch": -1, "end_offset": -1}
    try:
        if isinstance(topic, KafkaError):
            raise topic
        if isinstance(states, KafkaError):
            raise states
        state = states.get(topic.partition(partition.partition))
        if state is None:
            raise UnknownTopicOrPartition(f"topic {topic.name} has no partition {partition.partition}")
        check_leader_epoch(partition.current_leader_epoch, current=state.leader_epoch)
    except KafkaError as error:
        return {**answer, "error_code": error.code}
    if partition.leader_epoch != state.leader_epoch:
        return answer
    return {**answer, "leader_epoch": state.leader_epoch, "end_offset": state.next_offset}
