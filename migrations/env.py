"""Alembic's entry: runs the migrations on the connection it is handed, or prints them as SQL.

gateway.storage.migrations calls it, with the lock and the timeouts already in place; `alembic` itself is not
used at run time, so there is no alembic.ini.
"""

from __future__ import annotations

from alembic import context

from gateway.storage.tables import metadata

VERSION_SCHEMA = "kafka"


def include_name(name: str | None, kind: str, parents: object) -> bool:
    """Compare our schema only: other schemas of the database are not ours."""
    return kind != "schema" or name == VERSION_SCHEMA


options = {
    "target_metadata": metadata,
    "version_table_schema": VERSION_SCHEMA,
    "include_schemas": True,
    "include_name": include_name,
    "compare_server_default": False,
}

if context.is_offline_mode():
    # Named parameters: with psycopg's own style each percent sign of the SQL would be printed twice.
    context.configure(dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, literal_binds=True, **options)
    with context.begin_transaction():
        context.execute(f"CREATE SCHEMA IF NOT EXISTS {VERSION_SCHEMA}")
        context.run_migrations()
else:
    context.configure(connection=context.config.attributes["connection"], **options)
    context.run_migrations()
