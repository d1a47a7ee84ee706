"""ListOffsets: the log's ends, or the first record at or after a time.

v2 isolation level · v4 leader epochs · v6 flexible · v7 largest timestamp · v8-v11 tiered storage, which holds nothing
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.broker.offsets import FoundOffset
from gateway.broker.reads import check_leader_epoch
from gateway.errors import ErrorCode, KafkaError, UnknownTopicOrPartition
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field

READ_COMMITTED = 1


@handles(ApiKey.LIST_OFFSETS, versions=range(1, 12))
async def list_offsets(request: Request, context: RequestContext) -> Tree:
    read_committed = field(request, "isolation_level", 0) == READ_COMMITTED
    topics = await context.find_topics([asked.name for asked in request.topics], by_id=False)
    wanted = [
        topic.partition(partition.partition_index)
        for asked in request.topics
        for partition in asked.partitions
        if isinstance(topic := topics[asked.name], Topic) and 0 <= partition.partition_index < topic.partition_count
    ]
    states = await outcome(context.broker.offsets.load(list(dict.fromkeys(wanted)))) if wanted else {}

    async def find(topic: Topic | KafkaError, partition: Any) -> FoundOffset:
        if isinstance(topic, KafkaError):
            raise topic
        key = topic.partition(partition.partition_index)
        if isinstance(states, KafkaError):
            raise states
        if key not in states:
            raise UnknownTopicOrPartition(f"topic {topic.name} has no partition {partition.partition_index}")
        check_leader_epoch(field(partition, "current_leader_epoch", -1), current=states[key].leader_epoch)
        return await context.broker.offsets.find(key, states[key], partition.timestamp, read_committed=read_committed)

    return {
        "topics": [
            {
                "name": asked.name,
                "partitions": [
                    _answer(partition.partition_index, await outcome(find(topics[asked.name], partition)))
                    for partition in asked.partitions
                ],
            }
            for asked in request.topics
        ]
    }


def _answer(index: int, found: FoundOffset | KafkaError) -> Tree:
    if isinstance(found, KafkaError):
        return {"partition_index": index, "error_code": found.code}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "timestamp": found.timestamp_ms,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }
