"""Producer ids: who may write with sequences."""

from __future__ import annotations

from gateway.domain.producers import Bump, Producer, decide_init
from gateway.storage import producers as storage
from gateway.storage.database import Database, Row
from gateway.storage.keys import PartitionKey

__all__ = ["Producers", "readable"]


class Producers:
    """Gives out producer ids and epochs from kafka.producer_ids."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def init(self, asked: Producer, *, client_id: str | None) -> Producer:
        """The id and epoch to write with, the same through any gateway. A producer that names an old epoch is
        fenced; of two that name the same one, the second is."""
        async with self._database.transaction() as transaction:
            newest_epoch = await storage.lock_epoch(transaction, asked.id) if asked.id >= 0 else None
            decision = decide_init(asked, newest_epoch=newest_epoch)
            if isinstance(decision, Bump):
                await storage.raise_epoch(transaction, asked.id, decision.epoch)
                return Producer(asked.id, decision.epoch)
            return Producer(*await storage.insert(transaction, readable(client_id)))

    async def list_active(self, key: PartitionKey) -> list[Row]:
        return await storage.list_active(self._database, topic_id=key.topic_id, partition=key.partition)


def readable(client_id: str | None) -> str | None:
    """PostgreSQL's text cannot hold a NUL, and a client id is for people to read."""
    return None if client_id is None else client_id.replace("\0", "\N{REPLACEMENT CHARACTER}")
