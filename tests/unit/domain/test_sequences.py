"""The rule of idempotence, as a table of cases and against a naive model."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.domain.sequences import (
    MAX_SEQUENCE,
    SEQUENCES,
    Append,
    BatchIdentity,
    Duplicate,
    ProducerState,
    Written,
    decide_append,
    next_sequence,
    state_after,
)
from gateway.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    KafkaError,
    OutOfOrderSequence,
)


def state_of(*batches: tuple[int, int], epoch: int = 0) -> ProducerState:
    """The state after batches of (first sequence, count), ten offsets apart, from offset 100 on."""
    state: ProducerState | None = None
    for index, (first, count) in enumerate(batches):
        identity = BatchIdentity(epoch, first, count)
        state = state_after(state, identity, base_offset=100 + 10 * index, timestamp_ms=1000 + index)
    assert state is not None
    return state


def batch(first: int, count: int = 5, epoch: int = 0) -> BatchIdentity:
    return BatchIdentity(epoch, first, count)


SIX = state_of((0, 5), (5, 5), (10, 5), (15, 5), (20, 5), (25, 5))
"""Six batches were written; the window holds the last five."""

ACCEPTED = {
    "first batch of a producer": (None, batch(0)),
    "next batch": (state_of((0, 5)), batch(5)),
    "next batch of another size": (state_of((0, 5)), batch(5, 1)),
    "a new epoch that starts at 0": (state_of((0, 5)), batch(0, epoch=1)),
    "an epoch raised by more than one": (state_of((0, 5)), batch(0, epoch=7)),
    "wrap: the sequence after the last one is 0": (state_of((MAX_SEQUENCE, 1)), batch(0)),
    "wrap inside a batch": (state_of((MAX_SEQUENCE - 6, 5)), batch(MAX_SEQUENCE - 1, 4)),
}

REFUSED = {
    "a gap": (state_of((0, 5)), batch(6), OutOfOrderSequence),
    "a first batch whose predecessor is still on its way": (None, batch(5), OutOfOrderSequence),
    "an old epoch": (state_of((0, 5), epoch=3), batch(5, epoch=2), InvalidProducerEpoch),
    "an old epoch, even for what would be a duplicate": (
        state_of((0, 5), epoch=3),
        batch(0, epoch=2),
        InvalidProducerEpoch,
    ),
    "a new epoch that does not start at 0": (state_of((0, 5)), batch(5, epoch=1), OutOfOrderSequence),
    "a duplicate older than the window": (SIX, batch(0), DuplicateSequence),
    "part of a batch that was written": (SIX, batch(26, 2), DuplicateSequence),
    "half written, half new": (SIX, batch(28, 4), OutOfOrderSequence),
    "older than the run that is known": (state_of((50, 5), (55, 5)), batch(45), OutOfOrderSequence),
    "half older than the run that is known": (state_of((50, 5), (55, 5)), batch(48), OutOfOrderSequence),
    "a negative sequence": (None, batch(-1), InvalidRecord),
    "a negative epoch": (None, batch(0, epoch=-1), InvalidRecord),
    "no records": (None, batch(0, 0), InvalidRecord),
    "more records than there are sequences": (None, batch(0, SEQUENCES + 1), InvalidRecord),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_this_is_appended(name: str) -> None:
    state, identity = ACCEPTED[name]
    assert decide_append(state, identity) == Append()


@pytest.mark.parametrize("name", REFUSED)
def test_this_is_refused(name: str) -> None:
    state, identity, error = REFUSED[name]
    with pytest.raises(error):
        decide_append(state, identity)


def test_retry_of_a_written_batch_gets_its_first_offset() -> None:
    state = ProducerState(epoch=0, last_sequence=9, run_length=5, recent=(Written(5, 9, 100, 7),))
    assert decide_append(state, BatchIdentity(0, 5, 5)) == Duplicate(base_offset=100, timestamp_ms=7)


@pytest.mark.parametrize("index", range(1, 6))
def test_each_of_the_last_five_batches_is_answered_with_its_own_offset(index: int) -> None:
    assert decide_append(SIX, batch(5 * index)) == Duplicate(100 + 10 * index, 1000 + index)


def test_a_duplicate_across_the_wrap_is_found() -> None:
    state = state_of((MAX_SEQUENCE - 1, 4), (2, 3))
    assert decide_append(state, batch(MAX_SEQUENCE - 1, 4)) == Duplicate(100, 1000)


def test_a_producer_whose_state_may_be_forgotten_starts_anywhere() -> None:
    assert decide_append(None, batch(4711), may_be_forgotten=True) == Append()


def test_a_refusal_names_expected_and_received() -> None:
    with pytest.raises(OutOfOrderSequence, match="expected sequence 5, received 9"):
        decide_append(state_of((0, 5)), batch(9))


def test_a_new_epoch_forgets_the_old_window() -> None:
    state = state_after(SIX, batch(0, epoch=1), base_offset=500, timestamp_ms=1)
    assert state == ProducerState(1, 4, 5, (Written(0, 4, 500, 1),))


class OneProducer(RuleBasedStateMachine):
    """A client with up to five batches in flight, a network that repeats and reorders, and the rule.

    The client numbers its records from `start` on. Whatever the network does, what is acknowledged is in the log
    once and in order; nothing is in the log that was not sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state: ProducerState | None = None
        self.epoch = 0
        self.start = 0
        self.sent: list[tuple[int, int]] = []  # (position of the first record, count) of this epoch
        self.position = 0
        self.acknowledged: dict[tuple[int, int], int] = {}  # (epoch, position) -> offset
        self.log: list[tuple[int, int]] = []  # offset -> (epoch, position)
        self.accepted: list[tuple[int, int]] = []  # of `sent`, in the order of the log

    @property
    def accepted_up_to(self) -> int:
        """Positions below it were appended in this epoch."""
        return sum(self.accepted[-1]) if self.accepted else 0

    def identity(self, position: int, count: int) -> BatchIdentity:
        return BatchIdentity(self.epoch, (self.start + position) % SEQUENCES, count)

    @rule(wrap=st.booleans())
    @precondition(lambda self: not self.sent and not self.log and self.epoch == 0)
    def begin_near_the_wrap(self, wrap: bool) -> None:
        """As if the producer had written 2^31 - 20 records before, long ago."""
        if wrap:
            self.start = SEQUENCES - 20
            self.state = ProducerState(
                0, (self.start - 1) % SEQUENCES, 1, (Written(self.start - 1, self.start - 1, -1, 0),)
            )

    @rule(count=st.integers(1, 9))
    def send(self, count: int) -> None:
        self.sent.append((self.position, count))
        self.position += count

    @rule(data=st.data())
    @precondition(lambda self: self.sent)
    def deliver(self, data: st.DataObject) -> None:
        """Any batch that was ever sent in this epoch may arrive, again or out of order."""
        position, count = data.draw(st.sampled_from(self.sent))
        identity = self.identity(position, count)
        is_next = position == self.accepted_up_to
        was_written = (position, count) in self.accepted
        is_recent = (position, count) in self.accepted[-5:]
        try:
            decision = decide_append(self.state, identity)
        except DuplicateSequence:
            assert was_written, "only what was written may be called a duplicate"
            assert not is_recent, "the newest five are answered with their offsets"
            return
        except OutOfOrderSequence:
            assert not is_next
            assert not was_written
            return
        if isinstance(decision, Duplicate):
            assert is_recent
            assert decision.base_offset == self.acknowledged[self.epoch, position]
            return
        assert is_next, "only the next batch may be appended"
        base_offset = len(self.log)
        self.log.extend((self.epoch, position + index) for index in range(count))
        self.acknowledged[self.epoch, position] = base_offset
        self.accepted.append((position, count))
        self.state = state_after(self.state, identity, base_offset=base_offset, timestamp_ms=0)

    @rule(by=st.integers(1, 3))
    def raise_the_epoch(self, by: int) -> None:
        self.epoch += by
        self.start = 0
        self.sent, self.position, self.accepted = [], 0, []

    @rule(data=st.data(), first=st.integers(0, 30), count=st.integers(1, 9))
    @precondition(lambda self: self.state is not None and self.state.epoch > 0)
    def an_old_instance_writes(self, data: st.DataObject, first: int, count: int) -> None:
        assert self.state is not None
        old = data.draw(st.integers(0, self.state.epoch - 1))
        with pytest.raises(InvalidProducerEpoch):
            decide_append(self.state, BatchIdentity(old, first, count))

    @rule(first=st.integers(-5, MAX_SEQUENCE), count=st.integers(-1, SEQUENCES))
    def a_stranger_writes_anything(self, first: int, count: int) -> None:
        """Whatever arrives, the rule answers or refuses; it never fails in another way."""
        with contextlib.suppress(KafkaError):
            decide_append(self.state, BatchIdentity(self.epoch, first, count))

    @invariant()
    def nothing_that_was_acknowledged_is_lost(self) -> None:
        assert all(self.log[offset] == sent for sent, offset in self.acknowledged.items())

    @invariant()
    def nothing_is_twice_or_out_of_order(self) -> None:
        assert self.log == sorted(set(self.log))

    @invariant()
    def the_window_is_bounded_and_consecutive(self) -> None:
        if self.state is not None:
            recent = self.state.recent
            assert 1 <= len(recent) <= 5
            assert recent[-1].last == self.state.last_sequence
            assert all(later.first == next_sequence(earlier.last) for earlier, later in itertools.pairwise(recent))


TestOneProducer = OneProducer.TestCase
TestOneProducer.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
