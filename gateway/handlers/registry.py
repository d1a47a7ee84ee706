"""How an API becomes part of the support matrix: a handler names its key and its versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from gateway.broker.broker import Broker
from gateway.broker.catalog import Topic
from gateway.clock import monotonic_seconds
from gateway.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    KafkaError,
    NotLeaderOrFollower,
    ProducerFenced,
    RequestTimedOut,
    StorageFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage.failures import DATABASE_ERRORS, is_bad_data, translate

__all__ = [
    "HANDLERS",
    "Answer",
    "Deadline",
    "Handler",
    "RequestContext",
    "UnheardRefusal",
    "error_fields",
    "group_outcome",
    "handles",
    "outcome",
]

T = TypeVar("T")

Answer: TypeAlias = "Tree | bytes | Awaitable[Tree | bytes | None] | None"
"""A response or its body, encoded already; none at all (acks=0), or something that becomes one.

A connection's requests are begun one after the other; what a handler returns to be awaited lets the next one
begin.
"""

Function = Callable[[Request, "RequestContext"], Awaitable[Answer]]


class UnheardRefusal(Exception):
    """A request that wants no answer was refused: its connection is closed, so that the client looks."""


@dataclass(slots=True)
class MemoryUse:
    """What a request takes beside its own bytes."""

    decoded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, in which version, and whom to ask."""

    version: int
    client_id: str | None
    broker: Broker
    connection: int
    """Connections are numbered as they are accepted."""
    client_host: str = ""
    """Where the client connects from, as Kafka shows it."""
    memory: MemoryUse = field(default_factory=MemoryUse)

    def producer_error(self, result: object, *, fenced_since: int) -> ErrorCode:
        """The code for a transactional request; PRODUCER_FENCED is younger than most of their versions."""
        if isinstance(result, ProducerFenced) and self.version < fenced_since:
            return ErrorCode.invalid_producer_epoch
        if isinstance(result, (NotLeaderOrFollower, RequestTimedOut, StorageFailed)):
            return ErrorCode.coordinator_not_available  # the database is away, or full: ask again
        return result.code if isinstance(result, KafkaError) else ErrorCode.none

    def describe_partition(self, topic: Topic, index: int) -> dict[str, Any]:
        """A partition as clients are told of it. Its leader spreads the load; any gateway serves it."""
        node_id = self.broker.cluster.leader_of(topic.stored.topic_id, index)
        return {
            "error_code": ErrorCode.none,
            "partition_index": index,
            "leader_id": node_id,
            "leader_epoch": 0,
            "replica_nodes": [node_id],
            "isr_nodes": [node_id],
            "offline_replicas": [],
        }

    async def find_topics(self, named: Sequence[Any], *, by_id: bool) -> Mapping[Any, Topic | KafkaError]:
        """The topics a request names, by name or by id, each with its own refusal."""
        catalog = self.broker.catalog
        try:
            found: dict[Any, Topic] = await (catalog.find_by_uuid(named) if by_id else catalog.find(named))
        except DATABASE_ERRORS as error:
            return dict.fromkeys(named, translate(error))
        if len(found) == len(named):
            return found
        unknown = UnknownTopicId("no topic has this id") if by_id else UnknownTopicOrPartition("no such topic")
        return {name: found.get(name, unknown) for name in named}


async def outcome(work: Awaitable[T]) -> T | KafkaError:
    """What `work` gives, or the refusal to answer with; a database failure is one of those."""
    try:
        return await work
    except KafkaError as error:
        return error
    except DATABASE_ERRORS as error:
        return translate(error)


async def group_outcome(work: Awaitable[T]) -> T | KafkaError:
    """What `work` on a group gives, or the refusal to answer with. While the database is away, clients ask again."""
    try:
        return await work
    except KafkaError as error:
        return error
    except DATABASE_ERRORS as error:
        refusal = translate(error)
        return refusal if is_bad_data(error) else CoordinatorNotAvailable(refusal.message)


def error_fields(result: object) -> dict[str, Any]:
    """The two fields most answers begin with: no error unless `result` is a refusal."""
    if isinstance(result, KafkaError):
        return {"error_code": result.code, "error_message": result.message}
    return {"error_code": ErrorCode.none, "error_message": None}


class Deadline:
    """The time an admin request allows: what was not begun by then is refused instead of done unseen."""

    def __init__(self, timeout_ms: int) -> None:
        # Clients that leave the choice to the server send 0 or less.
        self._ends_at = monotonic_seconds() + timeout_ms / 1000 if timeout_ms > 0 else None

    def require_time(self) -> None:
        if self._ends_at is not None and monotonic_seconds() >= self._ends_at:
            raise RequestTimedOut("the request's time was over before this was begun; nothing was changed")


@dataclass(frozen=True, slots=True)
class Handler:
    api_key: ApiKey
    versions: range
    announced_min: int
    function: Function
    summary: str


HANDLERS: dict[int, Handler] = {}
"""The support matrix: decides dispatch, ApiVersions and docs/protocol-coverage.md."""


def handles(api_key: ApiKey, *, versions: range, announced_min: int | None = None) -> Callable[[Function], Function]:
    """Register a handler; `announced_min` where clients must be told of versions that are refused."""

    def register(function: Function) -> Function:
        module_text = (function.__globals__["__doc__"] or "").strip()
        summary = module_text.split("\n", 1)[0].partition(": ")[2].rstrip(".")
        minimum = versions.start if announced_min is None else announced_min
        HANDLERS[api_key] = Handler(api_key, versions, minimum, function, summary)
        return function

    return register
