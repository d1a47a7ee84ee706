"""DescribeGroups: the state of classic groups and what their members were assigned.

v3 authorized operations (KIP-430) · v4 static members · v5 flexible · v6 GROUP_ID_NOT_FOUND instead of a dead group
"""

from __future__ import annotations

from gateway.broker.groups import Description
from gateway.domain.groups.classic import GroupState
from gateway.domain.operations import GROUP_OPERATIONS, operations_mask
from gateway.errors import ErrorCode, GroupIdNotFound, KafkaError
from gateway.handlers.registry import RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field

FIRST_VERSION_WITH_NOT_FOUND = 6


@handles(ApiKey.DESCRIBE_GROUPS, versions=range(0, 7))
async def describe_groups(request: Request, context: RequestContext) -> Tree:
    allowed = {}
    if field(request, "include_authorized_operations", False):
        allowed = {"authorized_operations": operations_mask(GROUP_OPERATIONS)}
    groups = []
    for group_id in request.groups:
        described = await group_outcome(context.broker.groups.describe(group_id))
        if isinstance(described, KafkaError):
            groups.append(_refused(group_id, described, context))
        else:
            groups.append({**_group(described), **allowed})
    return {"groups": groups}


def _group(group: Description) -> Tree:
    is_stable = group.state == GroupState.STABLE
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol_name) if is_stable else b"",
                "member_assignment": member.assignment if is_stable else b"",
            }
            for member in group.members
        ],
    }


def _refused(group_id: str, error: KafkaError, context: RequestContext) -> Tree:
    is_missing = isinstance(error, GroupIdNotFound)
    is_silent = is_missing and context.version < FIRST_VERSION_WITH_NOT_FOUND
    return {
        "error_code": ErrorCode.none if is_silent else error.code,
        "error_message": error.message if is_missing else None,
        "group_id": group_id,
        "group_state": str(GroupState.DEAD) if is_missing else "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }
