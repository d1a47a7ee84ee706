"""LeaveGroup: members go, and the others rebalance at once.

v3 several members, also by instance id alone (KIP-345) · v4 flexible · v5 reason
"""

from __future__ import annotations

from gateway.domain.groups.classic import Identity
from gateway.errors import ErrorCode, KafkaError, UnknownMemberId
from gateway.handlers.registry import RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree

FIRST_VERSION_WITH_SEVERAL = 3


@handles(ApiKey.LEAVE_GROUP, versions=range(0, 6))
async def leave_group(request: Request, context: RequestContext) -> Tree:
    if context.version < FIRST_VERSION_WITH_SEVERAL:
        identities = [Identity(request.member_id, None)]
    else:
        identities = [Identity(one.member_id, one.group_instance_id) for one in request.members]
    outcomes = await group_outcome(context.broker.groups.leave(request.group_id, identities))
    if isinstance(outcomes, UnknownMemberId):  # there is no such group
        outcomes = [outcomes] * len(identities)
    if isinstance(outcomes, KafkaError):
        return {"error_code": outcomes.code, "members": []}
    codes = [ErrorCode.none if outcome is None else outcome.code for outcome in outcomes]
    return {
        "error_code": codes[0] if context.version < FIRST_VERSION_WITH_SEVERAL else ErrorCode.none,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": code}
            for one, code in zip(identities, codes, strict=True)
        ],
    }
