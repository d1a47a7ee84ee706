"""WriteTxnMarkers: an operator aborts a transaction (`kafka-transactions abort`).

v1 flexible · only aborts: what commits is EndTxn, and there are no markers between brokers here
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.domain.producers import Producer
from gateway.errors import ErrorCode, InvalidRequest, KafkaError
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree


@handles(ApiKey.WRITE_TXN_MARKERS, versions=range(1, 3))
async def write_txn_markers(request: Request, context: RequestContext) -> Tree:
    return {"markers": [await _abort(marker, context) for marker in request.markers]}


async def _abort(marker: Any, context: RequestContext) -> Tree:
    found = await context.find_topics([topic.name for topic in marker.topics], by_id=False)
    producer = Producer(marker.producer_id, marker.producer_epoch)
    topics = []
    is_ended = False
    for topic in marker.topics:
        partitions = []
        for index in topic.partition_indexes:
            # The first partition takes the whole transaction with it: there is no half of one.
            result = None
            if not is_ended:
                result = await outcome(_abort_partition(marker, found[topic.name], index, producer, context))
                is_ended = not isinstance(result, KafkaError)
            code = result.code if isinstance(result, KafkaError) else ErrorCode.none
            partitions.append({"partition_index": index, "error_code": code})
        topics.append({"name": topic.name, "partitions": partitions})
    return {"producer_id": producer.id, "topics": topics}


async def _abort_partition(
    marker: Any, topic: Topic | KafkaError, index: int, producer: Producer, context: RequestContext
) -> None:
    if isinstance(topic, KafkaError):
        raise topic
    if marker.transaction_result:
        raise InvalidRequest("a transaction is committed by its producer only")
    await context.broker.transactions.abort_partition_of(producer, topic.partition(index))
