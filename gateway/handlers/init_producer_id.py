"""InitProducerId: an id and an epoch for a producer that numbers its records or writes transactions.

v2 flexible · v3 a producer names the id it had, and gets its next epoch (KIP-360) · v4 PRODUCER_FENCED
"""

from __future__ import annotations

import structlog

from gateway.broker.producers import readable
from gateway.domain.producers import Producer
from gateway.errors import ErrorCode, KafkaError, ProducerFenced
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field, milliseconds
from gateway.telemetry.metrics import PRODUCERS_FENCED

log = structlog.get_logger()

FIRST_VERSION_WITH_FENCED = 4


@handles(ApiKey.INIT_PRODUCER_ID, versions=range(0, 6))
async def init_producer_id(request: Request, context: RequestContext) -> Tree:
    asked = Producer(field(request, "producer_id", -1), field(request, "producer_epoch", -1))
    producer = await outcome(_init(request, asked, context))
    if isinstance(producer, KafkaError):
        if isinstance(producer, ProducerFenced):
            PRODUCERS_FENCED.inc()
        log.warning("producer refused", producer_id=asked.id, client_id=context.client_id, reason=producer.message)
        code = context.producer_error(producer, fenced_since=FIRST_VERSION_WITH_FENCED)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": ErrorCode.none, "producer_id": producer.id, "producer_epoch": producer.epoch}


async def _init(request: Request, asked: Producer, context: RequestContext) -> Producer:
    if request.transactional_id is None:
        return await context.broker.producers.init(asked, client_id=context.client_id)
    return await context.broker.transactions.init(
        request.transactional_id,
        asked,
        timeout_ms=milliseconds(request.transaction_timeout),
        client_id=readable(context.client_id),
    )
