"""ListOffsets: the log's ends, or the first record at or after a time.

v2 isolation level · v4 leader epochs · v6 flexible · v7 largest timestamp · v8-v11 tiered storage, which holds nothing
"""

from __future__ import annotations

from typing import Any

from gateway.broker.offsets import FoundOffset
from gateway.broker.reads import check_leader_epoch
from gateway.errors import ErrorCode, KafkaError, UnknownTopicOrPartition
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field
from gateway.storage.keys import PartitionKey
from gateway.storage.log import PartitionState

READ_COMMITTED = 1


@handles(ApiKey.LIST_OFFSETS, versions=range(1, 12))
async def list_offsets(request: Request, context: RequestContext) -> Tree:
    read_committed = field(request, "isolation_level", 0) == READ_COMMITTED
    topics = []
    for asked in request.topics:
        partitions = [
            await _partition(asked.name, partition, context, read_committed=read_committed)
            for partition in asked.partitions
        ]
        topics.append({"name": asked.name, "partitions": partitions})
    return {"topics": topics}


async def _partition(name: str, partition: Any, context: RequestContext, *, read_committed: bool) -> Tree:
    found = await outcome(_find(name, partition, context, read_committed=read_committed))
    if isinstance(found, KafkaError):
        return {"partition_index": partition.partition_index, "error_code": found.code}
    return {
        "partition_index": partition.partition_index,
        "error_code": ErrorCode.none,
        "timestamp": found.timestamp_ms,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


async def _find(name: str, partition: Any, context: RequestContext, *, read_committed: bool) -> FoundOffset:
    key, state = await _state(name, partition.partition_index, context)
    check_leader_epoch(field(partition, "current_leader_epoch", -1), current=state.leader_epoch)
    return await context.broker.offsets.find(key, state, partition.timestamp, read_committed=read_committed)


async def _state(name: str, index: int, context: RequestContext) -> tuple[PartitionKey, PartitionState]:
    topics = await context.broker.catalog.find([name])
    if name not in topics:
        raise UnknownTopicOrPartition(f"topic {name} does not exist")
    key = topics[name].partition(index)
    states = await context.broker.offsets.load([key])
    if key not in states:
        raise UnknownTopicOrPartition(f"partition {index} of topic {name} does not exist")
    return key, states[key]
