"""EndTxn: commit or abort the producer's open transaction.

v3 flexible · v5 answers with the epoch to go on with (KIP-890)
"""

from __future__ import annotations

from gateway.domain.producers import Producer
from gateway.errors import KafkaError
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree

FIRST_VERSION_WITH_EPOCH = 5
FIRST_VERSION_WITH_FENCED = 2


@handles(ApiKey.END_TXN, versions=range(0, 6))
async def end_txn(request: Request, context: RequestContext) -> Tree:
    asked = Producer(request.producer_id, request.producer_epoch)
    bumps_epoch = context.version >= FIRST_VERSION_WITH_EPOCH
    producer = await outcome(
        context.broker.transactions.end(
            request.transactional_id,
            asked,
            commit=request.committed,
            bump_epoch=bumps_epoch,
            classic_connection=None if bumps_epoch else context.connection,
        )
    )
    error_code = context.producer_error(producer, fenced_since=FIRST_VERSION_WITH_FENCED)
    if isinstance(producer, KafkaError):
        return {"error_code": error_code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": error_code, "producer_id": producer.id, "producer_epoch": producer.epoch}
