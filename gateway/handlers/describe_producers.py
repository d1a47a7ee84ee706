"""DescribeProducers: the producers that a partition knows (KIP-664).

v0 flexible
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.errors import ErrorCode, KafkaError
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage.failures import DATABASE_ERRORS, translate


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=range(0, 1))
async def describe_producers(request: Request, context: RequestContext) -> Tree:
    topics = await context.find_topics([topic.name for topic in request.topics], by_id=False)
    return {
        "topics": [
            {
                "name": asked.name,
                "partitions": [
                    await _partition(topics[asked.name], index, context) for index in asked.partition_indexes
                ],
            }
            for asked in request.topics
        ]
    }


async def _partition(topic: Topic | KafkaError, index: int, context: RequestContext) -> Tree:
    answer: dict[str, Any] = {"partition_index": index, "error_code": ErrorCode.none, "active_producers": []}
    try:
        if isinstance(topic, KafkaError):
            raise topic
        active = await context.broker.producers.list_active(topic.partition(index))
    except (KafkaError, *DATABASE_ERRORS) as error:
        refusal = translate(error)
        return {**answer, "error_code": refusal.code, "error_message": refusal.message}
    answer["active_producers"] = [
        {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "last_sequence": last_sequence,
            "last_timestamp": last_timestamp_ms,
            "coordinator_epoch": -1,
            "current_txn_start_offset": -1 if open_since is None else open_since,
        }
        for producer_id, epoch, last_sequence, last_timestamp_ms, open_since in active
    ]
    return answer
