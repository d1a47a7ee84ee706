"""The database that a pipeline reads and writes: the gateway's own, found by the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from gateway.config import Settings, load_settings
from gateway.errors import PipelineError, StartupError
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.jdbc import jdbc_address
from gateway.storage.locks import NumberedLock
from gateway.storage.statements import statement

__all__ = ["Connection", "DatabaseUnavailable", "PipelineDatabase", "Source", "connected", "hold_lock"]

DRIVER = "org.postgresql.Driver"
CONNECT_TIMEOUT_S = 10
PREPARE_THRESHOLD = 5
"""How often a statement is sent before the server keeps it prepared, as both drivers have it by default."""

Connection = psycopg.Connection[tuple[Any, ...]]


class DatabaseUnavailable(PipelineError):
    """The database cannot be found or reached."""


@dataclass(frozen=True)
class PipelineDatabase:
    """Its URL carries a password, so it is never printed."""

    url: str = field(repr=False)
    prepared_statements: bool = True
    """False behind a pooler that gives a session's statements to others, as PgBouncer's transaction pooling may."""

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> PipelineDatabase:
        """The database of `settings`, or of the environment and tablewire.toml; else the embedded one."""
        settings = settings or load_settings()
        if settings.database_url is not None:
            return cls(settings.database_url, settings.prepared_statements)
        try:
            return cls(EmbeddedPostgres(settings.data_dir).saved_url())
        except StartupError as missing:
            raise DatabaseUnavailable(f"{missing} Or set TABLEWIRE_DATABASE_URL.") from None

    def connect(self, *, autocommit: bool = True) -> Connection:
        try:
            return psycopg.connect(
                self.url,
                autocommit=autocommit,
                application_name="tablewire pipeline",
                connect_timeout=CONNECT_TIMEOUT_S,
                prepare_threshold=PREPARE_THRESHOLD if self.prepared_statements else None,
            )
        except psycopg.OperationalError as refused:
            reason = (str(refused).strip().splitlines() or ["it does not answer"])[0]
            raise DatabaseUnavailable(
                f"The database cannot be reached: {reason}. Start the gateway with `tablewire serve` (or `make run`), "
                "or set TABLEWIRE_DATABASE_URL."
            ) from refused

    @property
    def jdbc_url(self) -> str:
        """Without user and password, which are in `jdbc_properties`: Spark prints URLs."""
        return jdbc_address(self.url).url

    @property
    def jdbc_properties(self) -> dict[str, str]:
        """User, password, driver and what it must do without, as DataFrameReader.jdbc takes them."""
        address = jdbc_address(self.url)
        given = {"user": address.user, "password": address.password, "driver": DRIVER}
        if not self.prepared_statements:
            given["prepareThreshold"] = "0"
        return {name: value for name, value in given.items() if value is not None}


Source = PipelineDatabase | Settings | Connection | str | None
"""What a function can find its database in: a connection, an address, settings, or (None) the environment."""


@contextmanager
def connected(source: Source) -> Iterator[Connection]:
    """A connection: the one given, which stays open and whose transaction goes on, or a new one for this block."""
    if isinstance(source, psycopg.Connection):
        yield source
        return
    if isinstance(source, str):
        source = PipelineDatabase(source)
    database = source if isinstance(source, PipelineDatabase) else PipelineDatabase.from_settings(source)
    with database.connect() as connection:
        yield connection


def hold_lock(connection: Connection, lock: NumberedLock) -> bool:
    """Take the lock if it is free, until the transaction ends: it passes PgBouncer, and is free the moment its process
    is gone."""
    parameters = {"class_id": lock.class_id, "number": lock.number}
    found = connection.execute(statement("pipeline/hold_lock"), parameters).fetchone()
    return bool(found and found[0])
