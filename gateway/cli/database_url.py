"""`tablewire database-url`: where psql, Spark and others find the database of this gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.refusals import refusals
from gateway.config import load_settings
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.jdbc import jdbc_address

__all__ = ["database_url"]


def database_url(
    jdbc: Annotated[bool, typer.Option("--jdbc", help="In the form that JDBC, and so Spark, takes.")] = False,
) -> None:
    """Print the database's URL, with its password: for `psql "$(tablewire database-url)"`."""
    with refusals():
        settings = load_settings()
        url = settings.database_url or EmbeddedPostgres(settings.data_dir).saved_url()
        typer.echo(jdbc_address(url).with_credentials if jdbc else url)
