"""The command line. A refusal is one sentence, never a traceback."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from gateway.cli.database_url import database_url
from gateway.cli.dlq import dlq
from gateway.cli.groups import groups
from gateway.cli.migrate import migrate
from gateway.cli.pipeline import pipeline
from gateway.cli.serve import serve
from gateway.cli.transactions import transactions

__all__ = ["main"]

app = typer.Typer(
    help="A Kafka protocol gateway whose storage is PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(migrate)
app.command("database-url")(database_url)
app.add_typer(dlq, name="dlq")
app.add_typer(groups, name="groups")
app.add_typer(transactions, name="transactions")
app.add_typer(pipeline, name="pipeline")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tablewire {metadata.version('tablewire')}")
        raise typer.Exit


@app.callback()
def _tablewire(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    app(prog_name="tablewire")
