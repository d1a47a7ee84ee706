"""Heartbeat: a member of a group lives, and is told when it has to join again.

v3 static members · v4 flexible
"""

from __future__ import annotations

from gateway.errors import ErrorCode, KafkaError
from gateway.handlers.registry import RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field


@handles(ApiKey.HEARTBEAT, versions=range(0, 5))
async def heartbeat(request: Request, context: RequestContext) -> Tree:
    beaten = await group_outcome(
        context.broker.groups.heartbeat(
            request.group_id,
            member_id=request.member_id,
            instance_id=field(request, "group_instance_id", None),
            generation=request.generation_id,
        )
    )
    return {"error_code": beaten.code if isinstance(beaten, KafkaError) else ErrorCode.none}
