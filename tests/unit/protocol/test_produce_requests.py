"""Produce requests of the usual kind are read as kio reads them; all others are left to it."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema

from gateway.protocol.messages import ApiKey, MalformedRequest
from gateway.protocol.produce_requests import FIRST_FLEXIBLE_VERSION, FIRST_VERSION_WITH_IDS, read_usual
from tests.support.fuzz import decode_either_way
from tests.support.random_messages import encoded

NEWEST_VERSION = 13
names = st.text(min_size=1, max_size=249)
records = st.binary(max_size=300) | st.just(b"r" * 20_000)
partitions = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | records), max_size=130)
ids = st.uuids().filter(lambda each: each.int != 0)


def topics(version: int) -> st.SearchStrategy[list[tuple[str | uuid.UUID, list[tuple[int, bytes | None]]]]]:
    named: st.SearchStrategy[str | uuid.UUID] = ids if version >= FIRST_VERSION_WITH_IDS else names
    return st.lists(st.tuples(named, partitions), max_size=3)


versions = st.integers(3, NEWEST_VERSION)
cases = versions.flatmap(lambda version: st.tuples(st.just(version), topics(version)))


def encode(
    version: int,
    content: list[tuple[Any, list[tuple[int, bytes | None]]]],
    *,
    client_id: str | None = "a client",
    transactional_id: str | None = None,
    acks: int = -1,
) -> bytes:
    request_class = load_request_schema(ApiKey.PRODUCE, version)
    module = __import__(request_class.__module__, fromlist=["TopicProduceData"])
    label = "topic_id" if version >= FIRST_VERSION_WITH_IDS else "name"
    body = request_class(
        transactional_id=transactional_id,
        acks=acks,
        timeout=dt.timedelta(seconds=30),
        topic_data=tuple(
            module.TopicProduceData(
                **{label: name},
                partition_data=tuple(module.PartitionProduceData(index=index, records=data) for index, data in parts),
            )
            for name, parts in content
        ),
    )
    header = request_class.__header_schema__(
        request_api_key=ApiKey.PRODUCE, request_api_version=version, correlation_id=7, client_id=client_id
    )
    return encoded(header) + encoded(body)


@given(cases, st.none() | names, st.none() | names, st.integers(-1, 1))
def test_what_is_read_is_what_kio_reads(
    case: tuple[int, list[tuple[Any, list[tuple[int, bytes | None]]]]],
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
) -> None:
    version, content = case
    frame = encode(version, content, client_id=client_id, transactional_id=transactional_id, acks=acks)
    usual = read_usual(frame, version=version)
    has_null = any(data is None for _, parts in content for _, data in parts)
    assert (usual is not None) == (version >= FIRST_FLEXIBLE_VERSION and not has_null)
    decode_either_way(frame)


@given(
    st.integers(FIRST_FLEXIBLE_VERSION, NEWEST_VERSION),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    st.integers(0, 60),
)
def test_a_mutated_request_is_read_as_kio_reads_it_or_left_to_it(
    version: int, changes: list[tuple[int, int]], cut: int
) -> None:
    name: Any = uuid.UUID(int=5) if version >= FIRST_VERSION_WITH_IDS else "topic"
    data = bytearray(encode(version, [(name, [(0, b"some records"), (1, b"others")])], transactional_id="tx"))
    for position, byte in changes:
        data[8 + position % (len(data) - 8)] = byte
    frame = bytes(data[: len(data) - cut])
    with contextlib.suppress(MalformedRequest):
        decode_either_way(frame)


@pytest.mark.parametrize("count", [10_001, 2**28, 2**31 - 1])
def test_a_count_is_not_believed(count: int) -> None:
    frame = encode(12, [("topic", [])])
    varint = bytearray()
    number = count + 1
    while number >= 0x80:
        varint.append(number & 0x7F | 0x80)
        number >>= 7
    varint.append(number)
    assert frame.endswith(b"topic\x01\x00\x00")
    assert read_usual(frame[:-3] + bytes(varint) + bytes(100_000), version=12) is None
