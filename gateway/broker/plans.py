"""One group of appends judged: what a commit will write, and what each of them is answered. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.broker.append_queue import Append, Appended
from gateway.broker.key_gate import KeyGate
from gateway.domain.idempotency import Sifted
from gateway.domain.sequences import Duplicate, ProducerState, decide_append, state_after
from gateway.domain.transactions import decide_append_in_transaction
from gateway.errors import InvalidTxnState, KafkaError, TransactionAbortable, UnknownTopicOrPartition
from gateway.protocol.batches import StoredBatch, select_records
from gateway.protocol.copy_rows import copy_rows
from gateway.protocol.layout import NO_TIMESTAMP
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import Advance, PartitionState
from gateway.storage.producers import KnownProducer
from gateway.storage.transactions import AppendableTransaction, Extent

__all__ = ["Accepted", "Plan", "Written"]


class Written(NamedTuple):
    """What the rest of the gateway is told after a commit."""

    key: PartitionKey
    state: PartitionState
    batches: list[tuple[int, int, bytes | StoredBatch]]  # base offset, next offset, as stored


class Accepted(NamedTuple):
    """A batch that a commit appends, whole or without the records that were there before."""

    append: Append
    appended: Appended
    record_count: int

    @property
    def is_whole(self) -> bool:
        return self.record_count == self.append.batch.record_count


class Plan:
    """One group of appends judged against the partitions' and producers' states, in order of arrival."""

    def __init__(
        self,
        states: dict[PartitionKey, PartitionState],
        producers: Mapping[PartitionKey, dict[ProducerKey, KnownProducer]],
        transactions: Mapping[int, AppendableTransaction] | None,
        gate: KeyGate | None,
    ) -> None:
        """`transactions`: of the producers of transactional batches; None: not read, the commit will prove them.
        `gate`: None if no batch has business keys."""
        self.gate = gate
        self.transactions = transactions
        self.extents: dict[tuple[ProducerKey, int], Extent] = {}
        """By epoch too: the commit has to prove each transaction that a batch says it is part of."""
        self.before = states
        self.after = dict(states)
        self.producers = producers
        self.producers_after: dict[ProducerKey, ProducerState] = {}
        self.rows: list[bytes | bytearray] = []
        self.accepted: list[Accepted] = []
        self.repeated: list[tuple[Append, Appended]] = []
        """Batches of which every record has a business key that was there before."""
        self.duplicates: list[tuple[Append, Appended]] = []
        self.refused: list[tuple[Append, KafkaError]] = []
        self.max_timestamps: dict[PartitionKey, int] = {}

    def add(self, append: Append, *, now_ms: int) -> None:
        state = self.after.get(append.key)
        if state is None:
            self.refused.append((append, UnknownTopicOrPartition("the partition does not exist (any more)")))
            return
        batch = append.batch
        before: ProducerState | None = None
        duplicate: Duplicate | None = None
        try:
            if batch.is_transactional:
                self._require_transaction(append)
            if batch.has_producer:
                before = self._producer_before(append)
                duplicate = self._find_duplicate(append, before)
            sifted = self._sift(append) if duplicate is None else None
        except KafkaError as error:
            self.refused.append((append, error))
            if self.gate is not None and append.keys is not None:
                self.gate.refuse(append.key, append.keys, error)
            return
        if duplicate is not None:
            timestamp_ms = duplicate.timestamp_ms if append.uses_log_append_time else -1
            self.duplicates.append((append, Appended(duplicate.base_offset, timestamp_ms, state.log_start_offset)))
        elif sifted is not None and sifted.first is not None:
            self._skip(append, state, before, first_offset=sifted.first.offset)
        else:
            append_time_ms = now_ms if append.uses_log_append_time else None
            self._accept(append, state, before, sifted, append_time_ms=append_time_ms)

    def _require_transaction(self, append: Append) -> None:
        """Refuse a transactional batch that does not belong to its producer's open transaction."""
        batch = append.batch
        if self.transactions is None:
            return
        found = self.transactions.get(batch.producer_id)
        try:
            decide_append_in_transaction(
                None if found is None else found.transaction,
                epoch=batch.producer_epoch,
                is_partition_added=found is not None and append.key in found.partitions,
            )
        except InvalidTxnState as error:
            if append.knows_abortable:
                raise TransactionAbortable(error.message) from error
            raise

    def _producer_before(self, append: Append) -> ProducerState | None:
        """What the batch's producer wrote before it, as far as anything is known; a refusal is raised."""
        known = self.producers[append.key].get(append.producer_key)
        if known is None:
            raise UnknownTopicOrPartition("the partition was deleted meanwhile")
        if known.is_transactional and not append.batch.is_transactional:
            raise InvalidTxnState("a producer with a transactional id writes inside transactions only")
        return self.producers_after.get(append.producer_key, known.state)

    def _find_duplicate(self, append: Append, before: ProducerState | None) -> Duplicate | None:
        """Judge the batch by its producer's sequences; a refusal is raised."""
        may_be_forgotten = before is None and self.producers[append.key][append.producer_key].may_be_forgotten
        decision = decide_append(before, append.identity, may_be_forgotten=may_be_forgotten)
        return decision if isinstance(decision, Duplicate) else None

    def _sift(self, append: Append) -> Sifted | None:
        """Judge the records by their business keys; None if they have none. A refusal is raised."""
        if self.gate is None or append.keys is None:
            return None
        return self.gate.sift(append.key, append.keys, transaction_of=append.transaction_of)

    def _accept(
        self,
        append: Append,
        state: PartitionState,
        before: ProducerState | None,
        sifted: Sifted | None,
        *,
        append_time_ms: int | None,
    ) -> None:
        key, batch, base_offset = append.key, append.batch, state.next_offset
        next_offset = base_offset
        newest_ms = NO_TIMESTAMP
        is_whole = sifted is None or len(sifted.kept) == batch.record_count
        for part in (batch,) if sifted is None or is_whole else select_records(batch, sifted.kept):
            self.rows.append(
                copy_rows(
                    part,
                    topic_id=key.topic_id,
                    partition=key.partition,
                    base_offset=next_offset,
                    log_append_time_ms=append_time_ms,
                )
            )
            next_offset += part.record_count
            newest_ms = max(newest_ms, part.max_timestamp if append_time_ms is None else append_time_ms)
        self.max_timestamps[key] = max(newest_ms, self.max_timestamps.get(key, newest_ms))
        self._remember(append, before, base_offset=base_offset, timestamp_ms=newest_ms)
        if self.gate is not None and append.keys is not None and sifted is not None:
            self.gate.begin(key, append.keys, sifted, base_offset=base_offset, transaction_of=append.transaction_of)
        # While no transaction is open the last stable offset is the end; the UPDATE applies the same rule.
        is_stable = state.last_stable_offset == state.next_offset and not batch.is_transactional
        self.after[key] = PartitionState(
            state.log_start_offset,
            next_offset if is_stable else state.last_stable_offset,
            next_offset,
            state.leader_epoch,
        )
        if batch.is_transactional:
            self._extend(append, base_offset=base_offset, last_offset=next_offset - 1)
        log_append_time_ms = -1 if append_time_ms is None else append_time_ms
        appended = Appended(base_offset, log_append_time_ms, state.log_start_offset)
        self.accepted.append(Accepted(append, appended, next_offset - base_offset))

    def _skip(self, append: Append, state: PartitionState, before: ProducerState | None, *, first_offset: int) -> None:
        """Nothing of the batch is new. Its producer goes on counting behind it all the same."""
        self._remember(append, before, base_offset=first_offset, timestamp_ms=append.batch.max_timestamp)
        self.repeated.append((append, Appended(first_offset, -1, state.log_start_offset)))

    def _remember(self, append: Append, before: ProducerState | None, *, base_offset: int, timestamp_ms: int) -> None:
        """A retry of the batch is recognised by its sequences."""
        if append.batch.has_producer:
            self.producers_after[append.producer_key] = state_after(
                before, append.identity, base_offset=base_offset, timestamp_ms=timestamp_ms
            )

    def _extend(self, append: Append, *, base_offset: int, last_offset: int) -> None:
        key, epoch = append.producer_key, append.batch.producer_epoch
        begun = self.extents.get((key, epoch))
        first_offset = base_offset if begun is None else begun.first_offset
        self.extents[key, epoch] = Extent(key, epoch, first_offset, last_offset)

    @property
    def has_unproven_duplicates(self) -> bool:
        """Whether a duplicate was found in a partition that this commit does not move, or a batch of repeated keys
        moves its producer: another gateway may have moved it further by such batches, which leave the end as it is."""
        if any(append.batch.has_producer for append, _ in self.repeated):
            return True
        return any(append.key not in self.max_timestamps for append, _ in self.duplicates)

    def advances(self) -> list[Advance]:
        return [
            Advance(
                key,
                self.before[key].next_offset,
                self.after[key].next_offset,
                self.after[key].last_stable_offset,
                newest_ms,
            )
            for key, newest_ms in self.max_timestamps.items()
        ]

    @property
    def must_commit(self) -> bool:
        """Whether there is anything to write down, though no record."""
        return bool(self.repeated and self.producers_after) or (self.gate is not None and self.gate.has_failed)

    def written(self) -> list[Written]:
        by_key: dict[PartitionKey, Written] = {}
        for each in self.accepted:
            append, appended = each.append, each.appended
            written = by_key.setdefault(append.key, Written(append.key, self.after[append.key], []))
            if not each.is_whole:
                continue  # what arrived is not what is stored: consumers read the rows
            stored = StoredBatch(
                append.batch,
                base_offset=appended.base_offset,
                leader_epoch=written.state.leader_epoch,
                log_append_time_ms=None if appended.log_append_time_ms < 0 else appended.log_append_time_ms,
            )
            next_offset = appended.base_offset + each.record_count
            written.batches.append((appended.base_offset, next_offset, stored))
        return list(by_key.values())
