"""AddOffsetsToTxn: the offsets of a group become part of a producer's transaction.

v3 flexible · v4 TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from gateway.broker.producers import readable
from gateway.domain.producers import Producer
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree

FIRST_VERSION_WITH_FENCED = 2


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=range(0, 5))
async def add_offsets_to_txn(request: Request, context: RequestContext) -> Tree:
    producer = Producer(request.producer_id, request.producer_epoch)
    # Clients that know KIP-890 do not send this request.
    result = await outcome(
        context.broker.transactions.add_group(
            request.transactional_id,
            producer,
            client_id=readable(context.client_id),
            classic_connection=context.connection,
        )
    )
    return {"error_code": context.producer_error(result, fenced_since=FIRST_VERSION_WITH_FENCED)}
