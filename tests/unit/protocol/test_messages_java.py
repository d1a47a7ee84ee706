"""Requests and responses of every API and version that is served, against the bytes of Kafka's Java client.

The message classes that Kafka generates from its schemas decode what we encode, encode it again to the same bytes,
and show the values that we meant; the requests they encoded, we decode to the same message. Headers included.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema

from gateway.errors import ErrorCode
from gateway.handlers import HANDLERS
from gateway.protocol.messages import (
    ApiKey,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
    milliseconds,
)
from tests.support import java
from tests.support.random_messages import EPOCH, encoded, random_entity

SERVED = [
    pytest.param(handler.api_key, version, id=f"{handler.api_key.name.lower()}-v{version}")
    for handler in sorted(HANDLERS.values(), key=lambda handler: handler.api_key)
    for version in handler.versions
]
NOT_SERVED = {
    ApiKey.INIT_PRODUCER_ID: [6],  # KIP-939's two-phase commit, which Kafka itself does not offer yet
}
"""Versions of served APIs that the Java client has and the gateway has not: a newer client adds to them."""

randoms = st.randoms(use_true_random=False)


@pytest.fixture(scope="module")
def codec() -> Iterator[java.JavaClient]:
    try:
        process = java.JavaClient(Path(java.__file__).with_name("MessageCodec.java"))
    except java.JavaMissing as missing:
        pytest.skip(str(missing))
    yield process
    process.close()


def test_java_knows_every_version_that_is_served(codec: java.JavaClient) -> None:
    known = {int(api_key): range(low, high + 1) for api_key, (low, high) in codec.call("versions").items()}
    served = {key: set(handler.versions) for key, handler in HANDLERS.items()}
    assert not {key: unknown for key in served if (unknown := served[key].difference(known[key]))}
    assert {key: missing for key in served if (missing := sorted(set(known[key]) - served[key]))} == NOT_SERVED


@pytest.mark.parametrize(("api_key", "version"), SERVED)
@settings(max_examples=10)
@given(random=randoms)
def test_a_request_has_javas_bytes(codec: java.JavaClient, api_key: ApiKey, version: int, random: Random) -> None:
    request_class: Any = load_request_schema(api_key, version)
    header = random_entity(request_class.__header_schema__, random)
    header = dataclasses.replace(header, request_api_key=api_key, request_api_version=version)
    request = random_entity(request_class, random)
    frame = encoded(header) + encoded(request)

    answer = codec.call("request", api_key=api_key, version=version, bytes=java.encode(frame))

    assert java.decode(answer["bytes"]) == frame
    assert_shown(answer["header"], header)
    assert_shown(answer["body"], request)
    assert decode_header(frame) == RequestHeader(api_key, version, header.correlation_id)
    assert decode_request(frame, decode_header(frame)) == (header.client_id, request)


@pytest.mark.parametrize(("api_key", "version"), SERVED)
@settings(max_examples=10)
@given(random=randoms, correlation_id=st.integers(-(2**31), 2**31 - 1))
def test_a_response_has_javas_bytes(
    codec: java.JavaClient, api_key: ApiKey, version: int, random: Random, correlation_id: int
) -> None:
    response_class: Any = load_response_schema(api_key, version)
    response = random_entity(response_class, random)
    frame = encode_response(RequestHeader(api_key, version, correlation_id), tree_of(response))

    answer = codec.call("response", api_key=api_key, version=version, bytes=java.encode(frame))

    assert java.decode(answer["bytes"]) == frame
    assert answer["header"] == {"correlationId": correlation_id}
    assert_shown(answer["body"], response)


def tree_of(value: Any) -> Any:
    """A response as a handler gives it."""
    if dataclasses.is_dataclass(value):
        return {part.name: tree_of(getattr(value, part.name)) for part in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [tree_of(one) for one in value]
    if isinstance(value, dt.timedelta):
        return milliseconds(value)
    if isinstance(value, dt.datetime):
        return milliseconds(value - EPOCH)
    return value


def assert_shown(shown: dict[str, Any], entity: Any) -> None:
    """Kafka's own view of a message has our values under our names; tagged fields at their default are left out."""
    theirs = {comparable(name): value for name, value in shown.items()}
    for part in dataclasses.fields(entity):
        name, value = comparable(part.name), getattr(entity, part.name)
        if name not in theirs and "tag" in part.metadata:
            assert value == part.default
            continue
        if part.metadata.get("kafka_type") == "records":
            theirs.pop(name)  # their content is not shown; that it is the same the bytes say
            continue
        assert_value_shown(theirs.pop(name), value, part)
    assert not theirs


def comparable(name: str) -> str:
    """throttleTimeMs and throttle_time are the same: kio leaves the unit to its classes."""
    return name.replace("_", "").lower().removesuffix("ms")


def assert_value_shown(shown: Any, value: Any, part: dataclasses.Field[Any]) -> None:
    if isinstance(value, tuple):
        assert len(shown) == len(value)
        for one, ours in zip(shown, value, strict=True):
            assert_value_shown(one, ours, part)
    elif dataclasses.is_dataclass(value):
        assert_shown(shown, value)
    else:
        assert shown == expected(value, part.metadata.get("kafka_type"))


def expected(value: Any, kind: str | None) -> Any:
    if kind == "uuid":
        number = uuid.UUID(int=0) if value is None else value
        return base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")
    if kind == "datetime_i64":
        return -1 if value is None else milliseconds(value - EPOCH)
    if isinstance(value, dt.timedelta):
        return milliseconds(value)
    if isinstance(value, ErrorCode):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
