"""The produce gate: of the records with the same business key, a topic that asks for it takes only the first.

One gate stands before one commit. It knows what the registry says of the commit's keys, or takes all of them for new,
and which of them the commit begins; the commit itself proves that nobody else has begun one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.domain.idempotency import Enqueued, Identity, KeyState, Sifted, Status, sift
from gateway.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    KeysHeldByOwners,
    RecordsRefused,
    TransactionAbortable,
)
from gateway.storage import idempotency as storage
from gateway.storage.database import Transaction
from gateway.storage.idempotency import Beginnings, Failure, TopicKey
from gateway.storage.keys import PartitionKey
from gateway.telemetry import metrics

__all__ = ["KeyGate", "Keys"]

FINAL_REFUSALS = (KeysHeldByOwners, InvalidTxnState, TransactionAbortable, InvalidProducerEpoch)
"""After these a client does not send the batch again by itself."""


class Keys(NamedTuple):
    """The keys of a batch's records, of which at least one has one."""

    identities: list[Identity | None]
    retention_ms: int


class KeyGate:
    """The keys of one commit."""

    def __init__(self, known: Mapping[TopicKey, KeyState]) -> None:
        self._known: dict[int, dict[Identity, KeyState]] = {}
        for key, state in known.items():
            self._known.setdefault(key.topic_id, {})[key.identity] = state
        self._batches: list[Beginnings] = []
        self._begun: dict[int, dict[Identity, Beginnings]] = {}
        """By topic: of those batches, which one begins a key."""
        self._begins_again = False
        self._failed: dict[TopicKey, Failure] = {}
        self._duplicates = 0
        self._held = 0

    @classmethod
    async def open(cls, source: Transaction, batches: Iterable[tuple[PartitionKey, Keys]]) -> KeyGate:
        """Look up the keys of these batches. Without a look, `KeyGate({})` takes them for new."""
        keys = {TopicKey(key.topic_id, each) for key, keys in batches for each in keys.identities if each is not None}
        return cls(await storage.load(source, list(keys)))

    @property
    def knows_any(self) -> bool:
        """Whether one of the keys was there before."""
        return bool(self._known)

    def sift(self, partition: PartitionKey, keys: Keys, *, transaction_of: int | None) -> Sifted:
        """Which records of a batch are new; raises if somebody else holds the key of one of them."""
        states = self._states(partition.topic_id, keys.identities)
        sifted = sift(keys.identities, states, producer_id=transaction_of)
        self._duplicates += len(keys.identities) - len(sifted.kept)
        return sifted

    def _states(self, topic_id: int, identities: Sequence[Identity | None]) -> Mapping[Identity, KeyState]:
        """What is known of a batch's keys, the claims of this commit included."""
        known = self._known.get(topic_id, {})
        begun = self._begun.get(topic_id, {})
        if begun.keys().isdisjoint(identities):
            return known
        claimed = {each: _claimed(each, begun[each]) for each in identities if each is not None and each in begun}
        return {**known, **claimed}

    def begin(
        self, partition: PartitionKey, keys: Keys, sifted: Sifted, *, base_offset: int, transaction_of: int | None
    ) -> None:
        """The new records of a batch go to `base_offset` and after it."""
        if not sifted.claims:
            return
        batch = Beginnings(partition, base_offset, sifted.claims, transaction_of, keys.retention_ms)
        self._batches.append(batch)
        self._begun.setdefault(partition.topic_id, {}).update(dict.fromkeys(sifted.claims, batch))
        if known := self._known.get(partition.topic_id):
            self._begins_again = self._begins_again or not known.keys().isdisjoint(sifted.claims)

    def refuse(self, partition: PartitionKey, keys: Keys, error: KafkaError) -> None:
        """A batch was refused: if for good, its keys have failed."""
        if isinstance(error, RecordsRefused):
            self._held += len(error.reasons)
        if isinstance(error, FINAL_REFUSALS):
            failure = Failure(f"{error.code.name}: {error.message}", keys.retention_ms)
            for identity in keys.identities:
                if identity is not None:
                    self._failed[TopicKey(partition.topic_id, identity)] = failure

    @property
    def has_failed(self) -> bool:
        return bool(self._failed)

    def script(self) -> str | None:
        """What the commit's own script does for the keys; None if it cannot: one of them has failed, say."""
        if self._begins_again:
            return None
        return storage.begin_script(self._batches) if self._batches else ""

    async def save(self, source: Transaction, *, is_scripted: bool) -> bool:
        """Write down, in the transaction that holds the partitions, what the script does not; false if somebody else
        was quicker."""
        if self._batches and not is_scripted and not await storage.begin(source, self._batches):
            return False
        if failed := self._failures():
            await storage.fail(source, failed)
        return True

    def _failures(self) -> dict[TopicKey, Failure]:
        """Of a batch that was refused; another one may have brought the same key."""
        return {
            key: failure
            for key, failure in self._failed.items()
            if key.identity not in self._begun.get(key.topic_id, {})
        }

    def count(self) -> None:
        """The commit is true."""
        begun = sum(len(batch.places) for batch in self._batches)
        done = sum(len(batch.places) for batch in self._batches if batch.producer_id is None)
        for outcome, count in (
            ("begun", begun),
            ("committed", done),
            ("failed", len(self._failures())),
            ("duplicate", self._duplicates),
            ("held", self._held),
        ):
            metrics.IDEMPOTENCY_KEYS.labels(outcome).inc(count)


def _claimed(identity: Identity, batch: Beginnings) -> KeyState:
    status = Status.COMMITTED if batch.producer_id is None else Status.PENDING
    first = Enqueued(batch.partition.partition, batch.base_offset + batch.places[identity])
    return KeyState(status, first, batch.producer_id)
