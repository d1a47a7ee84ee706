"""A request on a connection that its client gave up must not reach the client's next transaction.

Clients of the classic protocol keep one epoch over many transactions, so neither epoch nor state tells an EndTxn or a
Produce that was held up in the network from one of the transaction that is open now (KAFKA-17754). But a client
sends a kind of request over one connection at a time, and opens another only after it gave up the first. So the rule:
only the newest connection is listened to. A request from an older one is not answered; the connection is closed, and
a client that still uses it comes back over a new one.

Among the connections of one gateway the newest is the one accepted last. What is said about a transaction must hold
among all gateways: the transaction's row names its speaker, and a connection of another gateway becomes the speaker
only if it was accepted after its gateway had read the row as it still is. docs/transactions.md has the proof and the
limits.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeVar

__all__ = ["NewestConnections", "RequestKind", "Speaker", "Spoken", "StaleConnection"]

K = TypeVar("K")
V = TypeVar("V")

MAX_REMEMBERED = 100_000


class RequestKind(enum.Enum):
    """librdkafka and others talk to coordinators over connections of their own."""

    PRODUCE = enum.auto()
    COMMIT_OFFSETS = enum.auto()


class StaleConnection(Exception):
    """The producer has a newer connection: whatever comes over this one was given up long ago."""


class Speaker(NamedTuple):
    """Over which connection of which gateway process a producer last spoke about its transactions."""

    gateway: int
    connection: int


class Spoken(NamedTuple):
    """A transaction's row as a gateway has read it: who speaks, and when it last began, ended or got an epoch."""

    producer_id: int
    speaker: Speaker | None
    updated_at_us: int


class NewestConnections:
    """Which connection each producer used last. Connections are numbered in the order they are accepted."""

    def __init__(self, *, gateway: int) -> None:
        """`gateway`: a number that no other process has, nor had."""
        self._gateway = gateway
        self._accepted = 0
        self._newest: dict[tuple[RequestKind, int], int] = {}
        self._seen: dict[int, tuple[Spoken, int]] = {}

    def accept(self) -> int:
        """The number of a connection that was just accepted."""
        self._accepted += 1
        return self._accepted

    def hear(self, kind: RequestKind, *, producer_id: int, connection: int) -> None:
        """Note a request to this gateway; StaleConnection if a newer connection was heard from before."""
        newest = self._newest.get((kind, producer_id), -1)
        if connection < newest:
            raise StaleConnection(f"producer {producer_id} has a newer connection")
        if connection > newest:
            self._newest.pop((kind, producer_id), None)
            self._newest[kind, producer_id] = connection
            _forget_oldest_half(self._newest)

    def read(self, spoken: Spoken) -> None:
        """This is how a transaction's row is: a connection that is accepted from now on is newer than its speaker."""
        if self._seen.get(spoken.producer_id, (None, 0))[0] != spoken:
            self._seen[spoken.producer_id] = (spoken, self._accepted)
            _forget_oldest_half(self._seen)

    def speaker(self, connection: int) -> Speaker:
        """A connection of this gateway, as transactions' rows name it."""
        return Speaker(self._gateway, connection)

    def decide_speaker(self, spoken: Spoken, *, connection: int) -> Speaker:
        """Who speaks for the producer after this request about its transaction; StaleConnection if it came too late.

        `spoken` is the transaction's row, which must be held.
        """
        producer_id, speaker, _ = spoken
        asked = self.speaker(connection)
        if speaker is None or speaker == asked:
            return asked
        if speaker.gateway == self._gateway:
            if connection < speaker.connection:
                raise StaleConnection(f"producer {producer_id} has a newer connection")
            return asked
        seen, accepted_by_then = self._seen.get(producer_id, (None, 0))
        if seen != spoken:
            # Whether this connection is older than the other gateway's nobody can say. One that comes now is newer.
            self.read(spoken)
            raise StaleConnection(f"producer {producer_id} last spoke to another gateway; it must connect anew")
        if connection <= accepted_by_then:
            raise StaleConnection(f"producer {producer_id} spoke to another gateway after this connection")
        del self._seen[producer_id]
        return asked


def _forget_oldest_half(known: dict[K, V]) -> None:
    """Keep the memory bounded."""
    if len(known) > MAX_REMEMBERED:
        for key in list(known)[: MAX_REMEMBERED // 2]:
            del known[key]
