"""`tablewire database-url`: where psql, Spark and others find the database of this gateway."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote, urlencode, urlsplit

import typer

from gateway.cli.refusals import refusals
from gateway.config import load_settings
from gateway.storage.embedded import EmbeddedPostgres

__all__ = ["database_url"]


def database_url(
    jdbc: Annotated[bool, typer.Option("--jdbc", help="In the form that JDBC, and so Spark, takes.")] = False,
) -> None:
    """Print the database's URL, with its password: for `psql "$(tablewire database-url)"`."""
    with refusals():
        settings = load_settings()
        url = settings.database_url or EmbeddedPostgres(settings.data_dir).saved_url()
        typer.echo(_as_jdbc(url) if jdbc else url)


def _as_jdbc(url: str) -> str:
    parts = urlsplit(url)
    credentials = {"user": parts.username, "password": parts.password}
    query = urlencode({name: unquote(value) for name, value in credentials.items() if value is not None})
    separator = "&" if parts.query else ""
    host = f"{parts.hostname or 'localhost'}:{parts.port or 5432}"
    return f"jdbc:postgresql://{host}{parts.path}?{query}{separator}{parts.query}"
