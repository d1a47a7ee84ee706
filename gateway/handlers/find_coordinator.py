"""FindCoordinator: which gateway looks after a group or a transaction.

v3 flexible · v4 several keys at once (KIP-699) · any gateway serves any key, so the answer is the one asked
"""

from __future__ import annotations

from gateway.errors import ErrorCode
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field

GROUP, TRANSACTION = 0, 1


@handles(ApiKey.FIND_COORDINATOR, versions=range(0, 7))
async def find_coordinator(request: Request, context: RequestContext) -> Tree:
    node = context.broker.node
    is_known_type = field(request, "key_type", GROUP) in (GROUP, TRANSACTION)
    if is_known_type:
        coordinator = {"error_code": ErrorCode.none, "error_message": None, **node._asdict()}
    else:
        coordinator = {
            "error_code": ErrorCode.invalid_request,
            "error_message": "only groups and transactions have coordinators here",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    if context.version < 4:
        return coordinator
    return {"coordinators": [{"key": key, **coordinator} for key in request.coordinator_keys]}
