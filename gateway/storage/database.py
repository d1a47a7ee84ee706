"""Connections to PostgreSQL: a pool for reads and short statements, and single ones for writers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import structlog
from psycopg import AsyncConnection, IsolationLevel
from psycopg.errors import InsufficientPrivilege
from psycopg.pq.abc import PGresult
from psycopg_pool import AsyncConnectionPool

from gateway.storage.connections import Connection, Row
from gateway.storage.loaders import TimestampMsLoader
from gateway.storage.statements import statement

__all__ = ["Database", "Row", "Transaction"]

log = structlog.get_logger()

Parameters = Mapping[str, Any]

MAX_WAIT_SECONDS = 3.0

RECONNECT_SECONDS = 2.0
"""The pool doubles its pauses without limit; it starts over before they grow, so that a database that was away
for long is used as soon as it is back."""


class Transaction:
    """Statements that become true together."""

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self._connection = connection

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(statement(name), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def rows_planned_anew(self, name: str, /, **parameters: object) -> list[Row]:
        """The same, planned for these values and the tables as they are now."""
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(statement(name), parameters, prepare=False)
        return await cursor.fetchall() if cursor.description else []


class Database:
    """One PostgreSQL database, its pool and its limits."""

    def __init__(self, url: str, *, connections: int, timeout_ms: int, prepared_statements: bool) -> None:
        self.prepares_statements = prepared_statements
        self._url = url
        self._timeout_seconds = timeout_ms / 1000
        self._keywords: dict[str, Any] = {
            "autocommit": True,
            "application_name": "tablewire",
            "connect_timeout": max(2, timeout_ms // 1000),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "prepare_threshold": 5 if prepared_statements else None,
        }
        if prepared_statements:
            # Start-up options do not pass PgBouncer's transaction pooling, for which the setting is off.
            self._keywords["options"] = (
                f"-c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms} -c timezone=UTC"
                f" -c idle_in_transaction_session_timeout={2 * timeout_ms}"
            )
        self._history: Row | None = None
        self._on_other_history: Callable[[], None] | None = None
        self._connections = connections
        self._pool = AsyncConnectionPool[Connection](
            url,
            connection_class=Connection,
            kwargs=self._keywords,
            min_size=1,
            max_size=connections,
            max_waiting=10_000,
            # Requests of a connection wait one after the other: together they must be told before a client gives up.
            timeout=min(MAX_WAIT_SECONDS, self._timeout_seconds),
            configure=self._configure,
            reconnect_timeout=RECONNECT_SECONDS,
            reconnect_failed=self._start_over,
            open=False,
        )

    def watch_history(self, on_other: Callable[[], None]) -> None:
        """Call `on_other`, before anything is read, whenever the database goes on from another history: what was read
        of it earlier may never have been."""
        self._on_other_history = on_other

    async def open(self) -> None:
        """Connect; raises psycopg.OperationalError or PoolTimeout when the database cannot be reached."""
        probe = await self.connect()
        await probe.close()
        await self._pool.open(wait=True, timeout=self._timeout_seconds)

    async def close(self) -> None:
        await self._pool.close(timeout=2)

    async def connect(self) -> Connection:
        """A connection outside the pool, for one owner."""
        async with asyncio.timeout(self._timeout_seconds):
            connection = await Connection.connect(self._url, **self._keywords)
            try:
                await self._configure(connection)
            except BaseException:
                await connection.close()
                raise
        return connection

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        """Run the statement sql/<name>.sql by itself."""
        async with asyncio.timeout(self._timeout_seconds), self._connection() as connection:
            return await Transaction(connection).rows(name, **parameters)

    async def result(self, name: str, /, **parameters: object) -> PGresult:
        """Run a statement that returns rows by itself; they stay as they came, in binary form."""
        async with asyncio.timeout(self._timeout_seconds), self._connection() as connection:
            cursor = connection.cursor(binary=True)
            await cursor.execute(statement(name), parameters)
            assert cursor.pgresult is not None
            return cursor.pgresult

    async def execute(self, query: LiteralString, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement whose text is made elsewhere (SQLAlchemy Core)."""
        async with asyncio.timeout(self._timeout_seconds), self._connection() as connection:
            cursor = connection.cursor(binary=True)
            await cursor.execute(query, parameters)
            return await cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with (
            asyncio.timeout(self._timeout_seconds),
            self._connection() as connection,
            connection.transaction(),
        ):
            yield Transaction(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with self._pool.connection() as connection:
            yield connection

    async def _start_over(self, pool: AsyncConnectionPool[Connection]) -> None:
        """The pool has given up on a connection: let it begin with a new one."""
        await pool.resize(0, self._connections)
        await pool.resize(1, self._connections)

    async def _configure(self, connection: AsyncConnection[Row]) -> None:
        connection.adapters.register_loader("timestamptz", TimestampMsLoader)
        # Whatever the database's default: what is read after a lock was waited for must be what its holder left.
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await self._look_at_history(connection)

    async def _look_at_history(self, connection: AsyncConnection[Row]) -> None:
        """A database is lost with its connections, so each new one is asked."""
        try:
            cursor = await connection.execute(statement("topics/load_history"))
        except InsufficientPrivilege:
            return  # some providers keep it to themselves
        found, before = await cursor.fetchone(), self._history
        if found is None or None in found:
            return
        self._history = found
        if before is not None and before != found:
            log.warning(
                "the database goes on from another history: a standby took over, or a backup was restored. "
                "Records that it does not have are lost, even if they were acknowledged",
                system=found[0],
                timeline=found[1],
                before="/".join(before),
            )
            if self._on_other_history is not None:
                self._on_other_history()
