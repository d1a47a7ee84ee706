"""Which schema this version needs, and whether a database has it.

A start that finds everything in place asks one question; Alembic is loaded only where there is work or a refusal.
"""

from __future__ import annotations

from functools import cache

import psycopg

from gateway.resources import migrations_dir

__all__ = ["check_schema", "head_version", "migrate", "migration_sql"]

CONNECT_TIMEOUT_S = 10
VERSION = "SELECT version_num FROM kafka.alembic_version"


def migrate(url: str) -> None:
    """Apply what is missing, in one transaction; of several callers one does it and the rest wait."""
    if not _is_current(url):
        from gateway.storage import migrations

        migrations.migrate(url)


def check_schema(url: str) -> None:
    """StartupError unless the database has exactly the schema this version was written for."""
    if not _is_current(url):
        from gateway.storage import migrations

        migrations.check_schema(url)


def migration_sql(url: str | None = None) -> str:
    """What `migrate` would run: all of it, or only what the database at `url` lacks."""
    from gateway.storage import migrations

    return migrations.migration_sql(url)


@cache
def head_version() -> str:
    """The newest migration's number, with which its file's name begins."""
    return max(path.name.partition("_")[0] for path in migrations_dir().glob("versions/*.py"))


def _is_current(url: str) -> bool:
    """Any error counts as no: what then looks closer tells what is wrong."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S, application_name="tablewire migrate") as database:
            return database.execute(VERSION).fetchone() == (head_version(),)
    except psycopg.Error:
        return False
