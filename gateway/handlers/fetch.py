"""Fetch: read records, waiting for them where there are none.

v4 isolation levels · v7 sessions (declined: each request names all its partitions) · v12 flexible · v13 topics by id
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from gateway.broker.catalog import Topic
from gateway.broker.reads import NO_STATE, Fetched, Wanted
from gateway.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    KafkaError,
)
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field, milliseconds

FIRST_VERSION_WITH_IDS = 13
MAX_RESPONSE_BYTES = 55 * 1024 * 1024
"""fetch.max.bytes of a broker: no response is larger, whatever the client asks for."""

NO_SESSION_EPOCHS = (-1, 0)
READ_COMMITTED = 1


@handles(ApiKey.FETCH, versions=range(4, 19))
async def fetch(request: Request, context: RequestContext) -> Awaitable[Tree] | Tree:
    if field(request, "session_id", 0) != 0 and field(request, "session_epoch", -1) not in NO_SESSION_EPOCHS:
        return {"error_code": FetchSessionIdNotFound.code, "session_id": 0, "responses": []}
    return _fetch(request, context)


async def _fetch(request: Request, context: RequestContext) -> Tree:
    by_id = context.version >= FIRST_VERSION_WITH_IDS
    label = "topic_id" if by_id else "topic"
    named = [getattr(topic, label) for topic in request.topics]
    topics = await context.find_topics(named, by_id=by_id)
    places: list[tuple[Any, int, Wanted | KafkaError]] = [
        (name, partition.partition, _wanted(topics[name], partition))
        for name, asked in zip(named, request.topics, strict=True)
        for partition in asked.partitions
    ]
    wanted = [place[2] for place in places if isinstance(place[2], Wanted)]
    is_refused = len(wanted) < len(places)
    found = iter(
        await context.broker.reads.fetch(
            wanted,
            min_bytes=max(0, request.min_bytes),
            max_bytes=max(0, min(field(request, "max_bytes", MAX_RESPONSE_BYTES), MAX_RESPONSE_BYTES)),
            max_wait_ms=0 if is_refused else max(0, milliseconds(request.max_wait)),
            read_committed=field(request, "isolation_level", 0) == READ_COMMITTED,
        )
        if wanted
        else []
    )
    responses: dict[Any, list[Tree]] = {name: [] for name in named}
    read_committed = field(request, "isolation_level", 0) == READ_COMMITTED
    for name, index, place in places:
        one = next(found) if isinstance(place, Wanted) else Fetched(NO_STATE, error=place)
        responses[name].append(_partition_response(index, one, read_committed=read_committed))
    return {
        "error_code": ErrorCode.none,
        "session_id": 0,
        "responses": [{label: name, "partitions": partitions} for name, partitions in responses.items()],
    }


def _wanted(topic: Topic | KafkaError, partition: Any) -> Wanted | KafkaError:
    if isinstance(topic, KafkaError):
        return topic
    try:
        key = topic.partition(partition.partition)
    except KafkaError as error:
        return error
    return Wanted(
        key,
        offset=partition.fetch_offset,
        max_bytes=max(0, partition.partition_max_bytes),
        leader_epoch=field(partition, "current_leader_epoch", -1),
    )


def _partition_response(index: int, one: Fetched, *, read_committed: bool) -> Tree:
    return {
        "partition_index": index,
        "error_code": ErrorCode.none if one.error is None else one.error.code,
        "high_watermark": one.state.next_offset,
        "last_stable_offset": one.state.last_stable_offset,
        "log_start_offset": one.state.log_start_offset,
        "aborted_transactions": [
            {"producer_id": each.producer_id, "first_offset": each.first_offset} for each in one.aborted
        ]
        if read_committed
        else None,
        "records": one.records,
    }
