"""`tablewire dlq`: list and show dead letters, write them back to their topics, forget them; in the database itself."""

from __future__ import annotations

import datetime as dt
import json as json_format
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from gateway.cli.data import AsJson, Row, parse_time, print_rows, run_on_database
from gateway.cli.refusals import refusals
from gateway.errors import StartupError
from gateway.storage.database import Database
from gateway.worker import dead_letters
from gateway.worker.dead_letters import DeadLetter, Filter

__all__ = ["dlq"]

dlq = typer.Typer(help="Dead letters: list, show, redrive, purge.", no_args_is_help=True)

STEP = 100
"""Dead letters to a transaction: whoever is killed in between has done whole steps."""

COLUMNS = (
    *("id", "topic", "partition", "offset", "group_id", "tenant", "key", "attempts", "copies", "state"),
    *("died_at", "last_error"),
)

Ids = Annotated[list[int] | None, typer.Argument(help="Numbers of dead letters, as `list` shows them.")]
Topic = Annotated[str | None, typer.Option(help="Only records of this topic (not dlq.…).")]
Group = Annotated[str | None, typer.Option(help="Only what workers of this group gave up.")]
Tenant = Annotated[str | None, typer.Option(help="Only records of this tenant.")]
Key = Annotated[str | None, typer.Option(help="Only records with this idempotency key.")]
Error = Annotated[str | None, typer.Option(help="Only those whose last error contains this.")]
Before = Annotated[str | None, typer.Option(help="Only those given up before, as ISO 8601.")]
Everything = Annotated[bool, typer.Option("--all", help="All of them, where no filter is given.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")]


@dlq.command("list")
def list_dead_letters(
    topic: Topic = None,
    group: Group = None,
    tenant: Tenant = None,
    key: Key = None,
    error: Error = None,
    before: Before = None,
    state: Annotated[str, typer.Option(help="dead, redriven or all.")] = "dead",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the oldest first.")] = 100,
    json: AsJson = False,
) -> None:
    """List dead letters, the oldest first."""
    wanted = _filter(None, topic, group, tenant, key, error, before, state=state)

    async def run(database: Database) -> list[Row]:
        return [_row(one) async for one in dead_letters.find(database, wanted, limit=limit)]

    print_rows(run_on_database(run), COLUMNS, as_json=json)


@dlq.command()
def show(number: Annotated[int, typer.Argument(help="Its number.")], json: AsJson = False) -> None:
    """Show a dead letter with its record."""

    async def run(database: Database) -> dict[str, Any]:
        async for one in dead_letters.find(database, Filter(ids=[number])):
            payload = (await dead_letters.read(database, [number])).get(number)
            return {
                **_row(one),
                "record": None
                if payload is None
                else {
                    "key": _text(payload.key),
                    "value": _text(payload.value),
                    "headers": [[name, _text(value)] for name, value in payload.headers],
                },
            }
        raise StartupError(f"There is no dead letter {number}.")

    shown = run_on_database(run)
    if json:
        typer.echo(json_format.dumps(shown))
        return
    for name, value in shown.items():
        if name != "record":
            typer.echo(f"{name.replace('_', '-')}: {'-' if value is None else value}")
    if shown["record"] is None:
        typer.echo("record: deleted")
    else:
        typer.echo(f"record-key: {shown['record']['key']}")
        for name, value in shown["record"]["headers"]:
            typer.echo(f"header {name}: {value}")
        typer.echo(f"value: {shown['record']['value']}")


@dlq.command()
def redrive(
    ids: Ids = None,
    topic: Topic = None,
    group: Group = None,
    tenant: Tenant = None,
    key: Key = None,
    error: Error = None,
    before: Before = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Write dead letters back to their topics, each once, for the group that gave them up."""
    wanted = _filter(ids, topic, group, tenant, key, error, before, state="dead")
    _require_choice(wanted, everything=everything)

    async def step(database: Database, numbers: Sequence[int]) -> tuple[int, list[int]]:
        return await dead_letters.redrive(database, numbers)

    _in_steps(wanted, step, done_word="redriven", dry_run=dry_run, as_json=json)


@dlq.command()
def purge(
    ids: Ids = None,
    topic: Topic = None,
    group: Group = None,
    tenant: Tenant = None,
    key: Key = None,
    error: Error = None,
    before: Before = None,
    state: Annotated[str, typer.Option(help="dead, redriven or all.")] = "redriven",
    everything: Everything = False,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Forget dead letters: those that were redriven, unless told otherwise."""
    wanted = _filter(ids, topic, group, tenant, key, error, before, state=state)
    _require_choice(wanted, everything=everything)

    async def step(database: Database, numbers: Sequence[int]) -> tuple[int, list[int]]:
        return await dead_letters.purge(database, numbers), []

    _in_steps(wanted, step, done_word="purged", dry_run=dry_run, as_json=json)


Step = Callable[[Database, Sequence[int]], Coroutine[Any, Any, tuple[int, list[int]]]]


def _in_steps(wanted: Filter, step: Step, *, done_word: str, dry_run: bool, as_json: bool) -> None:
    """Do it in small transactions, with a bar on standard error."""

    async def run(database: Database) -> tuple[list[DeadLetter], int, list[int]]:
        # What is chosen now; what dies meanwhile is for the next time.
        chosen = [one async for one in dead_letters.find(database, wanted)]
        done, stuck = 0, []
        if not dry_run:
            with Progress(console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task(done_word, total=len(chosen))
                for first in range(0, len(chosen), STEP):
                    numbers = [one.id for one in chosen[first : first + STEP]]
                    count, left = await step(database, numbers)
                    done += count
                    stuck += left
                    progress.advance(task, len(numbers))
        return chosen, done, stuck

    chosen, done, stuck = run_on_database(run)
    if dry_run:
        print_rows([_row(one) for one in chosen], COLUMNS, as_json=as_json)
        typer.echo(f"{len(chosen)} would be {done_word}; nothing was changed.", err=True)
        return
    if as_json:
        typer.echo(json_format.dumps({done_word: done, "impossible": stuck}))
    else:
        typer.echo(f"{done} {done_word}.")
    if stuck:
        numbers = ", ".join(map(str, stuck[:20]))
        typer.echo(f"{len(stuck)} could not be {done_word}, their topic or record is gone: {numbers}", err=True)


def _filter(
    ids: Sequence[int] | None,
    topic: str | None,
    group: str | None,
    tenant: str | None,
    key: str | None,
    error: str | None,
    before: str | None,
    *,
    state: str,
) -> Filter:
    with refusals():
        if state not in ("dead", "redriven", "all"):
            raise StartupError(f"{state!r} is no state: say dead, redriven or all.")
        return Filter(
            ids=ids or None,
            topic=topic,
            group_id=group,
            tenant=tenant,
            key=key,
            error=error,
            state=None if state == "all" else state,
            before_ms=None if before is None else parse_time(before),
        )


def _require_choice(wanted: Filter, *, everything: bool) -> None:
    chosen = (wanted.ids, wanted.topic, wanted.group_id, wanted.tenant, wanted.key, wanted.error, wanted.before_ms)
    with refusals():
        if all(one is None for one in chosen) and not everything:
            raise StartupError("Say which: numbers, a filter such as --topic, or --all.")


def _row(one: DeadLetter) -> dict[str, Any]:
    row = one._asdict()
    for name in ("first_delivered_at", "last_delivered_at", "died_at", "redriven_at"):
        milliseconds = row.pop(f"{name}_ms")
        row[name] = None if milliseconds is None else dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat()
    return row


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="backslashreplace")
