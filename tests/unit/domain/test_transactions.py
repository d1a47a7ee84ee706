"""The rules of transactions: a table of cases that reads as the specification, then random histories of several
instances of one transactional id against a naive model."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.domain.producers import LAST_EPOCH, Producer
from gateway.domain.transactions import (
    MAX_EPOCH,
    TRANSITIONS,
    AlreadyEnded,
    Begin,
    Create,
    Ending,
    KeepEpoch,
    RaiseEpoch,
    Rotate,
    State,
    Transaction,
    decide_add,
    decide_append_in_transaction,
    decide_end,
    decide_fence,
    decide_init,
)
from gateway.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)

NOBODY = Producer(-1, -1)
OTHERS_ID = 99
MAX_TIMEOUT_MS = 900_000


def transaction(epoch: int = 5, state: State = State.EMPTY, **more: Any) -> Transaction:
    return Transaction(Producer(7, epoch), state, 60_000, **more)


def init(known: Transaction | None, asked: Producer, *, timeout_ms: int = 60_000) -> object:
    return decide_init(known, asked, timeout_ms=timeout_ms, max_timeout_ms=MAX_TIMEOUT_MS)


# --- InitProducerId --------------------------------------------------------------------------

RECOVERED = transaction(6, previous_epoch=5)
TIMED_OUT = transaction(6, State.COMPLETE_ABORT, previous_epoch=5)
TIMED_OUT_AT_THE_END = transaction(MAX_EPOCH, State.COMPLETE_ABORT, previous_epoch=LAST_EPOCH)
ENDED = transaction(6, State.COMPLETE_COMMIT, previous_epoch=5, ended_epoch=5)
ROTATED = Transaction(
    Producer(8, 0),
    State.COMPLETE_COMMIT,
    60_000,
    previous_epoch=LAST_EPOCH,
    ended_epoch=LAST_EPOCH,
    previous_producer_id=7,
)
ROTATED_FOR_ANOTHER = Transaction(Producer(8, 0), State.EMPTY, 60_000, previous_producer_id=7)

INIT_CASES = [
    ("the id is new", None, NOBODY, Create()),
    ("the id is new, whatever the producer had", None, Producer(3, 4), Create()),
    ("a new instance fences the old one", transaction(), NOBODY, RaiseEpoch(6, None)),
    ("a new instance aborts what is open", transaction(state=State.ONGOING), NOBODY, RaiseEpoch(6, None)),
    ("a new instance after a commit", ENDED, NOBODY, RaiseEpoch(7, None)),
    ("a producer recovers", transaction(), Producer(7, 5), RaiseEpoch(6, 5)),
    (
        "a producer recovers from an open transaction",
        transaction(state=State.ONGOING),
        Producer(7, 5),
        RaiseEpoch(6, 5),
    ),
    ("its answer got lost", RECOVERED, Producer(7, 5), KeepEpoch()),
    ("it recovers once more", RECOVERED, Producer(7, 6), RaiseEpoch(7, 6)),
    ("its time was over", TIMED_OUT, Producer(7, 5), KeepEpoch()),
    ("the answer to its EndTxn got lost (KIP-890)", ENDED, Producer(7, 5), KeepEpoch()),
    ("the last epoch but one", transaction(LAST_EPOCH - 1), NOBODY, RaiseEpoch(LAST_EPOCH, None)),
    ("no epoch left", transaction(LAST_EPOCH), NOBODY, Rotate(None)),
    ("no epoch left, recovering", transaction(LAST_EPOCH), Producer(7, LAST_EPOCH), Rotate(LAST_EPOCH)),
    ("fenced at the last epoch", TIMED_OUT_AT_THE_END, NOBODY, Rotate(None)),
    ("timed out at the last epoch", TIMED_OUT_AT_THE_END, Producer(7, LAST_EPOCH), Rotate(LAST_EPOCH)),
    ("the answer with the new id got lost", ROTATED, Producer(7, LAST_EPOCH), KeepEpoch()),
    ("an old epoch", transaction(), Producer(7, 4), ProducerFenced),
    ("an epoch that nobody was given", transaction(), Producer(7, 6), ProducerFenced),
    ("another producer's id", transaction(), Producer(OTHERS_ID, 5), ProducerFenced),
    ("fenced by a new instance", transaction(6), Producer(7, 5), ProducerFenced),
    ("fenced by a new instance with a new id", ROTATED_FOR_ANOTHER, Producer(7, LAST_EPOCH), ProducerFenced),
    (
        "the id before, long after",
        dataclasses.replace(ROTATED, producer=Producer(8, MAX_EPOCH)),
        Producer(7, LAST_EPOCH),
        ProducerFenced,
    ),
    ("too old to have lost an answer", transaction(7, previous_epoch=6), Producer(7, 5), ProducerFenced),
    ("an id without an epoch", transaction(), Producer(7, -1), InvalidRequest),
    ("an epoch without an id", transaction(), Producer(-1, 5), InvalidRequest),
]


@pytest.mark.parametrize(("known", "asked", "expected"), [c[1:] for c in INIT_CASES], ids=[c[0] for c in INIT_CASES])
def test_init_producer_id(known: Transaction | None, asked: Producer, expected: Any) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            init(known, asked)
    else:
        assert init(known, asked) == expected


@pytest.mark.parametrize("timeout_ms", [0, -1, MAX_TIMEOUT_MS + 1, 2**31 - 1])
def test_a_timeout_beyond_the_limit_is_refused_before_anything_else(timeout_ms: int) -> None:
    for known in (None, transaction(), transaction(state=State.ONGOING)):
        with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
            init(known, NOBODY, timeout_ms=timeout_ms)


@pytest.mark.parametrize("timeout_ms", [1, MAX_TIMEOUT_MS])
def test_any_timeout_up_to_the_limit_is_taken(timeout_ms: int) -> None:
    assert init(None, NOBODY, timeout_ms=timeout_ms) == Create()


# --- within a transaction --------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_a_transaction_begins_with_the_first_thing_added(state: State) -> None:
    assert decide_add(transaction(state=state), Producer(7, 5)) == Begin()


def test_what_is_added_to_an_open_transaction_joins_it() -> None:
    assert decide_add(transaction(state=State.ONGOING), Producer(7, 5)) is None


@pytest.mark.parametrize("state", [State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (Producer(7, 4), ProducerFenced),
        (Producer(7, 6), ProducerFenced),
        (Producer(OTHERS_ID, 5), InvalidProducerIdMapping),
        (Producer(OTHERS_ID, 4), InvalidProducerIdMapping),
        (NOBODY, InvalidProducerIdMapping),
    ],
)
def test_only_the_producer_itself_adds_and_ends(state: State, asked: Producer, refusal: type[KafkaError]) -> None:
    """The epoch is judged before the state: a fenced producer hears that it is fenced, not that its state is wrong."""
    known = transaction(state=state)
    with pytest.raises(refusal):
        decide_add(known, asked)
    for commit, bump_epoch in itertools.product((True, False), repeat=2):
        with pytest.raises(refusal):
            decide_end(known, asked, commit=commit, bump_epoch=bump_epoch)


def test_an_unknown_transactional_id_has_no_producer() -> None:
    with pytest.raises(InvalidProducerIdMapping):
        decide_add(None, Producer(7, 5))
    with pytest.raises(InvalidProducerIdMapping):
        decide_end(None, Producer(7, 5), commit=True, bump_epoch=True)
    with pytest.raises(InvalidProducerIdMapping):
        decide_append_in_transaction(None, epoch=5, is_partition_added=True)


@pytest.mark.parametrize(
    ("known", "epoch", "is_added", "refusal"),
    [
        (transaction(state=State.ONGOING), 5, True, None),
        (transaction(state=State.ONGOING), 5, False, InvalidTxnState),
        (transaction(state=State.ONGOING), 4, True, InvalidProducerEpoch),
        (transaction(state=State.ONGOING), 6, True, InvalidProducerEpoch),
        (transaction(state=State.ONGOING), 4, False, InvalidProducerEpoch),
        (transaction(), 5, True, InvalidTxnState),
        (ENDED, 6, True, InvalidTxnState),
        (ENDED, 5, True, InvalidProducerEpoch),
        (TIMED_OUT, 5, False, InvalidProducerEpoch),
    ],
)
def test_a_batch_is_refused_unless_its_partition_is_in_the_open_transaction(
    known: Transaction, epoch: int, is_added: bool, refusal: type[KafkaError] | None
) -> None:
    if refusal is None:
        decide_append_in_transaction(known, epoch=epoch, is_partition_added=is_added)
    else:
        with pytest.raises(refusal):
            decide_append_in_transaction(known, epoch=epoch, is_partition_added=is_added)


# --- the end ---------------------------------------------------------------------------------

CLASSIC, KIP_890 = False, True
COMMIT, ABORT = True, False
AT_THE_END = transaction(LAST_EPOCH, State.ONGOING)

END_CASES = [
    # known, asked, commit, generation, expected
    ("commit", transaction(state=State.ONGOING), 5, COMMIT, CLASSIC, Ending(5, rotates=False)),
    ("abort", transaction(state=State.ONGOING), 5, ABORT, CLASSIC, Ending(5, rotates=False)),
    ("commit, next epoch", transaction(state=State.ONGOING), 5, COMMIT, KIP_890, Ending(6, rotates=False)),
    ("abort, next epoch", transaction(state=State.ONGOING), 5, ABORT, KIP_890, Ending(6, rotates=False)),
    ("nothing was begun", transaction(), 5, COMMIT, CLASSIC, Ending(5, rotates=False)),
    ("nothing was begun, abort", transaction(), 5, ABORT, CLASSIC, Ending(5, rotates=False)),
    ("nothing was begun, next epoch", transaction(), 5, COMMIT, KIP_890, Ending(6, rotates=False)),
    ("nothing since the last commit", ENDED, 6, ABORT, KIP_890, Ending(7, rotates=False)),
    ("commit retried", transaction(state=State.COMPLETE_COMMIT, ended_epoch=5), 5, COMMIT, CLASSIC, AlreadyEnded()),
    ("abort retried", transaction(state=State.COMPLETE_ABORT, ended_epoch=5), 5, ABORT, CLASSIC, AlreadyEnded()),
    ("abort after commit", transaction(state=State.COMPLETE_COMMIT, ended_epoch=5), 5, ABORT, CLASSIC, InvalidTxnState),
    ("commit after abort", transaction(state=State.COMPLETE_ABORT, ended_epoch=5), 5, COMMIT, CLASSIC, InvalidTxnState),
    ("commit retried, KIP-890", ENDED, 5, COMMIT, KIP_890, AlreadyEnded()),
    ("abort after commit, KIP-890", ENDED, 5, ABORT, KIP_890, InvalidTxnState),
    ("too late to retry", transaction(7, State.COMPLETE_COMMIT, previous_epoch=6), 5, COMMIT, KIP_890, ProducerFenced),
    ("the next one is open", transaction(6, State.ONGOING), 5, COMMIT, KIP_890, ProducerFenced),
    ("a new instance came", transaction(6), 5, COMMIT, KIP_890, ProducerFenced),
    ("recovered meanwhile", RECOVERED, 5, ABORT, KIP_890, ProducerFenced),
    ("its time was over", TIMED_OUT, 5, COMMIT, CLASSIC, ProducerFenced),
    ("its time was over, abort", TIMED_OUT, 5, ABORT, CLASSIC, ProducerFenced),
    ("its time was over, KIP-890", TIMED_OUT, 5, COMMIT, KIP_890, TransactionAbortable),
    ("its time was over, abort, KIP-890", TIMED_OUT, 5, ABORT, KIP_890, AlreadyEnded()),
    ("timed out at the last epoch", TIMED_OUT_AT_THE_END, LAST_EPOCH, ABORT, KIP_890, Ending(MAX_EPOCH, rotates=True)),
    ("the last epoch", AT_THE_END, LAST_EPOCH, COMMIT, KIP_890, Ending(MAX_EPOCH, rotates=True)),
    ("the last epoch, classic", AT_THE_END, LAST_EPOCH, COMMIT, CLASSIC, Ending(LAST_EPOCH, rotates=False)),
    ("retried after the id changed", ROTATED, LAST_EPOCH, COMMIT, KIP_890, AlreadyEnded()),
    ("opposite after the id changed", ROTATED, LAST_EPOCH, ABORT, KIP_890, InvalidTxnState),
    ("the id is another instance's", ROTATED_FOR_ANOTHER, LAST_EPOCH, COMMIT, KIP_890, InvalidProducerIdMapping),
]


@pytest.mark.parametrize(
    ("known", "epoch", "commit", "generation", "expected"), [c[1:] for c in END_CASES], ids=[c[0] for c in END_CASES]
)
def test_end_txn(known: Transaction, epoch: int, commit: bool, generation: bool, expected: Any) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected) as refused:
            decide_end(known, Producer(7, epoch), commit=commit, bump_epoch=generation)
        assert type(refused.value) is expected
    else:
        assert decide_end(known, Producer(7, epoch), commit=commit, bump_epoch=generation) == expected


def test_fencing_takes_the_next_epoch_and_stops_at_the_reserved_one() -> None:
    assert decide_fence(transaction(5, State.ONGOING)) == Ending(6, rotates=False)
    assert decide_fence(transaction(LAST_EPOCH, State.ONGOING)) == Ending(MAX_EPOCH, rotates=False)
    assert decide_fence(transaction(MAX_EPOCH, State.ONGOING)) == Ending(MAX_EPOCH, rotates=False)


def test_every_state_says_where_it_may_go() -> None:
    assert set(TRANSITIONS) == set(State)
    assert State.ONGOING not in TRANSITIONS[State.PREPARE_COMMIT] | TRANSITIONS[State.PREPARE_ABORT]
    assert not TRANSITIONS[State.DEAD], "an id that expired is a new one"
    for state, targets in TRANSITIONS.items():
        if state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            assert not targets & {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}, "nothing completes unprepared"


# --- random histories ------------------------------------------------------------------------


class Server:
    """One transactional id, kept as the statements of sql/transactions keep it. Every change is a legal transition."""

    def __init__(self, epoch: int) -> None:
        self.known: Transaction | None = transaction(epoch)
        self._ids = itertools.count(8)
        self.open: list[int] = []
        self.committed: list[int] = []
        self.aborted: list[int] = []

    def init(self, asked: Producer) -> Producer:
        assert self.known is not None
        decision = init(self.known, asked)
        if isinstance(decision, KeepEpoch):
            return self.known.producer
        assert isinstance(decision, (RaiseEpoch, Rotate))
        if self.known.is_open:
            self._end(decide_fence(self.known), commit=False, by_client=False)
        if isinstance(decision, Rotate):
            self._rotate(decision.previous_epoch)
        else:
            self._change(producer=Producer(self.known.producer.id, decision.epoch))
        self._change(state=State.EMPTY, previous_epoch=decision.previous_epoch, ended_epoch=None)
        return self.known.producer

    def add(self, asked: Producer) -> None:
        if isinstance(decide_add(self.known, asked), Begin):
            self._change(state=State.ONGOING, previous_epoch=None, ended_epoch=None)

    def append(self, asked: Producer, record: int) -> None:
        assert self.known is not None
        mine = self.known if asked.id == self.known.producer.id else None
        decide_append_in_transaction(mine, epoch=asked.epoch, is_partition_added=True)
        self.open.append(record)

    def end(self, asked: Producer, *, commit: bool, bump_epoch: bool) -> Producer:
        decision = decide_end(self.known, asked, commit=commit, bump_epoch=bump_epoch)
        assert self.known is not None
        if isinstance(decision, AlreadyEnded):
            return self.known.producer
        self._end(decision, commit=commit, by_client=True)
        if decision.rotates:
            self._rotate(asked.epoch)
        return self.known.producer

    def abort(self) -> None:
        """The time is over, or an operator says so."""
        assert self.known is not None
        self._end(decide_fence(self.known), commit=False, by_client=False)

    def _end(self, ending: Ending, *, commit: bool, by_client: bool) -> None:
        assert self.known is not None
        (self.committed if commit else self.aborted).extend(self.open)
        self.open = []
        was = self.known.producer
        self._change(state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
        self._change(
            state=State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT,
            ended_epoch=was.epoch if by_client else None,
            previous_epoch=self.known.previous_epoch if ending.next_epoch == was.epoch else was.epoch,
            producer=Producer(was.id, ending.next_epoch),
        )

    def _rotate(self, previous_epoch: int | None) -> None:
        assert self.known is not None
        self._change(
            previous_producer_id=self.known.producer.id,
            producer=Producer(next(self._ids), 0),
            previous_epoch=previous_epoch,
        )

    def _change(self, **changes: Any) -> None:
        assert self.known is not None
        after = dataclasses.replace(self.known, **changes)
        assert after.state is self.known.state or after.state in TRANSITIONS[self.known.state]
        self.known = after


@dataclass
class Instance:
    """A client: what it was told, and what it still waits to hear."""

    number: int
    bumps: bool
    producer: Producer
    is_kicked: bool = False
    """Its transaction was aborted over its head, and it has not recovered."""
    unheard_end: bool | None = None
    """KIP-890: the answer to this EndTxn got lost."""
    last_end: bool | None = None
    """What its last transaction ended with, while nothing else happened."""
    is_open: bool = False


BACK = st.sampled_from([0, 0, 0, 0, 1, 2])
"""Which instance acts: mostly the newest, sometimes one that it fenced."""


def has_instances(machine: SeveralInstances) -> bool:
    return bool(machine.instances)


class SeveralInstances(RuleBasedStateMachine):
    """The newest instance is the only one who can do anything; what each of its requests is answered follows from
    what it did, without looking at any epoch."""

    @initialize(epoch=st.sampled_from([0, LAST_EPOCH - 3, LAST_EPOCH - 2, LAST_EPOCH - 1]))
    def begin(self, epoch: int) -> None:
        self.server = Server(epoch)
        self.instances: list[Instance] = []
        self.numbers = itertools.count(1)
        self.records = itertools.count(1)
        self.told: dict[Producer, int] = {Producer(7, epoch): 0}
        self.open: list[int] = []
        self.committed: list[int] = []
        self.aborted: list[int] = []

    def tell(self, producer: Producer, instance: int) -> None:
        """No two instances are ever told the same id and epoch."""
        assert producer.epoch <= LAST_EPOCH
        assert self.told.setdefault(producer, instance) == instance, "two instances could both write"

    def finish(self, *, commit: bool) -> None:
        (self.committed if commit else self.aborted).extend(self.open)
        self.open = []

    @property
    def newest(self) -> Instance | None:
        return self.instances[-1] if self.instances else None

    def choose(self, back: int) -> Instance:
        return self.instances[max(0, len(self.instances) - 1 - back)]

    @rule(bumps=st.booleans(), is_lost=st.booleans())
    def start(self, bumps: bool, is_lost: bool) -> None:
        self.finish(commit=False)
        number = next(self.numbers)
        for _ in range(1 + is_lost):  # a new instance that heard nothing asks again
            producer = self.server.init(NOBODY)
            self.tell(producer, number)
        self.instances.append(Instance(number, bumps, producer))

    @precondition(has_instances)
    @rule(back=BACK, is_lost=st.booleans())
    def recover(self, back: int, is_lost: bool) -> None:
        instance = self.choose(back)
        if instance is not self.newest:
            with pytest.raises(ProducerFenced):
                self.server.init(instance.producer)
            return
        if not instance.is_kicked and instance.unheard_end is None:
            self.finish(commit=False)
        for _ in range(1 + is_lost):
            producer = self.server.init(instance.producer)
            self.tell(producer, instance.number)
        # Whose time was over is told the epoch that fenced it; its last transaction stays an aborted one.
        keeps_its_id = producer.id == instance.producer.id
        instance.last_end = False if instance.is_kicked and keeps_its_id else None
        instance.producer = producer
        instance.is_kicked, instance.unheard_end, instance.is_open = False, None, False

    @precondition(has_instances)
    @rule(back=BACK)
    def write(self, back: int) -> None:
        instance = self.choose(back)
        record = next(self.records)
        if instance is not self.newest or instance.is_kicked or instance.unheard_end is not None:
            with pytest.raises((ProducerFenced, InvalidProducerIdMapping)):
                self.server.add(instance.producer)
            with pytest.raises((InvalidProducerEpoch, InvalidProducerIdMapping)):
                self.server.append(instance.producer, record)
            return
        if not instance.is_open:
            with pytest.raises(InvalidTxnState):
                self.server.append(instance.producer, record)
            self.server.add(instance.producer)
        self.server.append(instance.producer, record)
        self.open.append(record)
        instance.is_open, instance.last_end = True, None

    @precondition(has_instances)
    @rule(back=BACK, commit=st.booleans(), is_lost=st.booleans())
    def end(self, back: int, commit: bool, is_lost: bool) -> None:
        instance = self.choose(back)

        def ask() -> Producer:
            return self.server.end(instance.producer, commit=commit, bump_epoch=instance.bumps)

        if instance is not self.newest or (instance.is_kicked and not instance.bumps):
            with pytest.raises((ProducerFenced, InvalidProducerIdMapping)):
                ask()
            return
        if instance.is_kicked and commit:
            with pytest.raises(TransactionAbortable):
                ask()
            return
        before = instance.unheard_end if instance.bumps else instance.last_end
        if before is not None and before is not commit:
            with pytest.raises((InvalidTxnState, TransactionAbortable)):
                ask()
            return
        producer = ask()
        self.tell(producer, instance.number)
        if before is None and not instance.is_kicked:
            self.finish(commit=commit)
        instance.is_open, instance.is_kicked = False, False
        if not instance.bumps:
            assert producer == instance.producer
            instance.last_end = commit
        elif is_lost:
            instance.unheard_end = commit
        else:
            instance.producer, instance.unheard_end = producer, None

    @precondition(lambda self: self.newest is not None and self.newest.is_open)
    @rule()
    def time_is_over(self) -> None:
        assert self.newest is not None
        self.server.abort()
        self.finish(commit=False)
        self.newest.is_kicked, self.newest.is_open, self.newest.last_end = True, False, None

    @invariant()
    def each_record_is_where_it_belongs(self) -> None:
        if hasattr(self, "server"):
            assert (self.server.open, self.server.committed, self.server.aborted) == (
                self.open,
                self.committed,
                self.aborted,
            )


TestSeveralInstances = SeveralInstances.TestCase
TestSeveralInstances.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
