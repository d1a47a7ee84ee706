"""What a worker's caller sees: deliveries, the work on one of them, and records to be produced with it."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.domain.deliveries import Headers, Place
from gateway.domain.idempotency import Identity

__all__ = ["Begun", "Delivery", "NewRecord", "Work"]

ConnectionT = TypeVar("ConnectionT")


class Begun(enum.StrEnum):
    """What kafka.begin_once says."""

    STARTED = "started"
    ALREADY_DONE = "already_done"
    IN_FLIGHT = "in_flight"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record in a worker's hands."""

    topic: str
    topic_id: int
    partition: int
    offset: int
    timestamp: dt.datetime
    key: bytes | None
    value: bytes | None
    headers: Headers
    identity: Identity | None
    attempts: int
    """How often it was delivered, this time included."""
    last_error: str | None
    """Why the delivery before failed; `ack_timeout` if nobody answered it."""
    first_delivered_at: dt.datetime
    last_delivered_at: dt.datetime
    worker: str

    @property
    def place(self) -> Place:
        return Place(self.topic_id, self.partition, self.offset)

    def header(self, name: str) -> bytes | None:
        """The last value of a header; None if there is none."""
        return next((value for found, value in reversed(self.headers) if found == name), None)


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written with the work. Without a partition, its key decides, else chance."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


@dataclass(slots=True)
class Work(Generic[ConnectionT]):
    """One delivery and the transaction in which its effects, its mark and its offset become true."""

    delivery: Delivery
    connection: ConnectionT
    """Inside the transaction: whatever is written through it commits with the delivery, or not at all."""
    result: str | None = None
    """A reference to keep in the registry of keys, such as the number of a booking."""
    produced: list[NewRecord] = field(default_factory=list)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
    ) -> None:
        """Write a record with the work: it is appended just before the commit, so that partitions are held briefly."""
        self.produced.append(NewRecord(topic, value, key, tuple(headers), partition))
