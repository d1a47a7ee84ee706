"""DeleteRecords: make the records before an offset unreadable.

v2 flexible · offset -1 is the high watermark · the rows themselves go a moment later
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.errors import ErrorCode, KafkaError, PolicyViolation
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree


@handles(ApiKey.DELETE_RECORDS, versions=range(0, 3))
async def delete_records(request: Request, context: RequestContext) -> Tree:
    found = await context.find_topics([topic.name for topic in request.topics], by_id=False)
    topics = []
    for asked in request.topics:
        partitions = []
        for partition in asked.partitions:
            start = await outcome(_delete(found[asked.name], partition, context))
            is_refused = isinstance(start, KafkaError)
            partitions.append(
                {
                    "partition_index": partition.partition_index,
                    "low_watermark": -1 if is_refused else start,
                    "error_code": start.code if isinstance(start, KafkaError) else ErrorCode.none,
                }
            )
        topics.append({"name": asked.name, "partitions": partitions})
    context.broker.housekeeping.wake()
    return {"topics": topics}


async def _delete(topic: Topic | KafkaError, partition: Any, context: RequestContext) -> int:
    if isinstance(topic, KafkaError):
        raise topic
    key = topic.partition(partition.partition_index)
    if "delete" not in topic.settings.cleanup_policy:
        raise PolicyViolation(f"topic {topic.name} is compacted only: its cleanup.policy does not allow deletion")
    start = await context.broker.offsets.delete_before(key, partition.offset)
    # Fetches through this gateway must not go by the old start.
    await context.broker.positions.load([key])
    return start
