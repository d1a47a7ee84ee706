"""JoinGroup: become a member of a group, and wait until a generation begins.

v1 rebalance timeout · v4 a dynamic member is first given an id (KIP-394) · v5 static members (KIP-345) · v6 flexible
v7 protocol type · v8 reason · v9 a leader may be told not to assign (KIP-814)
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

from gateway.broker.groups import new_member_id
from gateway.domain.groups.classic import Joined, JoinRequest
from gateway.errors import (
    ErrorCode,
    GroupMaxSizeReached,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    MemberIdRequired,
)
from gateway.handlers.registry import Answer, RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field, milliseconds

FIRST_VERSION_WITH_REQUIRED_ID = 4
FIRST_VERSION_WITH_NULL_PROTOCOL = 7
FIRST_VERSION_WITH_SKIP = 9


@handles(ApiKey.JOIN_GROUP, versions=range(0, 10))
async def join_group(request: Request, context: RequestContext) -> Answer:
    waiting = await group_outcome(_join(request, context))
    if isinstance(waiting, KafkaError):
        return _refused(waiting, request, context)
    return _answer(waiting, request, context)


async def _join(request: Request, context: RequestContext) -> Awaitable[Joined]:
    settings = context.broker.settings
    session_timeout_ms = milliseconds(request.session_timeout)
    low, high = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if request.group_id and not low <= session_timeout_ms <= high:
        raise InvalidSessionTimeout(f"a session may last {low} to {high} ms, not {session_timeout_ms}")
    instance_id: str | None = field(request, "group_instance_id", None)
    names = [instance_id or "", request.protocol_type, *(protocol.name for protocol in request.protocols)]
    if any("\0" in name for name in names):
        raise InvalidRequest("PostgreSQL's text cannot hold a NUL character")
    join = JoinRequest(
        member_id=request.member_id,
        new_member_id=new_member_id(context.client_id, instance_id),
        instance_id=instance_id,
        client_id=(context.client_id or "").replace("\0", "\N{REPLACEMENT CHARACTER}"),
        client_host=context.client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=milliseconds(field(request, "rebalance_timeout", request.session_timeout)),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        must_know_its_id=context.version >= FIRST_VERSION_WITH_REQUIRED_ID,
        may_skip_assignment=context.version >= FIRST_VERSION_WITH_SKIP,
    )
    return cast(Awaitable[Joined], await context.broker.groups.join(request.group_id, join))


async def _answer(waiting: Awaitable[Joined], request: Request, context: RequestContext) -> Tree:
    joined = await group_outcome(waiting)
    if isinstance(joined, KafkaError):
        return _refused(joined, request, context)
    return {
        "error_code": ErrorCode.none,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": _name(joined.protocol_name, context),
        "leader": joined.leader_id,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
            for one in joined.members
        ],
    }


def _refused(error: KafkaError, request: Request, context: RequestContext) -> Tree:
    member_id = request.member_id
    if isinstance(error, MemberIdRequired):
        member_id = error.member_id
    elif isinstance(error, GroupMaxSizeReached):
        member_id = ""
    return {
        "error_code": error.code,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": _name(None, context),
        "leader": "",
        "member_id": member_id,
        "members": [],
    }


def _name(protocol_name: str | None, context: RequestContext) -> str | None:
    return protocol_name if context.version >= FIRST_VERSION_WITH_NULL_PROTOCOL else protocol_name or ""
