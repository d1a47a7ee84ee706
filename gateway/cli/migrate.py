"""`tablewire migrate`: bring the database's schema up to date, or print the SQL a DBA would run."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.refusals import refusals
from gateway.config import load_settings
from gateway.storage import schema
from gateway.storage.embedded import EmbeddedPostgres

__all__ = ["migrate"]


def migrate(
    sql: Annotated[
        bool,
        typer.Option("--sql", help="Print what the database lacks instead; without a database, all of it."),
    ] = False,
) -> None:
    """Bring the database's schema up to date."""
    with refusals():
        settings = load_settings()
        if sql:
            typer.echo(schema.migration_sql(settings.database_url), nl=False)
        elif settings.database_url is not None:
            schema.migrate(settings.database_url)
        else:
            with EmbeddedPostgres(settings.data_dir) as server:
                schema.migrate(server.url)
        if not sql:
            typer.echo("The schema is up to date.")
