"""Producer ids: who may write with sequences."""

from __future__ import annotations

from typing import NamedTuple

from gateway.storage.database import Database

__all__ = ["Producer", "Producers"]


class Producer(NamedTuple):
    id: int
    epoch: int


class Producers:
    """Gives out producer ids from kafka.producer_ids."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, client_id: str | None) -> Producer:
        """An id that nobody had before, in this or any other gateway."""
        # PostgreSQL's text cannot hold a NUL, and a client id is for people to read.
        readable = None if client_id is None else client_id.replace("\0", "\N{REPLACEMENT CHARACTER}")
        ((producer_id, epoch),) = await self._database.rows("producers/insert_producer", client_id=readable)
        return Producer(producer_id, epoch)
