"""What commands about data share: the database they work on, and tables or JSON that they print."""

from __future__ import annotations

import asyncio
import datetime as dt
import json as json_format
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import psycopg
import typer
from psycopg_pool import PoolTimeout
from rich.console import Console
from rich.table import Table

from gateway.cli.refusals import refusals
from gateway.config import load_settings
from gateway.errors import StartupError
from gateway.storage.database import Database
from gateway.storage.embedded import EmbeddedPostgres

__all__ = ["AsJson", "Row", "parse_time", "print_rows", "run_on_database"]

T = TypeVar("T")
Row = Mapping[str, Any]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

TIMEOUT_MS = 10_000


def run_on_database(work: Callable[[Database], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with _database() as database:
            return await work(database)

    with refusals():
        return asyncio.run(run())
    raise AssertionError("refusals leaves by itself")


@asynccontextmanager
async def _database() -> AsyncIterator[Database]:
    settings = load_settings()
    url = settings.database_url or EmbeddedPostgres(settings.data_dir).saved_url()
    database = Database(url, connections=1, timeout_ms=TIMEOUT_MS, prepared_statements=settings.prepared_statements)
    try:
        await database.open()
        yield database
    except (psycopg.Error, PoolTimeout, TimeoutError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["it did not answer in time"])[0]
        raise StartupError(f"The database cannot be used: {reason}.") from error
    finally:
        await database.close()


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of a time as people write it; without a zone it is UTC."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise StartupError(f"{text!r} is no time: write it as 2026-01-31T12:00:00+00:00.") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool = False) -> None:
    if as_json:
        typer.echo(json_format.dumps(list(rows)))
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", "-"), no_wrap=True)
    for row in rows:
        table.add_row(*("-" if row[column] is None else _text(row[column]) for column in columns))
    # Wide rather than cut: what is printed is copied from.
    Console(width=max(200, *(len(_text(value)) * 2 for row in rows for value in row.values()), 200)).print(table)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
