"""ConsumerGroupDescribe: the epochs of consumer groups, what their members have and are to have (KIP-848).

v1 whether a member speaks the classic protocol
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from gateway.broker.groups import ConsumerDescription
from gateway.domain.groups.assignors import Partition
from gateway.domain.groups.reconciliation import Member
from gateway.domain.operations import GROUP_OPERATIONS, operations_mask
from gateway.errors import ErrorCode, KafkaError
from gateway.handlers.registry import RequestContext, error_fields, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=range(0, 2))
async def consumer_group_describe(request: Request, context: RequestContext) -> Tree:
    allowed = {}
    if request.include_authorized_operations:
        allowed = {"authorized_operations": operations_mask(GROUP_OPERATIONS)}
    groups = []
    for group_id in request.group_ids:
        described = await group_outcome(context.broker.groups.describe_consumer(group_id))
        if isinstance(described, KafkaError):
            groups.append({**error_fields(described), **_nothing(group_id)})
        else:
            groups.append({**_group(described), **allowed})
    return {"groups": groups}


def _group(described: ConsumerDescription) -> Tree:
    group = described.group
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": described.assignor,
        "members": [
            _member(member, group.target.get(name, ()), described.topic_names) for name, member in group.members.items()
        ],
    }


def _member(member: Member, target: Iterable[Partition], names: dict[UUID, str]) -> Tree:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "subscribed_topic_regex": member.topic_pattern,
        "assignment": {"topic_partitions": _by_topic(member.assigned, names)},
        "target_assignment": {"topic_partitions": _by_topic(target, names)},
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


def _by_topic(partitions: Iterable[Partition], names: dict[UUID, str]) -> list[Tree]:
    """Of topics that still exist: the others have no name to show."""
    by_topic: dict[UUID, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return [
        {"topic_id": topic, "topic_name": names[topic], "partitions": numbers}
        for topic, numbers in by_topic.items()
        if topic in names
    ]


def _nothing(group_id: str) -> Tree:
    return {
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }
