"""OffsetDelete: forget where a group reads in topics that it does not read any more.

v0 not flexible
"""

from __future__ import annotations

from gateway.broker.catalog import Topic
from gateway.errors import ErrorCode, GroupSubscribedToTopic, KafkaError
from gateway.handlers.registry import RequestContext, group_outcome, handles
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage.keys import PartitionKey


@handles(ApiKey.OFFSET_DELETE, versions=range(0, 1))
async def offset_delete(request: Request, context: RequestContext) -> Tree:
    topics = await group_outcome(_delete(request, context))
    if isinstance(topics, KafkaError):
        return {"error_code": topics.code, "topics": []}
    return {"error_code": ErrorCode.none, "topics": topics}


async def _delete(request: Request, context: RequestContext) -> list[Tree]:
    groups = context.broker.groups
    subscribed = await groups.subscribed_topics(request.group_id)
    found = await context.find_topics([topic.name for topic in request.topics], by_id=False)
    doomed: list[PartitionKey] = []
    answers: list[Tree] = []
    for asked in request.topics:
        topic, partitions = found[asked.name], []
        for partition in asked.partitions:
            code = ErrorCode.none
            if not isinstance(topic, Topic):
                code = topic.code
            elif not 0 <= partition.partition_index < topic.partition_count:
                code = ErrorCode.unknown_topic_or_partition
            elif subscribed is None or asked.name in subscribed:
                code = GroupSubscribedToTopic.code
            else:
                doomed.append(topic.partition(partition.partition_index))
            partitions.append({"partition_index": partition.partition_index, "error_code": code})
        answers.append({"name": asked.name, "partitions": partitions})
    await groups.delete_offsets(request.group_id, doomed)
    return answers
