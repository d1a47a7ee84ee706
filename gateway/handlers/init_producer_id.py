"""InitProducerId: an id and an epoch for a producer that numbers its records.

v2 flexible · v3 a producer names the id it had, and gets its next epoch (KIP-360) · v4 PRODUCER_FENCED
"""

from __future__ import annotations

import structlog

from gateway.domain.producers import Producer
from gateway.errors import ErrorCode, InvalidRequest, KafkaError, ProducerFenced
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field
from gateway.storage.failures import DATABASE_ERRORS
from gateway.telemetry.metrics import PRODUCERS_FENCED

log = structlog.get_logger()

FIRST_VERSION_WITH_FENCED = 4


@handles(ApiKey.INIT_PRODUCER_ID, versions=range(0, 6))
async def init_producer_id(request: Request, context: RequestContext) -> Tree:
    asked = Producer(field(request, "producer_id", -1), field(request, "producer_epoch", -1))
    try:
        if request.transactional_id is not None:
            raise InvalidRequest("transactions are not served yet; leave transactional.id unset")
        producer = await context.broker.producers.init(asked, client_id=context.client_id)
    except KafkaError as error:
        if isinstance(error, ProducerFenced):
            PRODUCERS_FENCED.inc()
        log.warning(
            "producer refused", producer_id=asked.id, client_id=context.client_id, reason=error.message
        )
        return _refused(error.code, context.version)
    except DATABASE_ERRORS:
        return _refused(ErrorCode.coordinator_not_available, context.version)
    return {"error_code": ErrorCode.none, "producer_id": producer.id, "producer_epoch": producer.epoch}


def _refused(code: ErrorCode, version: int) -> Tree:
    if code == ErrorCode.producer_fenced and version < FIRST_VERSION_WITH_FENCED:
        code = ErrorCode.invalid_producer_epoch
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
