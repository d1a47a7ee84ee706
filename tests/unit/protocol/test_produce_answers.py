"""Answers to Produce are the bytes that kio writes, in every version."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ErrorCode
from gateway.protocol.messages import ApiKey, RequestHeader, encode_body, encode_response
from gateway.protocol.produce_answers import WrittenBatch, encode_written

offsets = st.integers(0, 2**63 - 1)
times = st.just(-1) | st.integers(0, 4_102_444_800_000)
batches = st.builds(WrittenBatch, st.integers(0, 2**31 - 1), offsets, times, offsets)
names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=249)


def topics(version: int) -> st.SearchStrategy[list[tuple[str | uuid.UUID, list[WrittenBatch]]]]:
    named: st.SearchStrategy[str | uuid.UUID] = st.uuids() if version >= 13 else names
    return st.lists(st.tuples(named, st.lists(batches, max_size=130)), max_size=3)


cases = st.integers(3, 13).flatmap(lambda version: st.tuples(st.just(version), topics(version)))


@given(cases, st.integers(0, 2**31 - 1))
def test_written_batches_are_told_as_kio_tells_them(
    case: tuple[int, list[tuple[str | uuid.UUID, list[WrittenBatch]]]], correlation_id: int
) -> None:
    version, written = case
    header = RequestHeader(ApiKey.PRODUCE, version, correlation_id)
    tree = {
        "responses": [
            {
                "topic_id" if version >= 13 else "name": name,
                "partition_responses": [
                    {
                        "index": batch.partition,
                        "error_code": ErrorCode.none,
                        "base_offset": batch.base_offset,
                        "log_append_time": batch.log_append_time_ms,
                        "log_start_offset": batch.log_start_offset,
                        "record_errors": [],
                    }
                    for batch in batches
                ],
            }
            for name, batches in written
        ]
    }
    assert encode_body(header, encode_written(written, version=version)) == encode_response(header, tree)
