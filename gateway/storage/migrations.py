"""Alembic's part: bring the schema up to date, print what that would take, or say why it does not fit."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gateway.errors import StartupError
from gateway.resources import migrations_dir
from gateway.storage.jdbc import servers_of
from gateway.storage.schema import head_version

__all__ = ["SCHEMA", "check_schema", "migrate", "migration_sql", "schema_differences"]

SCHEMA = "kafka"
MIGRATION_LOCK_CLASS = 1
"""Two-number advisory key (class, 0); one-number keys are partitions, see gateway/storage/locks.py."""

LOCK_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_S = 10
EVERYTHING = "base:head"


def migrate(url: str) -> None:
    """Apply what is missing, in one transaction; of several callers one does it and the rest wait."""
    with _transaction(url) as connection:
        connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK_CLASS}, 0)"))
        if not _has_schema(connection):
            connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        _refuse_unknown_version(_version(connection))
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def migration_sql(url: str | None = None) -> str:
    """What `migrate` would run: all of it, or only what the database at `url` lacks."""
    span = EVERYTHING
    if url is not None:
        with _transaction(url) as connection:
            version = _version(connection)
        _refuse_unknown_version(version)
        if version == head_version():
            return ""
        span = f"{version or 'base'}:head"
    output = io.StringIO()
    config = _config(output)
    command.upgrade(config, span, sql=True)
    return output.getvalue()


def check_schema(url: str) -> None:
    """StartupError unless the database has exactly the schema this version was written for."""
    with _transaction(url) as connection:
        version = _version(connection)
    _refuse_unknown_version(version)
    if version is None:
        raise StartupError("The database holds no Tablewire schema yet: run `tablewire migrate`.")
    if version != head_version():
        raise StartupError(
            f"The database's schema is behind (at {version}, this version needs {head_version()}): "
            "run `tablewire migrate`."
        )


def schema_differences(url: str) -> list[str]:
    """Where the database and gateway.storage.tables disagree, in Alembic's words; empty when they agree."""
    # Not at the top: only a test asks.
    from alembic.autogenerate import compare_metadata

    from gateway.storage.tables import metadata

    options = {
        "version_table_schema": SCHEMA,
        "include_schemas": True,
        "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
    }
    with _transaction(url) as connection:
        context = MigrationContext.configure(connection, opts=options)
        found = compare_metadata(context, metadata)
    # Comments are for people in psql and are written in the migrations alone.
    return [text for difference in found if "comment" not in (text := repr(difference)).split(",", 1)[0]]


@contextmanager
def _transaction(url: str) -> Iterator[Connection]:
    """Database errors leave as one sentence; the URL's password is in none of them."""
    where = _where(url)
    # libpq reads the address, as it does for the gateway's own sessions: it may name several servers.
    # Prepared statements would outlive a transaction behind PgBouncer.
    connect = partial(
        psycopg.connect,
        url,
        connect_timeout=CONNECT_TIMEOUT_S,
        application_name="tablewire migrate",
        prepare_threshold=None,
    )
    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as failed:
        if isinstance(failed.orig, LockNotAvailable):
            raise StartupError(f"Another migration of {where} is still running: try again later.") from None
        said = (str(failed.orig).strip().splitlines() or ["no answer"])[0].rstrip(".")
        raise StartupError(f"The database at {where} cannot be used: {said}.") from failed
    finally:
        engine.dispose()


def _where(url: str) -> str:
    """The server or servers and the database, for people."""
    try:
        given = conninfo_to_dict(url)
        return f"{servers_of(given)}/{given.get('dbname')}"
    except (psycopg.ProgrammingError, ValueError):
        raise StartupError("The database URL cannot be understood: it must be postgresql://…") from None


def _has_schema(connection: Connection) -> bool:
    found = connection.execute(text("SELECT to_regnamespace(:name) IS NOT NULL"), {"name": SCHEMA})
    return bool(found.scalar_one())


def _version(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()


def _refuse_unknown_version(version: str | None) -> None:
    if version is not None and version not in {script.revision for script in _scripts().walk_revisions()}:
        raise StartupError(
            f"The database's schema is ahead (at {version}, this version knows up to {head_version()}): "
            "it was migrated by a newer Tablewire, so run that one."
        )


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config(output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output) if output is not None else Config()
    # A percent sign in a path would be read as interpolation.
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    return config
