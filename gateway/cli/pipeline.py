"""`tablewire pipeline`: list the jobs there are, run one, see how far pipelines are, move one by hand."""

from __future__ import annotations

import json as json_format
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.data import AsJson, print_rows
from gateway.cli.refusals import refusals
from gateway.config import load_settings
from gateway.errors import PipelineError
from gateway.pipeline.database import PipelineDatabase
from gateway.storage.statements import statement
from gateway.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from gateway.pipeline.cuts import Bound
    from gateway.pipeline.runner import BatchDone, Mode, Runner

__all__ = ["pipeline"]

pipeline = typer.Typer(help="Pipelines on Spark: list jobs, run one, show and move pipelines.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The pipeline.")]
STATUS = ("pipeline", "batch", "committed_at", "topics", "partitions", "behind", "error")
PARTITIONS = ("topic", "partition", "next_offset", "log_start_offset", "last_stable_offset", "behind")


@pipeline.command("list")
def list_jobs(json: AsJson = False) -> None:
    """List the jobs that come with Tablewire, and their options."""
    from gateway.pipeline.jobs import describe_jobs

    jobs = describe_jobs()
    if not json:
        for job in jobs:
            job["options"] = [
                f"{name}={'…' if default is None else default}" for name, default in job["options"].items()
            ]
    print_rows(jobs, ("job", "does", "options"), as_json=json)


@pipeline.command()
def run(
    job: Annotated[str, typer.Argument(help="A job of `tablewire pipeline list`, or module:function of your own.")],
    topic: Annotated[list[str] | None, typer.Option(help="A topic to read; several times for several.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the job; several times.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The pipeline's name; the job's by default.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One batch, then end.")] = False,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="All that is committed by now, then end.")
    ] = False,
    master: Annotated[str | None, typer.Option(help="Spark's master; all cores of this machine by default.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A property of Spark; several times.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(min=1, help="At most this many offsets in a batch.")] = None,
    start: Annotated[
        str | None, typer.Option(help="Where to begin in new topics: earliest, latest, or a time with its zone.")
    ] = None,
) -> None:
    """Run a job, continuously unless told otherwise. SIGTERM or Ctrl-C ends it after the batch at work."""
    from gateway.pipeline.jobs import make_job
    from gateway.pipeline.runner import Mode, Runner
    from gateway.pipeline.session import spark_session

    with refusals():
        if once and until_caught_up:
            raise PipelineError("--once and --until-caught-up exclude each other.")
        made = make_job(job, topic or [], _pairs(option))
        changes: dict[str, Any] = {"max_rows": max_rows, "start": None if start is None else _bound(start)}
        made = replace(made, **{key: value for key, value in changes.items() if value is not None})
        settings = load_settings()
        mode = Mode.ONCE if once else Mode.UNTIL_CAUGHT_UP if until_caught_up else Mode.CONTINUOUSLY
        spark = spark_session(name or made.name, master=master, config=_pairs(conf), settings=settings)
        try:
            spark.sparkContext.setLogLevel("ERROR")
            with _progress(name or made.name) as show:
                configure_logs(json=settings.log_format == "json", level=settings.log_level)
                _run(Runner(spark, made, name=name, on_batch=show), mode)
        finally:
            spark.stop()


def _run(runner: Runner, mode: Mode) -> None:
    def stop(number: int, _: object) -> None:
        runner.stop()
        typer.echo("tablewire: stopping after the batch at work; once more to break it off.", err=True)
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        runner.run(mode)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(name: str) -> Iterator[Any]:
    """A bar on a terminal; elsewhere the line per batch is enough."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)
        read = 0

        def show(batch: BatchDone) -> None:
            nonlocal read
            read += batch.offsets
            progress.update(task, completed=read, total=read + batch.behind, description=f"{name} #{batch.batch_id}")

        yield show


@pipeline.command()
def status(
    name: Annotated[
        str | None, typer.Argument(help="A pipeline, shown partition by partition; all by default.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show how far pipelines are, how far behind, and whether the last try failed."""
    with refusals():
        with PipelineDatabase.from_settings().connect() as connection:
            found = connection.execute(statement("pipeline/list_pipelines"), {"pipeline": name}).fetchall()
            if name is not None and not found:
                raise PipelineError(f"There is no pipeline {name}: `tablewire pipeline status` shows all.")
            parts = connection.execute(statement("pipeline/load_partitions"), {"pipeline": name}).fetchall()
        rows = [
            {
                "pipeline": each,
                "batch": batch,
                "committed_at": updated.isoformat(),
                "topics": topics or [],
                "partitions": count,
                "behind": behind,
                "error": error,
            }
            for each, batch, updated, topics, count, behind, error, _ in found
        ]
        partitions = [dict(zip(PARTITIONS, part, strict=True)) for part in parts]
        if name is None:
            print_rows(rows, STATUS, as_json=json)
        elif json:
            typer.echo(json_format.dumps({**rows[0], "partitions": partitions}))
        else:
            print_rows(rows, STATUS)
            print_rows(partitions, PARTITIONS)


@pipeline.command()
def reset(
    name: Name,
    to: Annotated[
        str | None, typer.Option(help="Go on at earliest, latest, or a time with its zone; state stays.")
    ] = None,
    to_batch: Annotated[
        int | None, typer.Option(min=0, help="Return to this batch: state and positions as they were after it.")
    ] = None,
    past_deleted: Annotated[
        bool, typer.Option("--past-deleted", help="Go on where the log starts, if retention was faster; state stays.")
    ] = False,
) -> None:
    """Move a pipeline; without an option it starts over, with no positions and no state. Its target tables stay."""
    from gateway.pipeline import resets

    with refusals():
        if sum((to is not None, to_batch is not None, past_deleted)) > 1:
            raise PipelineError("--to, --to-batch and --past-deleted exclude each other.")
        database = PipelineDatabase.from_settings()
        if to is not None:
            for (topic, partition), offset in resets.move(database, name, _bound(to)).items():
                typer.echo(f"{name} goes on at offset {offset} of partition {partition} of topic {topic}.")
        elif to_batch is not None:
            changed = resets.return_to(database, name, to_batch)
            typer.echo(f"{name} is as it was after batch {to_batch}; {changed} keys of its state changed.")
        elif past_deleted:
            lost = resets.move_past_deleted(database, name)
            for (topic, partition), count in lost.items():
                typer.echo(f"{name} leaves out {count} deleted offsets of partition {partition} of topic {topic}.")
            if not lost:
                typer.echo(f"{name} has lost nothing: it was left as it is.")
        else:
            resets.start_over(database, name)
            typer.echo(f"{name} starts over. Its target tables are as they were: empty those that are added to.")


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for one in given or []:
        key, sign, value = one.partition("=")
        if not sign or not key:
            raise PipelineError(f"{one!r} is not NAME=VALUE.")
        pairs[key] = value
    return pairs


def _bound(text: str) -> Bound:
    if text == "earliest" or text == "latest":
        return text  # type: ignore[return-value]
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(f"{text!r} is neither earliest, latest nor a time such as 2026-01-31T12:00Z.") from None
