"""Produce requests that compiled code begins are read and answered as the long way reads and answers them."""

from __future__ import annotations

import gc
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gateway.broker.append_queue import Append, Appended
from gateway.broker.catalog import UsualTopic
from gateway.errors import KafkaError, OutOfOrderSequence
from gateway.handlers.produce import encode_outcomes
from gateway.protocol.batches import BatchLimits, decode_produced
from gateway.protocol.framing import frame
from gateway.protocol.messages import MalformedRequest, decode_header, decode_request, encode_body
from gateway.protocol.produce_answers import WrittenBatch, encode_written
from gateway.protocol.produce_requests import FIRST_FLEXIBLE_VERSION, FIRST_VERSION_WITH_IDS
from gateway.storage.keys import PartitionKey
from tests.support.handmade import make_batch
from tests.unit.protocol.test_produce_requests import NEWEST_VERSION, encode

compiled = pytest.importorskip(
    "gateway.server._usual_requests", reason="nothing was compiled: a C compiler or Python's headers are missing"
)

NOW_MS = 1_700_000_000_000
FRESH = UsualTopic(10.0, 7, 6, 100_000, 100_000, 1_000, 1_000, needs_keys=False)
COMPACTED = FRESH._replace(topic_id=8, needs_keys=True)
STALE = FRESH._replace(topic_id=9, seen_at=1.0)
SMALL = FRESH._replace(topic_id=10, max_message_bytes=200)
TOPICS = {"fresh": FRESH, "compacted": COMPACTED, "stale": STALE, "small": SMALL}
IDS = {name: uuid.uuid5(uuid.NAMESPACE_URL, name) for name in (*TOPICS, "unknown")}
CATALOG = SimpleNamespace(
    usual_by_name={name.encode(): topic for name, topic in TOPICS.items()},
    usual_by_id={IDS[name].bytes: topic for name, topic in TOPICS.items()},
)
BATCH = make_batch([b"one", b"two"], timestamp_ms=NOW_MS)
NAME, PRODUCER_ID, EPOCH = "transactional", 5, 1
IN_TRANSACTION = make_batch(
    [b"three"], producer_id=PRODUCER_ID, epoch=EPOCH, sequence=0, timestamp_ms=NOW_MS, is_transactional=True
)
CONNECTION = 41
JOINED = {PartitionKey(FRESH.topic_id, 0), PartitionKey(FRESH.topic_id, 5)}


def find_joined(transactional_id: str, producer_id: int, epoch: int) -> set[PartitionKey]:
    return JOINED if (transactional_id, producer_id, epoch) == (NAME, PRODUCER_ID, EPOCH) else set()


class Begun:
    """What became of a request."""

    def __init__(self, content: bytes) -> None:
        self._version = decode_header(content).version if len(content) >= 8 else 0
        self.submitted: list[Append] = []
        self.was_settled = False
        self.pending = compiled.begin_usual(
            content,
            CATALOG,
            self.submitted.append,
            versions=range(3, NEWEST_VERSION + 1),
            fresh_since=5.0,
            now_ms=NOW_MS,
            max_plain_bytes=1 << 20,
            find_joined=self.find_joined,
            connection=CONNECTION,
            on_settled=self.settle,
        )

    def settle(self) -> None:
        self.was_settled = True

    def find_joined(self, *producer: Any, adds_by_producing: bool, connection: int) -> set[PartitionKey]:
        assert adds_by_producing == (self._version >= 12)
        assert connection == CONNECTION
        return find_joined(*producer)


def request(version: int, content: list[tuple[str, list[tuple[int, bytes | None]]]], **others: Any) -> bytes:
    by_id = version >= FIRST_VERSION_WITH_IDS
    return encode(version, [(IDS[name] if by_id else name, parts) for name, parts in content], **others)


def good_batches(content: bytes) -> list[tuple[PartitionKey, Any]] | None:
    """What the long way makes of a request all of whose batches it would queue; None for any other."""
    header = decode_header(content)
    try:
        _, body = decode_request(content, header)
    except MalformedRequest:
        return None
    if body.acks not in (-1, 1):
        return None
    found = []
    for each in body.topic_data:
        by_id = header.version >= FIRST_VERSION_WITH_IDS
        topic = CATALOG.usual_by_id.get(each.topic_id.bytes) if by_id else CATALOG.usual_by_name.get(each.name.encode())
        if topic is None or topic.seen_at < 5.0:
            return None
        limits = BatchLimits(topic.max_message_bytes, min(1 << 20, topic.max_decompressed_message_bytes))
        for partition in each.partition_data:
            if partition.records is None or not 0 <= partition.index < topic.partition_count:
                return None
            try:
                batch = decode_produced(partition.records, limits)
            except KafkaError:
                return None
            is_late = batch.max_timestamp - NOW_MS > topic.timestamp_after_max_ms
            is_early = 0 <= batch.min_timestamp < NOW_MS - topic.timestamp_before_max_ms
            if is_late or is_early or (topic.needs_keys and batch.lacks_key):
                return None
            key = PartitionKey(topic.topic_id, partition.index)
            if batch.is_transactional and (
                body.transactional_id is None
                or key not in find_joined(body.transactional_id, batch.producer_id, batch.producer_epoch)
            ):
                return None
            found.append((key, batch))
    return found


def require_alike(content: bytes) -> Begun:
    """Whatever is begun must be what the long way would have queued."""
    begun = Begun(content)
    if begun.pending is None:
        assert begun.submitted == []
        return begun
    expected = good_batches(content)
    assert expected is not None
    assert [append.key for append in begun.submitted] == [key for key, _ in expected]
    for append, (_, batch) in zip(begun.submitted, expected, strict=True):
        assert append.batch._replace(records=None) == batch._replace(records=None)
        assert append.batch.max_timestamp == batch.max_timestamp
        assert append.keys is None
        assert not append.uses_log_append_time
    assert begun.pending.held_bytes == sum(batch.payload_bytes for _, batch in expected)
    return begun


batches = st.sampled_from(
    [
        *[BATCH] * 30,
        *[IN_TRANSACTION] * 3,
        make_batch([b"x"], producer_id=6, epoch=1, sequence=0, timestamp_ms=NOW_MS, is_transactional=True),
        make_batch([b"x" * 50] * 3, producer_id=5, epoch=1, sequence=9, timestamp_ms=NOW_MS - 900),
        make_batch([b"late"], timestamp_ms=NOW_MS + 2_000),
        make_batch([b"early"], timestamp_ms=NOW_MS - 2_000),
        BATCH[:-1],
        BATCH + b"more",
        b"nothing like a batch",
        b"",
        None,
    ]
)
partitions = st.lists(st.tuples(st.sampled_from([*range(6)] * 5 + [-1, 6]), batches), min_size=1, max_size=4)
versions = st.sampled_from([*range(3, NEWEST_VERSION + 1), *range(FIRST_FLEXIBLE_VERSION, NEWEST_VERSION + 1)])


@given(
    versions,
    st.lists(st.tuples(st.sampled_from(["fresh"] * 20 + list(IDS)), partitions), max_size=3),
    st.none() | st.text("ab", max_size=5) | st.text(max_size=5),
    st.sampled_from([*[None] * 9, NAME, "another"]),
    st.sampled_from([-1, -1, -1, 1, 1, 1, 0, 2, -2]),
)
def test_what_is_begun_is_what_the_long_way_would_queue(
    version: int,
    content: list[tuple[str, list[tuple[int, bytes | None]]]],
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
) -> None:
    begun = require_alike(request(version, content, client_id=client_id, transactional_id=transactional_id, acks=acks))
    event("left to the long way" if begun.pending is None else "begun")


@given(
    st.integers(FIRST_FLEXIBLE_VERSION, NEWEST_VERSION),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2),
    st.integers(0, 3),
)
def test_a_mutated_request_is_begun_as_the_long_way_would_or_left_to_it(
    version: int, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(request(version, [("fresh", [(0, BATCH), (5, BATCH)])]))
    for position, byte in changes:
        data[4 + position % (len(data) - 4)] = byte
    begun = require_alike(bytes(data[: len(data) - cut]))
    event("left to the long way" if begun.pending is None else "begun")


@pytest.mark.parametrize("version", range(3, NEWEST_VERSION + 1))
def test_good_requests_of_flexible_versions_are_begun(version: int) -> None:
    begun = require_alike(request(version, [("fresh", [(0, BATCH)]), ("small", [(1, BATCH), (2, BATCH)])]))
    assert (begun.pending is not None) == (version >= FIRST_FLEXIBLE_VERSION)


@given(
    st.integers(FIRST_FLEXIBLE_VERSION, NEWEST_VERSION),
    st.lists(st.tuples(st.sampled_from([0, 0, 5, 5, 1]), st.sampled_from([*[IN_TRANSACTION] * 6, BATCH])), min_size=1),
    st.sampled_from([*[NAME] * 9, "another", "", "n\u00e4me", None]),
)
def test_a_transactional_request_is_begun_where_all_its_partitions_have_joined(
    version: int, content: list[tuple[int, bytes | None]], transactional_id: str | None
) -> None:
    begun = require_alike(request(version, [("fresh", content)], transactional_id=transactional_id))
    is_usual = transactional_id == NAME and all(index != 1 and batch is not BATCH for index, batch in content)
    is_plain = transactional_id is None and all(batch is BATCH for _, batch in content)
    assert (begun.pending is not None) == (is_usual or is_plain)


@pytest.mark.parametrize("version", range(FIRST_FLEXIBLE_VERSION, NEWEST_VERSION + 1))
def test_what_was_written_is_answered_as_the_long_way_answers_it(version: int) -> None:
    content = request(version, [("fresh", [(0, BATCH), (5, BATCH)]), ("small", [(3, BATCH)])])
    begun = require_alike(content)
    written: dict[Any, list[WrittenBatch]] = {}
    for number, (append, name) in enumerate(zip(begun.submitted, ("fresh", "fresh", "small"), strict=True)):
        assert begun.pending.response_now() is None
        assert not begun.was_settled
        outcome = Appended(2**40 + number, -1, 5)
        append.settle(outcome)
        label = IDS[name] if version >= FIRST_VERSION_WITH_IDS else name
        written.setdefault(label, []).append(WrittenBatch(append.key.partition, *outcome))
    assert begun.was_settled
    body = encode_written(written.items(), version=version)
    assert begun.pending.response_now() == frame(encode_body(decode_header(content), body))


@pytest.mark.parametrize("version", range(FIRST_FLEXIBLE_VERSION, NEWEST_VERSION + 1))
def test_a_refusal_is_answered_beside_what_was_written(version: int) -> None:
    content = request(version, [("fresh", [(0, BATCH), (5, BATCH)])])
    begun = require_alike(content)
    outcomes = [OutOfOrderSequence(expected=1, received=2), Appended(3, -1, 0)]
    for append, outcome in zip(begun.submitted, outcomes, strict=True):
        append.settle(outcome)
    label: Any = IDS["fresh"] if version >= FIRST_VERSION_WITH_IDS else "fresh"
    expected = encode_outcomes(decode_header(content), [(label, 0, outcomes[0]), (label, 5, outcomes[1])])
    assert begun.pending.response_now() == expected


def test_what_nobody_foresaw_is_raised() -> None:
    begun = require_alike(request(NEWEST_VERSION, [("fresh", [(0, BATCH)])]))
    begun.submitted[0].settle(RuntimeError("nobody foresaw this"))
    with pytest.raises(RuntimeError):
        begun.pending.response_now()


def test_a_settled_request_is_no_cycle_that_only_a_collection_ends() -> None:
    begun = require_alike(request(NEWEST_VERSION, [("fresh", [(0, BATCH)])]))
    assert begun.pending in gc.get_referents(begun.submitted[0])
    begun.submitted[0].settle(Appended(0, -1, 0))
    assert begun.pending not in gc.get_referents(begun.submitted[0])


def test_nobody_is_called_for_an_abandoned_request() -> None:
    begun = require_alike(request(NEWEST_VERSION, [("fresh", [(0, BATCH)])]))
    begun.pending.abandon()
    begun.submitted[0].settle(Appended(0, -1, 0))
    assert not begun.was_settled
