"""Groups that compiled code plans are planned by Python alike, to the last byte of their commit."""

from __future__ import annotations

import gc
import struct
from itertools import islice
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from psycopg.postgres import types as postgres_types

from gateway.broker.append_queue import Append, Appended
from gateway.broker.plans import Plan, Written
from gateway.domain.sequences import SEQUENCES, ProducerState
from gateway.domain.sequences import Written as WrittenBatch
from gateway.errors import InvalidTxnState, OutOfOrderSequence
from gateway.protocol import plain_transcoder, transcoder
from gateway.protocol.batches import BatchLimits, decode_produced
from gateway.protocol.copy_rows import COPY_HEADER, COPY_TRAILER
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import Advance, PartitionState, advance_values, usual_commit
from gateway.storage.producers import KnownProducer, format_batches
from tests.support.handmade import make_batch

compiled = pytest.importorskip(
    "gateway.broker._usual_appends", reason="nothing was compiled: a C compiler or Python's headers are missing"
)

LIMITS = BatchLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
KEYS = [*(PartitionKey(7, partition) for partition in (0, 3, 4, 200)), PartitionKey(2**31 - 1, 2**31 - 2)]
"""PostgreSQL has no array that reaches to 2**31 - 1."""
PRODUCERS = [1000, 2**62, 2**62 + 1]
TRANSACTIONAL = {2**62, 2**62 + 1}
UNKNOWN = PartitionKey(9, 9)
GZIP = 1
NEWEST = 180_000
SERVER_VERSIONS = (150_018, 169_999, 170_000, NEWEST)
SIZES = {"integer": "!i", "bigint": "!q", "timestamptz": "!q"}

States = dict[PartitionKey, PartitionState]
Producers = dict[PartitionKey, dict[ProducerKey, KnownProducer]]

offsets = st.integers(0, 2**50)
mostly = st.integers(0, 30).map(bool)
recents = st.lists(st.tuples(*[st.integers(0, 2**31 - 1)] * 4), max_size=5)


@st.composite
def known(draw: st.DrawFn) -> tuple[States, Producers]:
    states, producers = {}, {}
    for key in KEYS:
        start, more, open_since = draw(offsets), draw(offsets), draw(st.none() | st.integers(0, 5))
        next_offset = start + more
        stable = next_offset if open_since is None else max(start, next_offset - open_since)
        states[key] = PartitionState(start, stable, next_offset, draw(st.integers(0, 5)))
        producers[key] = {}
        for producer_id in PRODUCERS:
            last = draw(st.sampled_from([0, 4, 2**31 - 2, 2**31 - 1]))
            run_length = draw(st.sampled_from([*[1, 5] * 8, SEQUENCES - 1, SEQUENCES]))
            recent = tuple(WrittenBatch(*numbers) for numbers in draw(recents))
            state = ProducerState(draw(st.integers(0, 1)), last, run_length, recent) if draw(mostly) else None
            is_transactional = (producer_id in TRANSACTIONAL) == draw(mostly)
            entry = KnownProducer(state, may_be_forgotten=False, is_transactional=is_transactional)
            producers[key][ProducerKey(*key, producer_id)] = entry
    return states, producers


@st.composite
def groups(draw: st.DrawFn, states: States, producers: Producers) -> list[Append]:
    """Mostly what producers send next; sometimes anything else."""
    following = {key: entry.state for of_partition in producers.values() for key, entry in of_partition.items()}
    group = []
    for _ in range(draw(st.integers(1, 8))):
        key = draw(st.sampled_from(KEYS)) if draw(mostly) else UNKNOWN
        values = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
        identity: dict[str, Any] = {}
        if producer_id := draw(st.sampled_from([None, *PRODUCERS])):
            state = following.get(ProducerKey(*key, producer_id))
            epoch, sequence = (state.epoch, (state.last_sequence + 1) % SEQUENCES) if state is not None else (0, 0)
            if not draw(mostly):
                epoch, sequence = epoch + draw(st.integers(0, 1)), draw(st.sampled_from([0, 3, 2**31 - 1]))
            elif not draw(mostly):
                epoch, sequence = epoch + 1, 0
            identity = {"producer_id": producer_id, "epoch": epoch, "sequence": sequence}
            identity["is_transactional"] = (producer_id in TRANSACTIONAL) == draw(mostly)
            if state is not None:
                last = (sequence + len(values) - 1) % SEQUENCES
                following[ProducerKey(*key, producer_id)] = state._replace(epoch=epoch, last_sequence=last)
        batch = decode_produced(make_batch(values, **identity), LIMITS)
        group.append(Append(key, batch, on_done=lambda: None, uses_log_append_time=not draw(mostly)))
    return group


def plan_by_python(group: list[Append], states: States, producers: Producers) -> Plan:
    keys = dict.fromkeys(append.key for append in group)
    plan = Plan({key: states[key] for key in keys if key in states}, producers, None, None)
    for append in group:
        plan.add(append, now_ms=0)
    return plan


def plan_compiled(
    group: list[Append], states: States, producers: Producers, *, most: int = 10, server_version: int = NEWEST
) -> Any:
    commit = usual_commit(server_version)
    return compiled.plan_usual(group, states, producers, commit=commit, max_producers=most, follows=0, number=0)


def message_of(plan: Plan, *copies: int, server_version: int = NEWEST) -> bytes:
    """What `script_socket` sends for it; its batches in one COPY, or so many in each."""
    is_by_topic = server_version >= 170_000 and is_of_one_topic(plan)
    rows = iter(plan.rows)
    pieces = [[*islice(rows, count)] for count in copies or (len(plan.rows),)]
    message = run(b"begin") + (advance_topic(plan) if is_by_topic else advance_partitions(plan))
    for piece in pieces:
        message += run(b"log/copy_messages")
        message += b"".join(message_with(b"d", chunk) for chunk in (COPY_HEADER, *piece, COPY_TRAILER))
        message += message_with(b"c", b"")
    return message + run(b"commit") + message_with(b"S", b"")


def is_of_one_topic(plan: Plan) -> bool:
    partitions = [advance.key.partition for advance in plan.advances()]
    writers = {(key.producer_id, state.epoch) for key, state in plan.producers_after.items()}
    return (
        not plan.extents
        and len({advance.key.topic_id for advance in plan.advances()}) == 1
        and max(partitions) - min(partitions) < 4 * len(partitions)
        and (not writers or (len(writers) == 1 and len(plan.producers_after) == len(partitions)))
    )


def advance_partitions(plan: Plan) -> bytes:
    extents = list(plan.extents.values())
    values = advance_values(plan.advances(), extents, list(plan.producers_after.items()), locked=False)
    return run(b"log/advance_partitions", *(value.encode() for value in values.values()))


def advance_topic(plan: Plan) -> bytes:
    advances = {advance.key.partition: advance for advance in plan.advances()}
    states = {key.partition: state for key, state in plan.producers_after.items()}
    reach = range(min(advances), max(advances) + 1)

    def by_partition(kind: str, values: dict[int, int]) -> bytes:
        return array(kind, [struct.pack(SIZES[kind], values.get(partition, 0)) for partition in reach], reach.start)

    parameters = [
        struct.pack("!q", 0),
        struct.pack("!q", 0),
        struct.pack("!i", plan.advances()[0].key.topic_id),
        array("integer", [struct.pack("!i", partition) for partition in sorted(advances)], 1),
        by_partition("bigint", {partition: at.expected_offset for partition, at in advances.items()}),
        by_partition("bigint", {partition: at.next_offset for partition, at in advances.items()}),
        by_partition("timestamptz", {partition: microseconds(at) for partition, at in advances.items()}),
    ]
    if not states:
        return run(b"log/advance_topic", *parameters, *[None] * 5, is_binary=True)
    ((producer_id, epoch),) = {(key.producer_id, state.epoch) for key, state in plan.producers_after.items()}
    windows = {partition: format_batches(state.recent) for partition, state in states.items()}
    parameters += [
        struct.pack("!q", producer_id),
        struct.pack("!h", epoch),
        by_partition("integer", {partition: state.last_sequence for partition, state in states.items()}),
        by_partition("bigint", {partition: state.run_length for partition, state in states.items()}),
        array("text", [windows.get(partition, "").encode() for partition in reach], reach.start),
    ]
    return run(b"log/advance_topic", *parameters, is_binary=True)


def microseconds(advance: Advance) -> int:
    """As PostgreSQL counts them: from the year 2000 on."""
    return (advance.max_timestamp_ms - 946_684_800_000) * 1000


def array(kind: str, elements: list[bytes], first: int) -> bytes:
    """In binary form, the first element in this place."""
    header = struct.pack("!iiiii", 1, 0, postgres_types[kind].oid, len(elements), first)
    return header + b"".join(struct.pack("!i", len(element)) + element for element in elements)


def run(name: bytes, *parameters: bytes | None, is_binary: bool = False) -> bytes:
    """Bind and Execute of a prepared statement."""
    bound = b"\0" + name + b"\0" + struct.pack("!hhh", 1, is_binary, len(parameters))
    for parameter in parameters:
        bound += struct.pack("!i", -1) if parameter is None else struct.pack("!i", len(parameter)) + parameter
    return message_with(b"B", bound + struct.pack("!h", 0)) + message_with(b"E", b"\0" + struct.pack("!i", 0))


def message_with(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!I", 4 + len(content)) + content


@given(st.data())
def test_what_is_usual_is_planned_alike(data: st.DataObject) -> None:
    states, producers = data.draw(known())
    group = data.draw(groups(states, producers))
    expected = plan_by_python(group, states, producers)
    server_version = data.draw(st.sampled_from(SERVER_VERSIONS))
    plan = plan_compiled(group, states, producers, server_version=server_version)
    event("planned" if plan is not None else "left to Python")
    if plan is None:
        return
    assert not expected.refused
    assert not expected.duplicates
    assert [each.append for each in expected.accepted] == group
    assert plan.message == message_of(expected, server_version=server_version)
    assert plan.record_count == sum(append.batch.record_count for append in group)
    assert plan.size_bytes == sum(len(append.batch.data) for append in group)

    told: list[Written] = []
    plan.tell(told.append, Written)
    assert [(each.key, each.state) for each in told] == [(each.key, each.state) for each in expected.written()]
    for ours, theirs in zip(told, expected.written(), strict=True):
        assert [(*each[:2], len(each[2]), bytes(each[2])) for each in ours.batches] == [
            (*each[:2], len(each[2]), bytes(each[2])) for each in theirs.batches
        ]
    plan.settle()
    assert [append.outcome for append in group] == [each.appended for each in expected.accepted]
    plan.conclude(states)
    assert {key: states[key] for key in expected.after} == expected.after
    for producer_key, state in expected.producers_after.items():
        entry = producers[producer_key.partition_key][producer_key]
        assert entry.state == state
        assert entry.is_transactional == (producer_key in {key for key, _ in expected.extents})


def usual_case(*, is_transactional: bool = False) -> tuple[list[Append], States, Producers]:
    key, producer = KEYS[0], PRODUCERS[0]
    states = {key: PartitionState(0, 10, 10, 0)}
    state = ProducerState(0, 4, 5, (WrittenBatch(0, 4, 5, 1),))
    entry = KnownProducer(state, may_be_forgotten=False, is_transactional=is_transactional)
    producers = {key: {ProducerKey(*key, producer): entry}}
    identity = {"producer_id": producer, "epoch": 0, "sequence": 5}
    batch = decode_produced(make_batch([b"v"], **identity, is_transactional=is_transactional), LIMITS)
    return [Append(key, batch, on_done=lambda: None, uses_log_append_time=False)], states, producers


@pytest.mark.parametrize("is_transactional", [False, True])
def test_the_next_batch_of_a_known_producer_is_usual(is_transactional: bool) -> None:
    assert plan_compiled(*usual_case(is_transactional=is_transactional)) is not None


def test_each_transaction_that_a_batch_says_it_is_part_of_is_proven() -> None:
    group, states, producers = usual_case(is_transactional=True)
    (append,) = group
    later = append.batch._replace(producer_epoch=1, base_sequence=0)
    group.append(Append(append.key, later, on_done=lambda: None, uses_log_append_time=False))
    plan = plan_compiled(group, states, producers)
    assert b"{1000,0,1000,1}" in plan.message
    assert plan.message == message_of(plan_by_python(group, states, producers))


@pytest.mark.parametrize(
    ("records", "copies"),
    [
        pytest.param([499], [1], id="few"),
        pytest.param([100] * 5, [3, 2], id="in two"),
        pytest.param([100] * 6, [3, 3], id="in two that are full"),
        pytest.param([600], [1], id="one batch"),
        pytest.param([10, 1500, 10, 90], [2, 2], id="a large batch among small ones"),
        pytest.param([480, 20], [2], id="little is left"),
        pytest.param([257] * 7, [1] * 7, id="in seven"),
        pytest.param([300] * 6, [6], id="many"),
    ],
)
def test_rows_are_divided_among_statements_unless_they_are_few_or_many(records: list[int], copies: list[int]) -> None:
    _, states, producers = usual_case()
    batches = [decode_produced(make_batch([b"v"] * count), LIMITS) for count in records]
    group = [Append(KEYS[0], batch, on_done=lambda: None, uses_log_append_time=False) for batch in batches]
    plan = plan_compiled(group, states, producers)
    assert plan.message == message_of(plan_by_python(group, states, producers), *copies)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "has_producer": False}, id="none"),
        pytest.param({"base_sequence": 6, "is_transactional": True}, id="in a transaction"),
        pytest.param({"producer_epoch": 1}, id="a new epoch that does not begin at 0"),
        pytest.param({"base_sequence": 0}, id="a duplicate"),
        pytest.param({"base_sequence": 7}, id="a gap"),
        pytest.param({"producer_id": 77}, id="an unknown producer"),
    ],
)
def test_a_batch_is_left_to_python_unless_it_is_the_next_one(change: dict[str, Any]) -> None:
    (append,), states, producers = usual_case()
    other = Append(append.key, append.batch._replace(**change), on_done=lambda: None, uses_log_append_time=False)
    is_usual = plan_compiled([append, other], states, producers) is not None
    assert is_usual == (change.get("producer_id") == -1)


def test_a_plain_batch_of_a_transactional_producer_is_left_to_python_behind_one_in_its_transaction() -> None:
    group, states, producers = usual_case(is_transactional=True)
    (append,) = group
    plain = append.batch._replace(base_sequence=6, is_transactional=False)
    group.append(Append(append.key, plain, on_done=lambda: None, uses_log_append_time=False))
    assert [type(error) for _, error in plan_by_python(group, states, producers).refused] == [InvalidTxnState]
    assert plan_compiled(group, states, producers) is None


def test_a_group_is_left_to_python_where_too_many_producers_are_known() -> None:
    assert plan_compiled(*usual_case(), most=0) is None


def test_the_tail_does_not_get_what_was_compressed_in_full() -> None:
    (append,), states, producers = usual_case()
    batch = decode_produced(make_batch([b"v" * 1000], compression=GZIP), LIMITS)
    plan = plan_compiled(
        [Append(append.key, batch, on_done=lambda: None, uses_log_append_time=False)], states, producers
    )
    told: list[Written] = []
    plan.tell(told.append, Written)
    ((_, _, stored),) = told[0].batches
    assert len(stored) == len(batch.data) < 1000
    assert not any(each is batch or each is batch.records for each in gc.get_referents(stored))


def test_batches_that_python_read_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcoder, "implementation", plain_transcoder)
    assert plan_compiled(*usual_case()) is None


def test_an_append_is_settled_once() -> None:
    (append,), _, _ = usual_case()
    calls: list[None] = []
    again = Append(append.key, append.batch, on_done=lambda: calls.append(None), uses_log_append_time=False)
    refusal = OutOfOrderSequence(expected=1, received=2)
    again.settle(refusal)
    again.settle(Appended(0, -1, 0))
    assert again.outcome is refusal
    assert len(calls) == 1
