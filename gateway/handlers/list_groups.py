"""ListGroups: the groups that this gateway coordinates; clients ask every gateway.

v3 flexible · v4 filter by state (KIP-518) · v5 filter by type (KIP-848)
"""

from __future__ import annotations

from gateway.errors import ErrorCode, KafkaError
from gateway.handlers.registry import RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field


@handles(ApiKey.LIST_GROUPS, versions=range(0, 6))
async def list_groups(request: Request, context: RequestContext) -> Tree:
    states = {state.lower() for state in field(request, "states_filter", ())}
    types = {kind.lower() for kind in field(request, "types_filter", ())}
    listed = await group_outcome(context.broker.groups.list_all())
    if isinstance(listed, KafkaError):
        return {"error_code": listed.code, "groups": []}
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": one.group_id,
                "protocol_type": one.protocol_type,
                "group_state": one.state,
                "group_type": one.group_type,
            }
            for one in listed
            if (not states or one.state.lower() in states) and (not types or one.group_type.lower() in types)
        ],
    }
