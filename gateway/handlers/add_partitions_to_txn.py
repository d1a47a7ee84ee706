"""AddPartitionsToTxn: partitions become part of a producer's transaction.

v3 flexible · v4 several transactions at once, and a mode that only verifies (KIP-890)
"""

from __future__ import annotations

from typing import Any

from gateway.broker.catalog import Topic
from gateway.broker.producers import readable
from gateway.domain.producers import Producer
from gateway.errors import ErrorCode, KafkaError, OperationNotAttempted, TransactionAbortable
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage.keys import PartitionKey

FIRST_BATCHED_VERSION = 4
FIRST_VERSION_WITH_FENCED = 2


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions=range(0, 6))
async def add_partitions_to_txn(request: Request, context: RequestContext) -> Tree:
    if context.version < FIRST_BATCHED_VERSION:
        asked = (request.v3_and_below_transactional_id, request.v3_and_below_producer_id)
        producer = Producer(asked[1], request.v3_and_below_producer_epoch)
        topics = await _add(
            asked[0], producer, request.v3_and_below_topics, context, classic_connection=context.connection
        )
        return {"results_by_topic_v3_and_below": topics}
    results = []
    for one in request.transactions:
        producer = Producer(one.producer_id, one.producer_epoch)
        topics = await _add(one.transactional_id, producer, one.topics, context, only_verifies=one.verify_only)
        results.append({"transactional_id": one.transactional_id, "topic_results": topics})
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _add(
    transactional_id: str,
    producer: Producer,
    asked: Any,
    context: RequestContext,
    *,
    only_verifies: bool = False,
    classic_connection: int | None = None,
) -> list[Tree]:
    """All of the partitions or none: where one is unknown, the others are not tried."""
    topics = await context.find_topics([topic.name for topic in asked], by_id=False)
    judged = {(topic.name, index): _key(topics[topic.name], index) for topic in asked for index in topic.partitions}
    keys = [key for key in judged.values() if isinstance(key, PartitionKey)]
    codes: dict[tuple[str, int], ErrorCode]
    if len(keys) < len(judged):
        codes = {place: _refusal(key, list(judged.values()), context) for place, key in judged.items()}
    else:
        transactions = context.broker.transactions
        result = await outcome(
            transactions.find_partitions(transactional_id, producer)
            if only_verifies
            else transactions.add_partitions(
                transactional_id,
                producer,
                keys,
                client_id=readable(context.client_id),
                classic_connection=classic_connection,
            )
        )
        code = context.producer_error(result, fenced_since=FIRST_VERSION_WITH_FENCED)
        codes = {
            place: TransactionAbortable.code if isinstance(result, frozenset) and key not in result else code
            for place, key in judged.items()
        }
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": codes[topic.name, index]}
                for index in topic.partitions
            ],
        }
        for topic in asked
    ]


def _key(topic: Topic | KafkaError, index: int) -> PartitionKey | KafkaError:
    if isinstance(topic, KafkaError):
        return topic
    try:
        return topic.partition(index)
    except KafkaError as error:
        return error


def _refusal(
    key: PartitionKey | KafkaError, judged: list[PartitionKey | KafkaError], context: RequestContext
) -> ErrorCode:
    """What a partition is told where not all of them are known."""
    codes = [context.producer_error(each, fenced_since=0) for each in judged]
    if ErrorCode.coordinator_not_available in codes:
        return ErrorCode.coordinator_not_available  # the database is away: all of it is to be asked again
    return key.code if isinstance(key, KafkaError) else OperationNotAttempted.code
