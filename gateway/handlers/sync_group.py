"""SyncGroup: the leader gives assignments, the others wait for theirs.

v3 static members · v4 flexible · v5 names the protocol, which must be the group's
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

from gateway.domain.groups.classic import Synced
from gateway.errors import ErrorCode, InconsistentGroupProtocol, KafkaError
from gateway.handlers.registry import Answer, RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field

FIRST_VERSION_WITH_PROTOCOL = 5


@handles(ApiKey.SYNC_GROUP, versions=range(0, 6))
async def sync_group(request: Request, context: RequestContext) -> Answer:
    waiting = await group_outcome(_sync(request, context))
    return _refused(waiting) if isinstance(waiting, KafkaError) else _answer(waiting)


async def _sync(request: Request, context: RequestContext) -> Awaitable[Synced]:
    protocol_type, protocol_name = field(request, "protocol_type", None), field(request, "protocol_name", None)
    if context.version >= FIRST_VERSION_WITH_PROTOCOL and (protocol_type is None or protocol_name is None):
        raise InconsistentGroupProtocol("this version names the protocol it has joined with")
    return cast(
        Awaitable[Synced],
        await context.broker.groups.sync(
            request.group_id,
            member_id=request.member_id,
            instance_id=field(request, "group_instance_id", None),
            generation=request.generation_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[(one.member_id, one.assignment) for one in request.assignments],
        ),
    )


async def _answer(waiting: Awaitable[Synced]) -> Tree:
    synced = await group_outcome(waiting)
    if isinstance(synced, KafkaError):
        return _refused(synced)
    return {
        "error_code": ErrorCode.none,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol_name,
        "assignment": synced.assignment,
    }


def _refused(error: KafkaError) -> Tree:
    return {"error_code": error.code, "protocol_type": None, "protocol_name": None, "assignment": b""}
