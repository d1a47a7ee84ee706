"""What is remembered of a producer's batches, as text and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.sequences import SEQUENCES, BatchIdentity, ProducerState, Written, next_sequence, state_after
from gateway.storage.keys import ProducerKey
from gateway.storage.producers import format_batches, parse_batches, remembered_rows


def test_sequences_are_left_out_since_they_follow_from_the_last_one() -> None:
    recent = (Written(SEQUENCES - 2, 1, 100, 1000), Written(2, 9, 120, -1))
    assert format_batches(recent) == "100:4:1000 120:8:-1"
    assert parse_batches("100:4:1000 120:8:-1", 9) == recent


def test_a_commit_gives_them_as_part_of_a_row() -> None:
    state = ProducerState(3, 9, 12, (Written(0, 9, 120, 1000),))
    assert remembered_rows([(ProducerKey(1, 2, 7), state)]) == '"(7,1,2,3,9,12,120:10:1000)"'


@given(
    first=st.integers(0, SEQUENCES - 1),
    counts=st.lists(st.integers(1, SEQUENCES) | st.integers(1, 1000), min_size=1, max_size=8),
    times=st.integers(-1, 2**62),
)
def test_whatever_was_written_is_read_back(first: int, counts: list[int], times: int) -> None:
    state: ProducerState | None = None
    offset = 0
    for count in counts:
        batch = BatchIdentity(0, first, count)
        state = state_after(state, batch, base_offset=offset, timestamp_ms=times)
        first, offset = next_sequence(batch.last), offset + count
    assert state is not None
    assert parse_batches(format_batches(state.recent), state.last_sequence) == state.recent
