"""Which transition does this transaction make? Apache Kafka's rules, the epoch judged before the state.

The states are Kafka's. PrepareCommit and PrepareAbort are passed through inside one database commit and never seen;
Dead is a transactional id that expired, which has no row.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from gateway.domain.connections import Speaker
from gateway.domain.producers import LAST_EPOCH, Producer
from gateway.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)

__all__ = [
    "MAX_EPOCH",
    "TRANSITIONS",
    "AlreadyEnded",
    "Begin",
    "Create",
    "Ending",
    "KeepEpoch",
    "RaiseEpoch",
    "Rotate",
    "State",
    "Transaction",
    "decide_add",
    "decide_append_in_transaction",
    "decide_end",
    "decide_fence",
    "decide_init",
]

MAX_EPOCH = 32767
"""Reserved for fencing: a producer never writes with it."""


class State(enum.StrEnum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.EMPTY, State.DEAD}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset(
        {State.ONGOING, State.EMPTY, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.DEAD}
    ),
    State.COMPLETE_ABORT: frozenset(
        {State.ONGOING, State.EMPTY, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.DEAD}
    ),
    State.DEAD: frozenset(),
}
"""From each state, where it may go."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The open or last transaction of a transactional id."""

    producer: Producer
    state: State
    timeout_ms: int
    previous_epoch: int | None = None
    """The epoch before this one, if its owner may learn this one: nobody else was told it."""
    ended_epoch: int | None = None
    """The epoch in which the client itself ended the last transaction; None if its time was over, or it was fenced."""
    previous_producer_id: int | None = None
    """The producer id before this one, which ran out of epochs."""
    speaker: Speaker | None = None
    """Over which connection a client of the classic protocol last spoke about it, in this epoch."""
    updated_at_us: int = 0
    """When it last began or ended, or got an epoch."""
    age_seconds: float | None = None
    """For how long it has been open, if it is."""

    @property
    def is_open(self) -> bool:
        return self.state is State.ONGOING

    @property
    def is_ended(self) -> bool:
        return self.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    def succeeds(self, asked: Producer) -> bool:
        """Whether `asked` is what this same producer had just before, and its answer with the new one may be lost."""
        if self.is_open or asked.epoch != self.previous_epoch:
            return False
        if asked.id == self.producer.id:
            return asked.epoch == self.producer.epoch - 1
        return asked.id == self.previous_producer_id and self.producer.epoch == 0


# --- InitProducerId --------------------------------------------------------------------------


class Create(NamedTuple):
    """The transactional id is new: a new producer id at epoch 0."""


class RaiseEpoch(NamedTuple):
    """Abort what is open, and fence the older instance by a new epoch."""

    epoch: int
    previous_epoch: int | None


class KeepEpoch(NamedTuple):
    """The answer got lost, or a time-out raised the epoch: tell the newest one again."""


class Rotate(NamedTuple):
    """Abort what is open; the id has no epochs left, so a new one at epoch 0."""

    previous_epoch: int | None


def decide_init(
    transaction: Transaction | None, asked: Producer, *, timeout_ms: int, max_timeout_ms: int
) -> Create | RaiseEpoch | KeepEpoch | Rotate:
    """Judge InitProducerId with a transactional id. `asked`: what the producer says it had; -1, -1: a new instance."""
    if (asked.id < 0) != (asked.epoch < 0):
        raise InvalidRequest(f"producer id {asked.id} and epoch {asked.epoch} must be given together or not at all")
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeout(
            f"transaction.timeout.ms must be 1 to {max_timeout_ms} (transaction.max.timeout.ms), not {timeout_ms}"
        )
    if transaction is None:
        return Create()
    current = transaction.producer
    is_recovery = asked.id >= 0
    if is_recovery and transaction.succeeds(asked):
        if current.epoch <= LAST_EPOCH:
            return KeepEpoch()
    elif is_recovery and asked != current:
        raise ProducerFenced(current=current.epoch, received=asked.epoch)
    # A new instance leaves no way back to the old one; a producer that recovers may ask again.
    previous_epoch = asked.epoch if is_recovery else None
    if current.epoch >= LAST_EPOCH:
        return Rotate(previous_epoch)
    return RaiseEpoch(current.epoch + 1, previous_epoch)


# --- within a transaction --------------------------------------------------------------------


class Begin(NamedTuple):
    """The transaction is not open yet: it begins with this."""


def decide_add(transaction: Transaction | None, asked: Producer) -> Begin | None:
    """Judge AddPartitionsToTxn, AddOffsetsToTxn and TxnOffsetCommit: may they add to the producer's transaction?"""
    _require_producer(transaction, asked)
    assert transaction is not None
    return None if transaction.is_open else Begin()


def decide_append_in_transaction(transaction: Transaction | None, *, epoch: int, is_partition_added: bool) -> None:
    """Judge a transactional batch: refused unless its partition is in the producer's open transaction."""
    if transaction is None:
        raise InvalidProducerIdMapping("no transactional id has this producer id")
    if epoch != transaction.producer.epoch:
        raise InvalidProducerEpoch(current=transaction.producer.epoch, received=epoch)
    if not transaction.is_open:
        raise InvalidTxnState(f"the producer has no open transaction; its state is {transaction.state}")
    if not is_partition_added:
        raise InvalidTxnState("the partition is not in the producer's transaction")


# --- the end ---------------------------------------------------------------------------------


class Ending(NamedTuple):
    """End it; the producer goes on with `next_epoch`, or with a new id where there is no epoch left."""

    next_epoch: int
    rotates: bool


class AlreadyEnded(NamedTuple):
    """It was ended just so before: the answer got lost."""


def decide_end(
    transaction: Transaction | None, asked: Producer, *, commit: bool, bump_epoch: bool
) -> Ending | AlreadyEnded:
    """Judge EndTxn. `bump_epoch`: the client speaks KIP-890 and learns the next epoch from the answer."""
    if transaction is None:
        raise InvalidProducerIdMapping("no such transactional id")
    is_wanted = transaction.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    if bump_epoch and transaction.is_ended and transaction.succeeds(asked):
        if is_wanted:
            # The epoch that only fences is never told: the producer goes on with a new id instead.
            is_told = transaction.producer.epoch <= LAST_EPOCH
            return AlreadyEnded() if is_told else Ending(MAX_EPOCH, rotates=True)
        if transaction.ended_epoch is None:
            raise TransactionAbortable("the transaction was aborted meanwhile: its time was over, or by an operator")
        raise InvalidTxnState(f"the transaction has been ended already; its state is {transaction.state}")
    _require_producer(transaction, asked)
    if not bump_epoch and transaction.is_ended:
        if is_wanted:
            return AlreadyEnded()
        raise InvalidTxnState(f"the transaction has been ended already; its state is {transaction.state}")
    # Without a partition or an offset there is nothing to end, which is a success: the state proves it.
    if not bump_epoch:
        return Ending(transaction.producer.epoch, rotates=False)
    if transaction.producer.epoch >= LAST_EPOCH:
        return Ending(MAX_EPOCH, rotates=True)
    return Ending(transaction.producer.epoch + 1, rotates=False)


def decide_fence(transaction: Transaction) -> Ending:
    """End a transaction over its owner's head (its time is over): abort, and let the owner find itself fenced."""
    return Ending(min(transaction.producer.epoch + 1, MAX_EPOCH), rotates=False)


def _require_producer(transaction: Transaction | None, asked: Producer) -> None:
    if transaction is None or asked.id != transaction.producer.id:
        raise InvalidProducerIdMapping("the transactional id has another producer id")
    if asked.epoch != transaction.producer.epoch:
        raise ProducerFenced(current=transaction.producer.epoch, received=asked.epoch)
