"""Subscriptions and assignments of classic consumers, against kio's writer and reader."""

from __future__ import annotations

import importlib
import io
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from gateway.protocol.consumer_protocol import (
    MalformedSubscription,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscribed_topics,
)

NAMES = st.text(min_size=1, max_size=20)
BY_TOPIC = st.dictionaries(NAMES, st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=4).map(sorted), max_size=3)


def kio_bytes(kind: str, version: int, **fields: Any) -> bytes:
    module: Any = importlib.import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
    partitions = {
        "owned_partitions": lambda one: module.TopicPartition(topic=one[0], partitions=tuple(one[1])),
        "assigned_partitions": lambda one: module.TopicPartition(topic=one[0], partitions=tuple(one[1])),
    }
    values = {
        name: tuple(map(partitions[name], value)) if name in partitions else value for name, value in fields.items()
    }
    entity: Any = getattr(module, f"ConsumerProtocol{kind.title()}")
    out = io.BytesIO()
    entity_writer(entity)(out, entity(**values))
    return version.to_bytes(2, "big") + out.getvalue()


@given(
    version=st.integers(0, 3),
    topics=st.lists(NAMES, max_size=3),
    user_data=st.none() | st.binary(max_size=8),
    owned=BY_TOPIC,
    rack=st.none() | NAMES,
)
def test_every_version_of_a_subscription_is_read(
    version: int, topics: list[str], user_data: bytes | None, owned: dict[str, list[int]], rack: str | None
) -> None:
    fields: dict[str, Any] = {"topics": tuple(topics), "user_data": user_data}
    if version >= 1:
        fields["owned_partitions"] = owned.items()
    if version >= 2:
        fields["generation_id"] = 7
    if version >= 3:
        fields["rack_id"] = rack
    data = kio_bytes("subscription", version, **fields)
    expected = Subscription(version, tuple(topics), owned if version >= 1 else {}, rack if version >= 3 else None)
    assert decode_subscription(data) == expected
    assert subscribed_topics(data) == topics


@given(version=st.integers(0, 3), assigned=BY_TOPIC)
def test_assignments_are_written_as_others_read_them(version: int, assigned: dict[str, list[int]]) -> None:
    data = encode_assignment(assigned, version=version)
    module: Any = importlib.import_module(f"kio.schema.consumer_protocol_assignment.v{version}.data")
    read, size = entity_reader(module.ConsumerProtocolAssignment)(data[2:], 0)
    assert size == len(data) - 2
    assert {one.topic: list(one.partitions) for one in read.assigned_partitions} == assigned
    assert decode_assignment(data) == (assigned, b"")


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == ({}, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\x01\0\x05abc",
        b"\0\0\0\0\0\x01\0\x01\xff\0\0\0\0",
        b"\0\0\0\0\0\x01\xff\xff\0\0\0\0",
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedSubscription):
        decode_subscription(data)
    assert subscribed_topics(data) is None


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_worse_than_be_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with suppress(MalformedSubscription):
            decode(data)
