"""A request on a connection that its client gave up must not reach the client's next transaction.

Clients of the classic protocol keep one epoch over many transactions, so neither epoch nor state tells an EndTxn or a
Produce that was held up in the network from one of the transaction that is open now (KAFKA-17754). But a client
sends a kind of request to a gateway over one connection at a time, and opens another only after it gave up the
first. So the rule: per producer and kind of request, only the newest connection that the gateway has heard from is
listened to. A request from an older one is not answered; the connection is closed.
"""

from __future__ import annotations

import enum

__all__ = ["NewestConnections", "RequestKind", "StaleConnection"]

MAX_REMEMBERED = 100_000


class RequestKind(enum.Enum):
    """librdkafka and others talk to coordinators over connections of their own."""

    PRODUCE = enum.auto()
    COORDINATE = enum.auto()
    COMMIT_OFFSETS = enum.auto()


class StaleConnection(Exception):
    """The producer has a newer connection: whatever comes over this one was given up long ago."""


class NewestConnections:
    """Which connection each producer used last. Connections are numbered in the order they were accepted."""

    def __init__(self) -> None:
        self._newest: dict[tuple[RequestKind, int], int] = {}

    def hear(self, kind: RequestKind, *, producer_id: int, connection: int) -> None:
        """Note a request; StaleConnection if a newer connection was heard from before."""
        newest = self._newest.get((kind, producer_id), -1)
        if connection < newest:
            raise StaleConnection(f"producer {producer_id} has a newer connection")
        if connection > newest:
            if len(self._newest) >= MAX_REMEMBERED:
                # The oldest half goes; those producers are as exposed as with Apache Kafka until they speak again.
                for key in list(self._newest)[: MAX_REMEMBERED // 2]:
                    del self._newest[key]
            self._newest.pop((kind, producer_id), None)
            self._newest[kind, producer_id] = connection
