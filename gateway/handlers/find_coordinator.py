"""FindCoordinator: which gateway looks after a group or a transaction.

v3 flexible · v4 several keys at once (KIP-699)
"""

from __future__ import annotations

from gateway.errors import CoordinatorNotAvailable, ErrorCode
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field

GROUP, TRANSACTION = 0, 1


@handles(ApiKey.FIND_COORDINATOR, versions=range(0, 7))
async def find_coordinator(request: Request, context: RequestContext) -> Tree:
    key_type = field(request, "key_type", GROUP)
    keys = [request.key] if context.version < 4 else request.coordinator_keys
    answers = [_coordinator(key, key_type, context) for key in keys]
    if key_type == TRANSACTION:
        here = context.broker.node.node_id
        coming = [key for key, answer in zip(keys, answers, strict=True) if answer["node_id"] == here]
        if coming:
            await context.broker.transactions.expect(coming)
    if context.version < 4:
        return answers[0]
    return {"coordinators": [{"key": key, **answer} for key, answer in zip(keys, answers, strict=True)]}


def _coordinator(key: str, key_type: int, context: RequestContext) -> Tree:
    if key_type not in (GROUP, TRANSACTION):
        return _refused(ErrorCode.invalid_request, "only groups and transactions have coordinators here")
    try:
        node = context.broker.cluster.coordinator_of(key)
    except CoordinatorNotAvailable as error:
        return _refused(error.code, error.message)
    return {"error_code": ErrorCode.none, "error_message": None, **node._asdict()}


def _refused(code: ErrorCode, message: str) -> Tree:
    return {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
