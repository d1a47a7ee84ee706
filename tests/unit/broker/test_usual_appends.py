"""Groups that compiled code plans are planned by Python alike, to the last byte of their commit."""

from __future__ import annotations

import gc
import struct
from itertools import islice
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gateway.broker.append_queue import Append, Appended
from gateway.broker.plans import Plan, Written
from gateway.domain.sequences import SEQUENCES, ProducerState
from gateway.domain.sequences import Written as WrittenBatch
from gateway.errors import InvalidTxnState, OutOfOrderSequence
from gateway.protocol import plain_transcoder, transcoder
from gateway.protocol.batches import BatchLimits, decode_produced
from gateway.protocol.copy_rows import COPY_HEADER, COPY_TRAILER
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import BEGIN, PartitionState, advance_script, usual_script
from gateway.storage.producers import KnownProducer
from gateway.storage.statements import statement
from tests.support.handmade import make_batch

compiled = pytest.importorskip(
    "gateway.broker._usual_appends", reason="nothing was compiled: a C compiler or Python's headers are missing"
)

LIMITS = BatchLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
KEYS = [PartitionKey(7, 0), PartitionKey(7, 3), PartitionKey(2**31 - 1, 2**31 - 1)]
PRODUCERS = [1000, 2**62, 2**62 + 1]
TRANSACTIONAL = {2**62, 2**62 + 1}
UNKNOWN = PartitionKey(9, 9)
GZIP = 1

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


def plan_compiled(group: list[Append], states: States, producers: Producers, *, most: int = 10) -> Any:
    return compiled.plan_usual(group, states, producers, script=usual_script(), max_producers=most, follows=0, number=0)


def message_of(plan: Plan, *copies: int) -> bytes:
    """What `script_socket` sends for it; its batches in one COPY, or so many in each."""
    extents = list(plan.extents.values())
    script = advance_script(plan.advances(), extents, list(plan.producers_after.items()), locked=False)
    rows = iter(plan.rows)
    pieces = [[*islice(rows, count)] for count in copies or (len(plan.rows),)]
    text = "; ".join((BEGIN, script, *[statement("log/copy_messages")] * len(pieces), "COMMIT")).encode() + b"\0"
    message = b"Q" + struct.pack("!I", 4 + len(text)) + text
    for piece in pieces:
        for chunk in (COPY_HEADER, *piece, COPY_TRAILER):
            message += b"d" + struct.pack("!I", 4 + len(chunk)) + chunk
        message += b"c" + struct.pack("!I", 4)
    return message


@given(st.data())
def test_what_is_usual_is_planned_alike(data: st.DataObject) -> None:
    states, producers = data.draw(known())
    group = data.draw(groups(states, producers))
    expected = plan_by_python(group, states, producers)
    plan = plan_compiled(group, states, producers)
    event("planned" if plan is not None else "left to Python")
    if plan is None:
        return
    assert not expected.refused
    assert not expected.duplicates
    assert [each.append for each in expected.accepted] == group
    assert plan.message == message_of(expected)
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
    assert b"CALL kafka.advance_partitions(0, 0, '{1000,0,1000,1}'" in plan.message
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
