"""Requests and responses: one small adapter over kio, which has a class per API and version.

A handler reads a request's fields by name (`field` for those that old versions lack) and answers with a tree
of dicts under the newest version's names. What a version does not have is left out, so one tree serves all.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import struct
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError, OutOfBoundValue

from gateway.protocol.scanning import OutOfBounds, scan_request
from gateway.protocol.shapes import entity_of, is_array, is_nullable

__all__ = [
    "ApiKey",
    "MalformedRequest",
    "Request",
    "RequestHeader",
    "Tree",
    "decode_header",
    "decode_request",
    "encode_body",
    "encode_response",
    "field",
    "milliseconds",
    "newest_version",
    "preload",
]

Request = Any
Tree = Mapping[str, Any]

ZERO_DURATION = dt.timedelta()
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class ApiKey(enum.IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75


class MalformedRequest(Exception):
    """The bytes are no request of the API and version they claim to be."""


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int


_HEADER = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
NO_TAGS = b"\0"


def decode_header(frame: bytes) -> RequestHeader:
    """The part of a request's header that has the same place in every version."""
    if len(frame) < _HEADER.size:
        raise MalformedRequest(f"a request of {len(frame)} bytes has no header")
    return RequestHeader(*_HEADER.unpack_from(frame))


def decode_request(frame: bytes, header: RequestHeader) -> tuple[str | None, Request]:
    """The client id and the body of a request; MalformedRequest if it is anything else."""
    request_class, read_header, read_body = _readers(header.api_key, header.version)
    try:
        frame = scan_request(request_class, frame)
        head, size = read_header(frame, 0)
        body, _ = read_body(frame, size)
    except (OutOfBounds, DecodeError, OutOfBoundValue, ValueError, OverflowError) as error:
        raise MalformedRequest(str(error) or type(error).__name__) from error
    return head.client_id, body


def encode_response(header: RequestHeader, tree: Tree, *, version: int | None = None) -> bytes:
    """The response frame's content for `tree`; `version` where it differs from the request's."""
    response_class, tags, write_body = _writers(header.api_key, header.version if version is None else version)
    out = _Chunks()
    out.write(_CORRELATION_ID.pack(header.correlation_id) + tags)
    write_body(out, _build(response_class, tree, known=_known_names(response_class)))
    return out.joined()


def encode_body(header: RequestHeader, body: bytes) -> bytes:
    """The response frame's content for a body that is encoded already, in the request's version."""
    return b"".join((_CORRELATION_ID.pack(header.correlation_id), _writers(header.api_key, header.version)[1], body))


def preload(api_key: int, versions: range) -> None:
    """Import what an API's versions need, so that no client's first request waits for it."""
    for version in versions:
        _readers(api_key, version)
        _known_names(_writers(api_key, version)[0])


def field(request: Request, name: str, default: Any) -> Any:
    """A field that older versions of the request lack."""
    return getattr(request, name, default)


def milliseconds(duration: dt.timedelta) -> int:
    """A duration as Kafka counts it."""
    return duration // dt.timedelta(milliseconds=1)


def newest_version(api_key: int) -> int:
    """The newest version that can be decoded and encoded."""
    return max(schema_name_map[api_key_map[api_key]])


class _Chunks:
    """What kio writes to: collected, then joined once."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def joined(self) -> bytes:
        return b"".join(self._parts)


@cache
def _readers(api_key: int, version: int) -> tuple[type, Callable[..., Any], Callable[..., Any]]:
    try:
        request_class = load_request_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity) as error:
        raise MalformedRequest(f"API {api_key} version {version} is unknown") from error
    return request_class, entity_reader(request_class.__header_schema__), entity_reader(request_class)


@cache
def _writers(api_key: int, version: int) -> tuple[type, bytes, Callable[..., None]]:
    """A response's class, what follows the correlation id in its header, and what writes its body."""
    response_class = load_response_schema(api_key, version)
    tags = NO_TAGS if response_class.__header_schema__.__flexible__ else b""
    return response_class, tags, entity_writer(response_class)


@cache
def _known_names(response_class: Any) -> frozenset[str]:
    """The field names of this version of a response, of the newest and of the oldest: a key of a tree beyond these is
    a typing error of ours."""
    names: set[str] = set()

    def visit(entity: type) -> None:
        for part in dataclasses.fields(entity):
            names.add(part.name)
            if (nested := entity_of(part.type)) is not None:
                visit(nested)

    api_key = response_class.__api_key__
    versions = schema_name_map[api_key_map[api_key]]
    for version in {response_class.__version__, min(versions), max(versions)}:
        visit(load_response_schema(api_key, version))
    return frozenset(names)


class _Field(NamedTuple):
    name: str
    entity: type | None
    is_array: bool
    convert: Callable[[Any], Any] | None
    is_duration: bool
    has_default: bool


def _duration(value_ms: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=value_ms)


def _instant(value_ms: int) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=value_ms)


def _moment(value_ms: int) -> dt.datetime | None:
    """Kafka's -1 is kio's null."""
    return None if value_ms < 0 else EPOCH + dt.timedelta(milliseconds=value_ms)


CONVERSIONS: Mapping[str, Callable[[int], Any]] = {
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "datetime_i64": _moment,
}


@cache
def _shape(entity: type) -> tuple[_Field, ...]:
    shape = []
    for part in dataclasses.fields(entity):
        kind = part.metadata.get("kafka_type")
        has_default = part.default is not dataclasses.MISSING
        shape.append(
            _Field(
                name=part.name,
                entity=entity_of(part.type),
                is_array=is_array(part.type),
                # Where kio has no null, -1 is the millisecond before 1970.
                convert=_instant
                if kind == "datetime_i64" and not is_nullable(part.type)
                else CONVERSIONS.get(kind or ""),
                is_duration=kind in ("timedelta_i32", "timedelta_i64"),
                has_default=has_default,
            )
        )
    return tuple(shape)


def _build(entity: type, tree: Tree, *, known: frozenset[str]) -> Any:
    values: dict[str, Any] = {}
    for name, nested, is_many, convert, is_duration, has_default in _shape(entity):
        if name not in tree:
            if has_default:
                continue
            if is_duration:
                values[name] = ZERO_DURATION
                continue
            raise KeyError(f"{entity.__name__}.{name} has no value")
        value = tree[name]
        if value is None:
            pass
        elif nested is not None:
            one = partial(_build, nested, known=known)
            value = tuple(map(one, value)) if is_many else one(value)
        elif is_many:
            value = tuple(value)
        elif convert is not None:
            value = convert(value)
        values[name] = value
    if not known.issuperset(tree):
        raise KeyError(f"no version of {entity.__name__} has {sorted(set(tree) - known)}")
    return entity(**values)
