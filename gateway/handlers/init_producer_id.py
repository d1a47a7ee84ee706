"""InitProducerId: an id for a producer that writes with sequences.

v2 flexible · v3 a producer names the id it had (KIP-360) · v6 two-phase commit (KIP-939) is refused
"""

from __future__ import annotations

from gateway.errors import ErrorCode, InvalidRequest, KafkaError
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage.failures import DATABASE_ERRORS


@handles(ApiKey.INIT_PRODUCER_ID, versions=range(0, 6))
async def init_producer_id(request: Request, context: RequestContext) -> Tree:
    try:
        if request.transactional_id is not None:
            raise InvalidRequest("transactions are not served yet; leave transactional.id unset")
        producer = await context.broker.producers.create(context.client_id)
    except KafkaError as error:
        return {"error_code": error.code, "producer_id": -1, "producer_epoch": -1}
    except DATABASE_ERRORS:
        return {"error_code": ErrorCode.coordinator_not_available, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": ErrorCode.none, "producer_id": producer.id, "producer_epoch": producer.epoch}
