"""Requests and responses of every API and version that is served, against kafka-python's codec; and mutations.

kafka-python reads Apache Kafka's own message schemas, so it is the independent witness: what it encodes we must
decode to the same values, and what we encode it must decode to the values we meant, with no byte left over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import struct
import uuid
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ErrorCode
from gateway.handlers import HANDLERS
from gateway.protocol.messages import (
    ApiKey,
    MalformedRequest,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
    milliseconds,
)
from gateway.protocol.shapes import entity_of
from tests.support.wire_client import message_class

SERVED = [
    pytest.param(handler.api_key, version, id=f"{handler.api_key.name.lower()}-v{version}")
    for handler in sorted(HANDLERS.values(), key=lambda handler: handler.api_key)
    for version in handler.versions
]
CORRELATION_ID = 0x01020304
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
NO_ID = uuid.UUID(int=0)


def kafka_name(api_key: ApiKey) -> str:
    return "".join(part.capitalize() for part in api_key.name.split("_"))


def fields_of(schema: Any, version: int) -> list[Any]:
    """A structure's fields in the order of Kafka's schema, which is also the order of kio's classes."""
    return [field for field in schema.fields.values() if field.for_version_q(version)]


def simple_values(field: Any) -> st.SearchStrategy[Any]:
    kind = field.type_str.removeprefix("[]")
    if kind in INTEGERS:
        half = 1 << INTEGERS[kind] - 1
        return st.integers(-half, half - 1)
    if kind == "uint16":
        return st.integers(0, 0xFFFF)
    if kind == "bitfield":
        return st.none()
    return {
        "bool": st.booleans(),
        "string": st.text(st.characters(codec="utf-8"), max_size=200),
        "bytes": st.binary(max_size=200),
        "records": st.binary(max_size=200),
        "uuid": st.uuids(),
        "float64": st.floats(allow_nan=False),
    }[kind]


def values(field: Any, version: int, *, only_positive: bool) -> st.SearchStrategy[Any]:
    """What may stand in a field, nested structures as dicts by kafka-python's names."""
    if field.is_struct_array():
        found: st.SearchStrategy[Any] = st.lists(structures(field, version, only_positive=only_positive), max_size=3)
    elif field.is_struct():
        found = structures(field, version, only_positive=only_positive)
    elif field.is_array():
        found = st.lists(simple_values(field), max_size=3)
    elif only_positive and field.name.endswith("_ms"):
        found = st.integers(0, 2**31 - 1)  # kio has a class for durations and times
    elif field.name == "retention_time_ms":
        found = st.integers(-1, 2**53)  # beyond it kio's durations overflow
    elif field.name.endswith("error_code"):
        found = st.sampled_from(ErrorCode)
    else:
        found = simple_values(field)
    if field.nullable_for_version_q(version):
        found = st.none() | found
    return found


def structures(schema: Any, version: int, *, only_positive: bool) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {field.name: values(field, version, only_positive=only_positive) for field in fields_of(schema, version)}
    )


def build(message: Any, content: dict[str, Any], version: int) -> Any:
    filled = {}
    for field in fields_of(message._struct, version):
        value = content[field.name]
        if value is not None and field.is_struct_array():
            value = [build(field.data_class, one, version) for one in value]
        elif value is not None and field.is_struct():
            value = build(field.data_class, value, version)
        filled[field.name] = value
    return message(version=version, **filled)


def as_kio(schema: Any, content: dict[str, Any], entity: type, version: int) -> dict[str, Any]:
    """The same content under kio's names, which differ where it has a class for durations."""
    tree: dict[str, Any] = {}
    ours = dataclasses.fields(entity)
    theirs = fields_of(schema, version)
    assert len(ours) == len(theirs)
    for part, field in zip(ours, theirs, strict=True):
        value = content[field.name]
        nested = entity_of(part.type)
        if nested is not None and value is not None:
            if field.is_struct_array():
                value = [as_kio(field, one, nested, version) for one in value]
            else:
                value = as_kio(field, value, nested, version)
        tree[part.name] = value
    return tree


def plain(value: Any) -> Any:
    """A decoded value of either codec as something the two can be compared by."""
    if isinstance(value, ErrorCode):
        return value.value
    if isinstance(value, dt.timedelta):
        return milliseconds(value)
    if isinstance(value, dt.datetime):
        return round((value - EPOCH).total_seconds() * 1000)
    if isinstance(value, uuid.UUID):
        return None if value == NO_ID else value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, part.name)) for part in dataclasses.fields(value)]
    return value


def in_order(message: Any, schema: Any, version: int) -> Any:
    """What a message of kafka-python, or the content it was made of, holds, in the order of the schema."""
    found = []
    for field in fields_of(schema, version):
        value = message[field.name] if isinstance(message, dict) else getattr(message, field.name)
        if value is not None and field.is_struct_array():
            value = [in_order(one, field, version) for one in value]
        elif value is not None and field.is_struct():
            value = in_order(value, field, version)
        found.append(plain(value))
    return found


def encoded_request(api_key: ApiKey, version: int, content: dict[str, Any], client_id: str | None) -> bytes:
    request = build(message_class(f"{kafka_name(api_key)}Request"), content, version)
    request.with_header(correlation_id=CORRELATION_ID, client_id=client_id)
    return bytes(request.encode(header=True))


def require_witness(api_key: ApiKey) -> None:
    if not has_witness(api_key):
        pytest.skip(f"kafka-python has no schema of {kafka_name(api_key)} to compare with")


def has_witness(api_key: ApiKey) -> bool:
    try:
        message_class(f"{kafka_name(api_key)}Request")
    except LookupError:
        return False
    return True


@cache
def responses(api_key: ApiKey, version: int) -> st.SearchStrategy[dict[str, Any]]:
    return structures(message_class(f"{kafka_name(api_key)}Response")._struct, version, only_positive=True)


@cache
def requests(api_key: ApiKey, version: int) -> st.SearchStrategy[dict[str, Any]]:
    return structures(message_class(f"{kafka_name(api_key)}Request")._struct, version, only_positive=False)


@pytest.mark.parametrize(("api_key", "version"), SERVED)
@settings(max_examples=4, deadline=None)
@given(data=st.data(), client_id=st.none() | st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_request_is_decoded_to_what_was_encoded(
    api_key: ApiKey, version: int, data: st.DataObject, client_id: str | None
) -> None:
    require_witness(api_key)
    content = data.draw(requests(api_key, version))
    frame = encoded_request(api_key, version, content, client_id)

    header = decode_header(frame)
    assert header == RequestHeader(api_key, version, CORRELATION_ID)
    found_client_id, request = decode_request(frame, header)

    assert found_client_id == client_id
    schema = message_class(f"{kafka_name(api_key)}Request")._struct
    assert plain(request) == in_order(content, schema, version)


@pytest.mark.parametrize(("api_key", "version"), SERVED)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_response_is_encoded_to_what_kafka_python_decodes(api_key: ApiKey, version: int, data: st.DataObject) -> None:
    require_witness(api_key)
    message = message_class(f"{kafka_name(api_key)}Response")
    content = data.draw(responses(api_key, version))
    if api_key == ApiKey.API_VERSIONS:  # with an error it has the form of v0, as the dispatcher answers it
        content["error_code"] = ErrorCode.none
    entity = _response_class(api_key, version)
    tree = as_kio(message._struct, content, entity, version)
    fill_bitfields(message._struct, content, tree, entity, version)

    encoded = encode_response(RequestHeader(api_key, version, CORRELATION_ID), tree)

    decoded = message.decode(encoded, version=version, header=True)
    assert decoded.header.correlation_id == CORRELATION_ID
    assert in_order(decoded, message._struct, version) == in_order(content, message._struct, version)
    assert bytes(decoded.encode(header=True)) == encoded


def _response_class(api_key: ApiKey, version: int) -> type:
    from kio.index import load_response_schema

    return load_response_schema(api_key, version)


def fill_bitfields(schema: Any, content: dict[str, Any], tree: Any, entity: type, version: int) -> None:
    """kafka-python reads "not asked for" as None, where the wire has the smallest integer."""
    for part, field in zip(dataclasses.fields(entity), fields_of(schema, version), strict=True):
        value = content[field.name]
        if field.is_struct_array() and value is not None:
            for one, ours in zip(value, tree[part.name], strict=True):
                fill_bitfields(field, one, ours, entity_of(part.type), version)  # type: ignore[arg-type]
        elif field.type_str == "bitfield":
            tree[part.name] = -(2**31)


@st.composite
def mutations(draw: st.DrawFn, frame: bytes) -> bytes:
    """A frame with a few bytes changed, cut out or put in; or with a number overwritten by an evil one."""
    data = bytearray(frame)
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(8, max(8, len(data))))
        match draw(st.sampled_from(["flip", "cut", "insert", "number", "varint"])):
            case "flip" if position < len(data):
                data[position] = draw(st.integers(0, 255))
            case "cut":
                del data[position : position + draw(st.integers(1, 8))]
            case "insert":
                data[position:position] = draw(st.binary(min_size=1, max_size=8))
            case "number":
                evil = draw(st.sampled_from([-(2**31), -2, -1, 0, 1, 2**16, 2**31 - 1]))
                data[position : position + 4] = struct.pack(">i", evil)
            case _:
                data[position : position + 1] = draw(
                    st.sampled_from([b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80" * 12, b"\x00"])
                )
    return bytes(data)


@pytest.mark.parametrize("api_key", sorted(HANDLERS), ids=lambda key: ApiKey(key).name.lower())
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_of_a_mutated_request_nothing_comes_but_a_request_or_a_refusal(api_key: int, data: st.DataObject) -> None:
    handler = HANDLERS[api_key]
    api_key, version = handler.api_key, data.draw(st.sampled_from(handler.versions))
    if has_witness(api_key):
        frame = encoded_request(api_key, version, data.draw(requests(api_key, version)), "client")
    else:  # nothing sound to begin with, so noise behind a sound header
        frame = struct.pack(">hhih", api_key, version, 1, -1) + b"\0" + data.draw(st.binary(max_size=100))
    mutated = data.draw(mutations(frame))
    header = decode_header(mutated)
    with contextlib.suppress(MalformedRequest):
        decode_request(mutated, header)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_of_random_bytes_nothing_comes_but_a_request_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        decode_request(data, decode_header(data))


def test_a_key_beyond_the_response_is_an_error_of_ours() -> None:
    header = RequestHeader(ApiKey.API_VERSIONS, 0, 1)
    with pytest.raises(KeyError, match="no version of ApiVersionsResponse has \\['typo'\\]"):
        encode_response(header, {"error_code": ErrorCode.none, "api_keys": [], "typo": 1})


def test_a_version_leaves_out_what_it_does_not_have() -> None:
    tree = {"error_code": ErrorCode.none, "api_keys": [], "finalized_features_epoch": 5}
    old = encode_response(RequestHeader(ApiKey.API_VERSIONS, 0, 9), tree)
    assert old == struct.pack(">ihi", 9, 0, 0)
