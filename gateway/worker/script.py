"""What a worker does, step by step, without saying how: the same for blocking and asyncio connections.

A script is a generator that yields commands and is sent their results; `sync.py` and `aio.py` carry them out. All that
is durable happens in the transactions that scripts ask for.

Lock order within a transaction: keys, dead letters, the logs' partitions, the group's partitions, offsets.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka.partitioner import murmur2

from gateway.clock import monotonic_seconds
from gateway.domain.deliveries import (
    DeadLetter,
    DeliveryPolicy,
    DeliveryState,
    Headers,
    Ordering,
    Retry,
    dead_letter_headers,
    dead_letter_topic,
    decide_failure,
    decide_rest,
    decide_timeout,
    headers_of,
    identity_of,
    is_for_group,
    topic_value,
)
from gateway.domain.idempotency import Identity
from gateway.domain.topics import validate_topic_name
from gateway.errors import KafkaError
from gateway.storage.failures import UNDONE_ERRORS
from gateway.telemetry.metrics import WORKER_KEYS
from gateway.worker.errors import (
    ConnectionLost,
    DeliveryLost,
    GroupInUse,
    Reject,
    UnknownTopic,
    WorkerError,
)
from gateway.worker.model import Begun, Delivery, NewRecord, Work

__all__ = ["Ask", "Call", "InTransaction", "Pause", "Script", "Scripts", "append_records", "unique_name"]

T = TypeVar("T")
Row = tuple[Any, ...]

SWEEP_SECONDS: Final = 1.0
LOOK_AROUND_SECONDS: Final = 2.0
MAX_SWEPT: Final = 100
MAX_UNDONE: Final = 5
POSTPONED_MS: Final = 200
LOST_CONNECTION: Final = "the worker lost its connection"
OUTCOMES: Final = {Begun.STARTED: "begun", Begun.ALREADY_DONE: "duplicate", Begun.IN_FLIGHT: "held"}
"""As metrics call them."""


class Ask(NamedTuple):
    """Run the statement sql/<name>.sql; its rows come back."""

    name: str
    parameters: dict[str, object]


class Call(NamedTuple):
    """Let the caller's handler work."""

    work: Work[Any]


class Pause(NamedTuple):
    seconds: float


class InTransaction(NamedTuple):
    """Run a script in a transaction: committed when it returns, rolled back when it raises."""

    script: Generator[Any, Any, Any]


Command = Ask | Call | Pause | InTransaction
Script = Generator[Command, Any, T]


class _Alone(Exception):
    """The records of a batch cannot be worked on together: each gets a transaction of its own."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """How one delivery ends, for now."""

    delivery: Delivery
    state: DeliveryState
    delay_ms: int = 0
    error: str | None = None
    is_uncounted: bool = False


@dataclass(frozen=True, slots=True)
class _Topic:
    topic_id: int
    partition_count: int
    policy: DeliveryPolicy
    key_header: str
    tenant_header: str


def unique_name() -> str:
    """Never the same twice: whoever has this name is one process."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


class Scripts:
    """The steps of one worker of a group that reads one topic."""

    def __init__(
        self,
        *,
        topic: str,
        group_id: str,
        name: str,
        from_latest: bool,
        uses_keys: bool,
        chance: Callable[[], float] = random.random,
    ) -> None:
        _validate(topic, group_id)
        self.topic = topic
        self.group_id = group_id
        self.name = name
        self._from_latest = from_latest
        self._uses_keys = uses_keys
        self._chance = chance
        self._joined: _Topic | None = None
        self._begun: set[Delivery] = set()
        """Whose keys were begun in a commit of their own."""
        self._has_dead_letter_topic = False
        self._swept_at = float("-inf")
        self._looked_at = float("-inf")
        self._partition_counts: dict[str, int] = {}

    @property
    def policy(self) -> DeliveryPolicy:
        return self._topic.policy

    @property
    def _topic(self) -> _Topic:
        if self._joined is None:
            raise WorkerError("the worker has not joined its group")
        return self._joined

    # --- taking -------------------------------------------------------------------------------

    def join(self) -> Script[None]:
        """Find the topic and the group's place in it; what an earlier connection of this worker left is let go."""
        yield InTransaction(self._join())
        yield from self._sweep(own_name=self.name)

    def _join(self) -> Script[None]:
        self._looked_at = monotonic_seconds()
        rows = yield Ask("worker/find_topic", {"topic": self.topic})
        if not rows:
            raise UnknownTopic(f"there is no topic {self.topic}")
        topic_id, partition_count, configs = rows[0]
        overrides: dict[str, str] = configs or {}
        self._joined = _Topic(
            topic_id,
            partition_count,
            DeliveryPolicy.of_topic(overrides),
            key_header=topic_value(overrides, "idempotency.key.header"),
            tenant_header=topic_value(overrides, "idempotency.tenant.header"),
        )
        yield Ask(
            "worker/join_group",
            {"group_id": self.group_id, "topic_id": topic_id, "from_latest": self._from_latest},
        )

    def take(self, max_records: int) -> Script[list[Delivery]]:
        """Records for this worker, now; none if there are none."""
        if self._joined is None:
            yield from self.join()
        yield from self.sweep()
        taken: list[Delivery] = yield InTransaction(self._take(max_records))
        return taken

    def _take(self, max_records: int) -> Script[list[Delivery]]:
        policy = self.policy
        rows = yield Ask(
            "worker/take_deliveries",
            {
                "worker": self.name,
                "group_id": self.group_id,
                "topic_id": self._topic.topic_id,
                # The last attempt of a record is made alone, so that no other can spoil it.
                "max_records": max_records if policy.max_attempts > 1 else 1,
                "lease_ms": policy.ack_timeout_ms,
                "is_in_place": policy.ordering is Ordering.IN_PLACE,
                "max_unsettled": policy.max_unsettled,
            },
        )
        return [self._delivery(row, worker=self.name) for row in rows]

    def _delivery(self, row: Row, *, worker: str) -> Delivery:
        partition, offset, timestamp, key, value, names, values, attempts, last_error, first_at, last_at = row[:11]
        headers = headers_of(names, values)
        return Delivery(
            topic=self.topic,
            topic_id=self._topic.topic_id,
            partition=partition,
            offset=offset,
            timestamp=timestamp,
            key=key,
            value=value,
            headers=headers,
            identity=self._identity(headers),
            attempts=attempts,
            last_error=last_error,
            first_delivered_at=first_at,
            last_delivered_at=last_at,
            worker=worker,
        )

    def _identity(self, headers: Headers) -> Identity | None:
        """A key that the registry cannot hold is none: the record is delivered all the same."""
        if not self._uses_keys or not headers:
            return None
        return identity_of(headers, key_header=self._topic.key_header, tenant_header=self._topic.tenant_header)

    # --- working in one transaction -----------------------------------------------------------

    def run(self, *, batch: int, must_stop: Callable[[], bool], idle_seconds: float, until_idle: bool) -> Script[None]:
        """Take and work until told to stop; with `until_idle`, until there is nothing that could be taken now."""
        in_hand: list[Delivery] = []
        while not must_stop():
            if self._joined is not None:
                yield from self._look_for_partitions()
                yield from self.sweep()
            if not in_hand:
                in_hand = yield from self.take(batch)
            if in_hand:
                in_hand = yield from self.work(in_hand, take_next=batch)
            elif until_idle:
                return
            else:
                yield Pause(idle_seconds)
        if in_hand:
            yield from self.give_back(in_hand)

    def work(self, deliveries: Sequence[Delivery], *, take_next: int) -> Script[list[Delivery]]:
        """Let the handler work on records already taken; returns the next ones, taken in the same commit.

        Together if there are several: one transaction for all of them. If anything goes wrong there it is rolled back,
        and each gets a transaction of its own.
        """
        if len(deliveries) > 1:
            try:
                together, begun = yield InTransaction(self._effects(deliveries, take_next))
            except (ConnectionLost, GroupInUse):
                raise
            except Exception:  # noqa: BLE001, S110 - whatever it was, it is found again when each is alone
                pass
            else:
                _count(deliveries, begun, are_done=True)
                return list(together)
        taken: list[Delivery] = []
        in_hand = list(deliveries)
        while in_hand:
            delivery = in_hand.pop(0)
            taken, given_back = yield from self._work_alone(delivery, in_hand, take_next=0 if in_hand else take_next)
            in_hand = [other for other in in_hand if other not in given_back]
        return taken

    def _work_alone(
        self, delivery: Delivery, others: Sequence[Delivery], *, take_next: int
    ) -> Script[tuple[list[Delivery], list[Delivery]]]:
        """Returns the next deliveries, and which of the others were given back because of this one."""
        for left in reversed(range(MAX_UNDONE)):
            try:
                taken, begun = yield InTransaction(self._effects([delivery], take_next))
            except DeliveryLost:
                return [], []  # somebody else has it now
            except (ConnectionLost, GroupInUse):
                raise
            except UNDONE_ERRORS as error:
                if left == 0:
                    return [], (yield from self._fail(delivery, error, others))
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                return [], (yield from self._fail(delivery, error, others))
            else:
                _count([delivery], begun, are_done=True)
                rest = self._rest(delivery, others) if begun[delivery.place] is Begun.IN_FLIGHT else []
                if rest:
                    yield from self.give_back(rest)
                return taken, rest
        raise AssertionError("unreachable")

    def _fail(self, delivery: Delivery, error: Exception, others: Sequence[Delivery]) -> Script[list[Delivery]]:
        reason = str(error) if isinstance(error, Reject) else f"{type(error).__name__}: {error}"
        is_retryable = not isinstance(error, Reject)
        given_back: list[Delivery] = yield from self.nack(delivery, reason, is_retryable=is_retryable, others=others)
        return given_back

    def _rest(self, delivery: Delivery, others: Iterable[Delivery]) -> list[Delivery]:
        by_place = {other.place: other for other in others}
        return [by_place[place] for place in decide_rest(self.policy.ordering, delivery.place, by_place)]

    def _effects(
        self, deliveries: Sequence[Delivery], take_next: int
    ) -> Script[tuple[list[Delivery], dict[Any, Begun]]]:
        """One transaction: begin, the handler's writes, marks, records produced, answers and offsets, the next take.

        Returns the next deliveries, and which of these were begun; what somebody else has is postponed.
        """
        begun = yield from self._begin(deliveries)
        postponed = [one for one in deliveries if begun[one.place] is Begun.IN_FLIGHT]
        if postponed and len(deliveries) > 1 and self.policy.ordering is Ordering.IN_PLACE:
            raise _Alone
        done: list[Work[Any]] = []
        for delivery in deliveries:
            if begun[delivery.place] is Begun.STARTED:
                work: Work[Any] = Work(delivery, None)
                yield Call(work)
                done.append(work)
        yield from self._mark(done)
        if produced := [record for work in done for record in work.produced]:
            yield from append_records(produced, self._partition_counts)
        yield from self._settle(
            [
                _Answer(one, DeliveryState.AVAILABLE, POSTPONED_MS, is_uncounted=True)
                if one in postponed
                else _Answer(one, DeliveryState.ACKNOWLEDGED)
                for one in deliveries
            ]
        )
        taken = (yield from self._take(take_next)) if take_next else []
        return taken, begun

    def _begin(self, deliveries: Sequence[Delivery]) -> Script[dict[Any, Begun]]:
        """Begin the keys of records, each key once; records without one are simply started."""
        begun = {one.place: Begun.STARTED for one in deliveries}
        first: dict[Identity, Delivery] = {}
        for one in deliveries:
            if not is_for_group(one.headers, self.group_id):
                begun[one.place] = Begun.ALREADY_DONE
            elif one.identity is not None:
                first.setdefault(one.identity, one)
        said = yield from self._begin_keys(list(first))
        for one in deliveries:
            if one.identity is not None and begun[one.place] is Begun.STARTED:
                of_key = said[one.identity]
                # If there are several with a key, the first one is worked on in this very transaction.
                is_repeated = first[one.identity] is not one and of_key is Begun.STARTED
                begun[one.place] = Begun.ALREADY_DONE if is_repeated else of_key
        return begun

    def _begin_keys(self, identities: Sequence[Identity]) -> Script[dict[Identity, Begun]]:
        rows = yield Ask(
            "worker/begin_work",
            {
                "topic": self.topic,
                "group_id": self.group_id,
                "tenants": [one.tenant for one in identities],
                "keys": [one.key for one in identities],
                "lease_ms": self.policy.ack_timeout_ms,
                "owner": self.name,
            },
        )
        return {identities[place - 1]: Begun(said) for place, said in rows}

    def _mark(self, done: Sequence[Work[Any]]) -> Script[None]:
        keyed = [(work.delivery.identity, work.result) for work in done if work.delivery.identity is not None]
        if keyed:
            yield Ask(
                "worker/mark_keys",
                {
                    "topic": self.topic,
                    "group_id": self.group_id,
                    "tenants": [identity.tenant for identity, _ in keyed],
                    "keys": [identity.key for identity, _ in keyed],
                    "results": [result for _, result in keyed],
                    "owner": self.name,
                },
            )

    # --- working outside PostgreSQL -----------------------------------------------------------

    def begin(self, delivery: Delivery) -> Script[Begun]:
        """Begin a record's key in a commit of its own, before an effect outside PostgreSQL.

        ALREADY_DONE settles the delivery, IN_FLIGHT postpones it: then there is nothing to do.
        """
        begun: Begun = yield InTransaction(self._begin_outside(delivery))
        _count([delivery], {delivery.place: begun}, are_done=False)
        if begun is Begun.STARTED:
            self._begun.add(delivery)
        return begun

    def _begin_outside(self, delivery: Delivery) -> Script[Begun]:
        begun = (yield from self._begin([delivery]))[delivery.place]
        if begun is Begun.ALREADY_DONE:
            yield from self._settle([_Answer(delivery, DeliveryState.ACKNOWLEDGED)])
        elif begun is Begun.IN_FLIGHT:
            yield from self._settle([_Answer(delivery, DeliveryState.AVAILABLE, POSTPONED_MS, is_uncounted=True)])
        return begun

    def ack(self, delivery: Delivery, *, result: str | None, produced: Sequence[NewRecord]) -> Script[None]:
        """The effect happened: mark the key, write records, settle the delivery, in one commit."""
        work: Work[Any] = Work(delivery, None, result, list(produced))
        yield InTransaction(self._ack(work))
        if delivery in self._begun:
            WORKER_KEYS.labels("committed").inc()
        self._begun.discard(delivery)

    def _ack(self, work: Work[Any]) -> Script[None]:
        if work.delivery in self._begun:
            yield from self._mark([work])
        elif work.delivery.identity is not None:
            raise WorkerError("a record with a key must be begun before it is acknowledged")
        if work.produced:
            yield from append_records(work.produced, self._partition_counts)
        yield from self._settle([_Answer(work.delivery, DeliveryState.ACKNOWLEDGED)])

    def extend(self, delivery: Delivery) -> Script[None]:
        """More time, as much again as the ack timeout; DeliveryLost if it is too late."""
        yield InTransaction(self._extend(delivery))

    def _extend(self, delivery: Delivery) -> Script[None]:
        rows = yield Ask(
            "worker/extend_lease",
            {
                "group_id": self.group_id,
                **delivery.place._asdict(),
                "attempts": delivery.attempts,
                "worker": delivery.worker,
                "lease_ms": self.policy.ack_timeout_ms,
            },
        )
        is_ours = bool(rows)
        if is_ours and delivery in self._begun and delivery.identity is not None:
            ((is_ours,),) = yield Ask(
                "worker/extend_key",
                {
                    "topic": self.topic,
                    "group_id": self.group_id,
                    **delivery.identity._asdict(),
                    "lease_ms": self.policy.ack_timeout_ms,
                    "owner": self.name,
                },
            )
        if not is_ours:
            raise DeliveryLost("the delivery is not ours any more: it was not answered in time")

    # --- failing ------------------------------------------------------------------------------

    def nack(
        self, delivery: Delivery, reason: str, *, is_retryable: bool, others: Sequence[Delivery] = ()
    ) -> Script[list[Delivery]]:
        """The work failed: try again later, or give the record up. Returns which of the `others` in hand were given
        back, because they must not come before it."""
        policy = self.policy.of_record(delivery.headers)
        decision = decide_failure(
            policy, attempts=delivery.attempts, reason=reason, is_retryable=is_retryable, chance=self._chance()
        )
        rest = self._rest(delivery, others) if isinstance(decision, Retry) else []
        try:
            yield from self._end_attempts([(delivery, decision)], rest, must_be_expired=False)
        except DeliveryLost:
            return []  # it ran out of time while it failed: that is what counts
        if delivery.identity is not None:
            WORKER_KEYS.labels("failed").inc()
        return rest

    def sweep(self) -> Script[None]:
        """Now and then, look for deliveries that nobody answered in time."""
        interval = min(SWEEP_SECONDS, self.policy.ack_timeout_ms / 2000)
        if monotonic_seconds() - self._swept_at >= interval:
            yield from self._sweep(own_name=None)

    def _sweep(self, *, own_name: str | None) -> Script[None]:
        self._swept_at = monotonic_seconds()
        rows = yield InTransaction(self._find_expired(own_name))
        for row in rows:
            delivery = self._delivery(row, worker=row[11])
            policy = self.policy.of_record(delivery.headers)
            is_expired = row[12]
            if is_expired:
                decision = decide_timeout(policy, attempts=delivery.attempts)
            else:
                decision = decide_failure(
                    policy, attempts=delivery.attempts, reason=LOST_CONNECTION, is_retryable=True, chance=0
                )
            try:
                yield from self._end_attempts([(delivery, decision)], [], must_be_expired=is_expired)
            except (DeliveryLost, *UNDONE_ERRORS):
                continue  # answered, or swept by another, a moment ago

    def _find_expired(self, own_name: str | None) -> Script[list[Row]]:
        rows: list[Row] = yield Ask(
            "worker/find_expired",
            {
                "group_id": self.group_id,
                "topic_id": self._topic.topic_id,
                "own_name": own_name,
                "limit": MAX_SWEPT,
            },
        )
        return rows

    def give_back(self, deliveries: Sequence[Delivery]) -> Script[None]:
        """Deliveries that the handler did not get after all: they are not counted."""
        answers = [_Answer(one, DeliveryState.AVAILABLE, is_uncounted=True) for one in deliveries]
        # Else they ran out of time, and are delivered again anyway.
        with suppress(DeliveryLost):
            yield InTransaction(self._settle(answers))

    def _end_attempts(
        self,
        failed: Sequence[tuple[Delivery, Retry | DeadLetter]],
        rest: Sequence[Delivery],
        *,
        must_be_expired: bool,
    ) -> Script[None]:
        if any(isinstance(decision, DeadLetter) for _, decision in failed):
            yield from self._ensure_dead_letter_topic()
        try:
            yield InTransaction(self._end_attempts_now(failed, rest, must_be_expired=must_be_expired))
        except UnknownTopic:  # somebody deleted the dead letters
            self._has_dead_letter_topic = False
            yield from self._ensure_dead_letter_topic()
            yield InTransaction(self._end_attempts_now(failed, rest, must_be_expired=must_be_expired))

    def _end_attempts_now(
        self,
        failed: Sequence[tuple[Delivery, Retry | DeadLetter]],
        rest: Sequence[Delivery],
        *,
        must_be_expired: bool,
    ) -> Script[None]:
        answers = [_Answer(one, DeliveryState.AVAILABLE, is_uncounted=True) for one in rest]
        counts = {"retried": 0, "timed_out": 0, "dead_lettered": 0, "redriven": 0}
        for delivery, decision in failed:
            counts["timed_out"] += must_be_expired
            if (yield from self._fail_key(delivery, decision, is_timeout=must_be_expired)) is Begun.ALREADY_DONE:
                # A copy of it has succeeded meanwhile.
                answers.append(_Answer(delivery, DeliveryState.ACKNOWLEDGED))
            elif isinstance(decision, Retry):
                counts["retried"] += 1
                answers.append(_Answer(delivery, DeliveryState.AVAILABLE, decision.delay_ms, decision.last_error))
            else:
                counts["dead_lettered"] += 1
                yield from self._bury(delivery, decision.last_error)
                answers.append(_Answer(delivery, DeliveryState.ARCHIVED, error=decision.last_error))
        yield from self._settle(answers, must_be_expired=must_be_expired)
        yield Ask("worker/count_outcomes", dict(counts))

    def _fail_key(self, delivery: Delivery, decision: Retry | DeadLetter, *, is_timeout: bool) -> Script[Begun]:
        """Mark the record's key as failed. What was begun inside the transaction that failed was rolled back with it,
        so it is begun again for that. Whoever timed out may still hold it; its lease ends by itself."""
        identity = delivery.identity
        if identity is None or not is_for_group(delivery.headers, self.group_id):
            return Begun.STARTED
        if is_timeout and isinstance(decision, Retry):
            return Begun.STARTED
        if delivery not in self._begun:
            begun = (yield from self._begin([delivery]))[delivery.place]
            if begun is not Begun.STARTED:
                return begun
        yield Ask(
            "worker/fail_key",
            {
                "topic": self.topic,
                "group_id": self.group_id,
                **identity._asdict(),
                "reason": decision.last_error,
                "owner": self.name,
            },
        )
        self._begun.discard(delivery)
        return Begun.STARTED

    def _bury(self, delivery: Delivery, error: str) -> Script[None]:
        """Append the dead letter, unless its key has one already."""
        dlq_topic = dead_letter_topic(self.topic)
        tenant, key = delivery.identity or ("", None)
        facts = {
            "topic": self.topic,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "group": self.group_id,
            "attempts": delivery.attempts,
            "error": error,
            "tenant": tenant or None,
            "key": key,
            "timestamp": delivery.timestamp.isoformat(),
            "first-delivered-at": delivery.first_delivered_at.isoformat(),
            "last-delivered-at": delivery.last_delivered_at.isoformat(),
        }
        rows = yield Ask(
            "worker/insert_dead_letter",
            {
                "group_id": self.group_id,
                "topic": self.topic,
                "partition": delivery.partition,
                "offset": delivery.offset,
                "dlq_topic": dlq_topic,
                "tenant": tenant,
                "key": key,
                "attempts": delivery.attempts,
                "error": error,
                "first_delivered_at": delivery.first_delivered_at,
                "last_delivered_at": delivery.last_delivered_at,
            },
        )
        if not rows:
            raise UnknownTopic(f"there is no topic {dlq_topic}")
        dead_letter_id, is_new = rows[0]
        if not is_new:
            return
        counts = yield from _count_partitions({dlq_topic}, {})
        headers = dead_letter_headers(delivery.headers, facts)
        partition = delivery.partition % counts[dlq_topic]
        record = NewRecord(dlq_topic, delivery.value, delivery.key, headers, partition)
        ((_, partition, offset),) = yield from append_records([record], counts)
        yield Ask(
            "worker/place_dead_letter",
            {"dead_letter_id": dead_letter_id, "partition": partition, "offset": offset},
        )

    def _ensure_dead_letter_topic(self) -> Script[None]:
        if not self._has_dead_letter_topic:
            yield InTransaction(self._create_dead_letter_topic())
            self._has_dead_letter_topic = True

    def _create_dead_letter_topic(self) -> Script[None]:
        name, count = dead_letter_topic(self.topic), self._topic.partition_count
        rows = yield Ask("topics/insert_topic", {"name": name, "partition_count": count})
        if rows:
            topic_id = rows[0][0]
            yield Ask("topics/insert_partitions", {"topic_id": topic_id, "first": 0, "last": count})
            yield Ask("topics/create_storage", {"topic_id": topic_id})

    # --- answering ----------------------------------------------------------------------------

    def _settle(self, answers: Sequence[_Answer], *, must_be_expired: bool = False) -> Script[None]:
        yield Ask(
            "worker/settle_deliveries",
            {
                "group_id": self.group_id,
                "topic_ids": [one.delivery.topic_id for one in answers],
                "partitions": [one.delivery.partition for one in answers],
                "offsets": [one.delivery.offset for one in answers],
                "attempts": [one.delivery.attempts for one in answers],
                "workers": [one.delivery.worker for one in answers],
                "states": [str(one.state) for one in answers],
                "delays_ms": [one.delay_ms for one in answers],
                "errors": [one.error for one in answers],
                "are_uncounted": [one.is_uncounted for one in answers],
                "must_be_expired": must_be_expired,
            },
        )

    def _look_for_partitions(self) -> Script[None]:
        """Now and then: the topic may have grown, or its settings changed."""
        if monotonic_seconds() - self._looked_at >= LOOK_AROUND_SECONDS:
            yield InTransaction(self._join())


def append_records(records: Sequence[NewRecord], known: dict[str, int]) -> Script[list[Row]]:
    """Append records in the open transaction; returns topic, partition and offset of each. `known`: how many partitions
    topics have, as far as they were looked up before."""
    if any(record.partition is None for record in records):
        yield from _count_partitions({one.topic for one in records if one.partition is None}, known)
    headers = [header for record in records for header in record.headers]
    rows: list[Row] = yield Ask(
        "worker/append_records",
        {
            "topics": [one.topic for one in records],
            "partitions": [_partition(one, known) for one in records],
            "keys": [one.key for one in records],
            "values": [one.value for one in records],
            "header_counts": [len(one.headers) for one in records],
            "header_names": [name for name, _ in headers],
            "header_values": [value for _, value in headers],
        },
    )
    return rows


def _count_partitions(topics: set[str], known: dict[str, int]) -> Script[dict[str, int]]:
    if missing := sorted(topics - known.keys()):
        rows = yield Ask("worker/count_partitions", {"topics": missing})
        known.update(rows)
        if absent := sorted(topics - known.keys()):
            raise UnknownTopic(f"there is no topic {absent[0]}")
    return known


def _partition(record: NewRecord, counts: dict[str, int]) -> int:
    """As Kafka's own client chooses: by the key's hash, else any."""
    if record.partition is not None:
        return record.partition
    if record.key is None:
        return random.randrange(counts[record.topic])  # noqa: S311 - no secret
    return (int(murmur2(record.key)) & 0x7FFFFFFF) % counts[record.topic]


def _validate(topic: str, group_id: str) -> None:
    try:
        validate_topic_name(topic)
        validate_topic_name(dead_letter_topic(topic))
    except KafkaError as error:
        raise WorkerError(error.message) from error
    if not group_id or "\0" in group_id:
        raise WorkerError("a group needs an id, without NUL characters")


def _count(deliveries: Iterable[Delivery], begun: Mapping[Any, Begun], *, are_done: bool) -> None:
    """Tell monitoring of keys whose transaction was committed."""
    for delivery in deliveries:
        if delivery.identity is None:
            continue
        WORKER_KEYS.labels(OUTCOMES[begun[delivery.place]]).inc()
        if are_done and begun[delivery.place] is Begun.STARTED:
            WORKER_KEYS.labels("committed").inc()
