"""DeleteGroups: delete groups that have no members, with their offsets.

v2 flexible
"""

from __future__ import annotations

from gateway.errors import ErrorCode, KafkaError
from gateway.handlers.registry import RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree


@handles(ApiKey.DELETE_GROUPS, versions=range(0, 3))
async def delete_groups(request: Request, context: RequestContext) -> Tree:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        deleted = await group_outcome(context.broker.groups.delete(group_id))
        code = deleted.code if isinstance(deleted, KafkaError) else ErrorCode.none
        results.append({"group_id": group_id, "error_code": code})
    return {"results": results}
