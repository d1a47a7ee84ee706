"""May this batch be appended? Apache Kafka's rule for producers that number their records.

Judged per producer and partition, before anything is written. A duplicate is an answer, not an error.
Where we know more than Kafka keeps, we say more: a duplicate older than the window is recognised (46) if it lies in
the run of sequences that was written without a break, and a first batch that does not start at 0 is refused (45)
as long as no state of that producer can have been forgotten here: an earlier batch of it is still on its way.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import DuplicateSequence, InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence

__all__ = [
    "NO_PRODUCER",
    "SEQUENCES",
    "WINDOW",
    "Append",
    "BatchIdentity",
    "Duplicate",
    "ProducerState",
    "Written",
    "decide_append",
    "next_sequence",
    "state_after",
]

WINDOW = 5
"""How many batches are remembered: as many as a client may have in flight."""

MAX_SEQUENCE = 2**31 - 1
SEQUENCES = 2**31
NO_PRODUCER = -1


class BatchIdentity(NamedTuple):
    """What a producer says about a batch."""

    epoch: int
    first: int
    record_count: int

    @property
    def last(self) -> int:
        return (self.first + self.record_count - 1) % SEQUENCES


class Written(NamedTuple):
    """A batch that is in the log."""

    first: int
    last: int
    base_offset: int
    timestamp_ms: int


class ProducerState(NamedTuple):
    """What a producer last wrote to a partition."""

    epoch: int
    last_sequence: int
    run_length: int
    """How many records in a row, up to `last_sequence`, are known to be written in this epoch."""
    recent: tuple[Written, ...]
    """The newest batches of this epoch, oldest first, at most WINDOW."""

    def find(self, batch: BatchIdentity) -> Written | None:
        """The remembered batch with exactly these sequences."""
        last = batch.last
        for written in self.recent:
            if written.first == batch.first and written.last == last:
                return written
        return None

    def has_written(self, batch: BatchIdentity) -> bool:
        """Whether all of the batch's sequences lie in the unbroken run."""
        records_back = (self.last_sequence - batch.last) % SEQUENCES
        return records_back + batch.record_count <= self.run_length


class Append(NamedTuple):
    """The batch is new: write it."""


APPEND = Append()


class Duplicate(NamedTuple):
    """The batch is in the log already: answer with where it is."""

    base_offset: int
    timestamp_ms: int


def next_sequence(last: int) -> int:
    """Sequences wrap from 2147483647 to 0."""
    return 0 if last == MAX_SEQUENCE else last + 1


def decide_append(
    state: ProducerState | None, batch: BatchIdentity, *, may_be_forgotten: bool = False
) -> Append | Duplicate:
    """Judge `batch` against what this producer last wrote to this partition.

    `may_be_forgotten` says, where there is no state, that it may have expired: then any sequence is a start,
    as in Kafka.
    """
    if batch.epoch < 0 or batch.first < 0 or not 0 < batch.record_count <= SEQUENCES:
        raise InvalidRecord(
            f"epoch {batch.epoch}, sequence {batch.first} and {batch.record_count} records do not fit a producer id"
        )
    if state is None:
        return APPEND if may_be_forgotten else _require_sequence(batch, expected=0)
    if batch.epoch < state.epoch:
        raise InvalidProducerEpoch(current=state.epoch, received=batch.epoch)
    if batch.epoch > state.epoch:
        return _require_sequence(batch, expected=0)
    is_next = batch.first == next_sequence(state.last_sequence)
    if is_next and state.run_length + batch.record_count <= SEQUENCES:
        return APPEND  # the usual case: it cannot be among what is remembered
    if (written := state.find(batch)) is not None:
        return Duplicate(written.base_offset, written.timestamp_ms)
    if is_next:
        return APPEND
    if state.has_written(batch):
        raise DuplicateSequence(last=state.last_sequence, received=batch.first)
    raise OutOfOrderSequence(expected=next_sequence(state.last_sequence), received=batch.first)


def state_after(
    state: ProducerState | None, batch: BatchIdentity, *, base_offset: int, timestamp_ms: int
) -> ProducerState:
    """The state once `batch` has been appended at `base_offset`."""
    last = batch.last
    written = Written(batch.first, last, base_offset, timestamp_ms)
    if state is None or state.epoch != batch.epoch:
        return ProducerState(batch.epoch, last, batch.record_count, (written,))
    run_length = min(state.run_length + batch.record_count, SEQUENCES)
    return ProducerState(batch.epoch, last, run_length, (*state.recent[1 - WINDOW :], written))


def _require_sequence(batch: BatchIdentity, *, expected: int) -> Append:
    if batch.first != expected:
        raise OutOfOrderSequence(expected=expected, received=batch.first)
    return APPEND
