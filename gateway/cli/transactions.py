"""`tablewire transactions`: list, describe and abort transactions, find those that hang; in the database itself."""

from __future__ import annotations

import datetime as dt
import json as json_format
from typing import Annotated, Any

import typer

from gateway.cli.data import AsJson, Row, print_rows, run_on_database
from gateway.errors import StartupError
from gateway.storage import transactions as storage
from gateway.storage.database import Database

__all__ = ["transactions"]

transactions = typer.Typer(help="Transactions: list, describe, abort, find those that hang.", no_args_is_help=True)

TransactionalId = Annotated[str, typer.Argument(help="The transactional id.")]
COLUMNS = ("transactional_id", "producer_id", "state")


@transactions.command("list")
def list_transactions(
    state: Annotated[list[str] | None, typer.Option(help="Only these states; several times for several.")] = None,
    json: AsJson = False,
) -> None:
    """List all transactional ids with their state."""
    print_rows(_list(states=state, min_duration_ms=-1), COLUMNS, as_json=json)


@transactions.command("find-hanging")
def find_hanging(
    older_than_seconds: Annotated[int, typer.Option(help="Open for at least this long.")] = 900,
    json: AsJson = False,
) -> None:
    """List transactions that have been open for long. Each is aborted by itself when its time-out is over."""
    print_rows(_list(states=["Ongoing"], min_duration_ms=older_than_seconds * 1000), COLUMNS, as_json=json)


@transactions.command()
def describe(transactional_id: TransactionalId, json: AsJson = False) -> None:
    """Show a transaction: its producer, its age and its partitions."""

    async def run(database: Database) -> Row:
        found = (await storage.describe(database, [transactional_id])).get(transactional_id)
        if found is None:
            raise StartupError(f"There is no transactional id {transactional_id}.")
        _, producer_id, epoch, state, timeout_ms, started_at_ms, topics, partitions = found
        return {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "state": state,
            "timeout_ms": timeout_ms,
            "started_at": None if started_at_ms is None else _instant(started_at_ms),
            "partitions": [f"{topic}-{index}" for topic, index in zip(topics, partitions, strict=True)],
        }

    described = run_on_database(run)
    if json:
        typer.echo(json_format.dumps(described))
    else:
        print_rows([described], tuple(described))


@transactions.command()
def abort(transactional_id: TransactionalId) -> None:
    """Abort the open transaction of a transactional id, and fence its producer."""

    async def run(database: Database) -> str:
        if not await storage.describe(database, [transactional_id]):
            raise StartupError(f"There is no transactional id {transactional_id}.")
        return await storage.abort(database, transactional_id)

    typer.echo(run_on_database(run))


def _list(*, states: list[str] | None, min_duration_ms: int) -> list[Row]:
    async def run(database: Database) -> list[Row]:
        rows = await storage.list_all(database, states=states, producer_ids=None, min_duration_ms=min_duration_ms)
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    return run_on_database(run)


def _instant(milliseconds: int) -> Any:
    return dt.datetime.fromtimestamp(milliseconds / 1000, tz=dt.UTC).isoformat()
