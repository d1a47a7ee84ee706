"""The gateways on this database. Whether one lives is judged by the database's clock alone."""

from __future__ import annotations

from typing import NamedTuple

from psycopg import AsyncConnection

from gateway.domain.placement import Node
from gateway.storage.database import Database, Row, Transaction

__all__ = ["BrokerConnection", "Holder"]


class Holder(NamedTuple):
    """Who has a node id, and when it last gave a sign of life."""

    host: str
    port: int
    epoch: int
    heartbeat_ms: int


class BrokerConnection:
    """A connection for heartbeats alone: they must not wait behind anybody's query."""

    def __init__(self, connection: AsyncConnection[Row], *, session_timeout_ms: int) -> None:
        self._connection = connection
        self._source = Transaction(connection)
        self._session_timeout_ms = session_timeout_ms

    @classmethod
    async def open(cls, database: Database, *, session_timeout_ms: int) -> BrokerConnection:
        return cls(await database.connect(), session_timeout_ms=session_timeout_ms)

    async def close(self) -> None:
        await self._connection.close()

    async def register(self, node: Node, *, http_address: str) -> int | None:
        """Take the node's id and return the epoch it is held in; None when a live gateway has it."""
        rows = await self._source.rows(
            "brokers/register_broker",
            broker_id=node.node_id,
            host=node.host,
            port=node.port,
            http_address=http_address,
            session_timeout_ms=self._session_timeout_ms,
        )
        return rows[0][0] if rows else None

    async def find(self, node_id: int) -> Holder | None:
        rows = await self._source.rows("brokers/find_broker", broker_id=node_id)
        return Holder(*rows[0]) if rows else None

    async def beat(self, node_id: int, *, epoch: int) -> bool:
        """Say that the gateway lives; False when its epoch is over."""
        return bool(
            await self._source.rows(
                "brokers/beat", broker_id=node_id, epoch=epoch, session_timeout_ms=self._session_timeout_ms
            )
        )

    async def list_live(self) -> list[Node]:
        rows = await self._source.rows("brokers/list_live", session_timeout_ms=self._session_timeout_ms)
        return [Node(*row) for row in rows]

    async def deregister(self, node_id: int, *, epoch: int) -> None:
        await self._source.rows("brokers/deregister_broker", broker_id=node_id, epoch=epoch)
