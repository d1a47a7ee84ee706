"""`python -m benchmarks`: start PostgreSQL and a gateway, measure, print, clean up."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.apache_kafka import ApacheKafka
from benchmarks.clients import Client, ClientFailed, JavaClient, Librdkafka
from benchmarks.report import print_sections, write_markdown
from benchmarks.run import measure
from benchmarks.stack import Stack, StackFailed
from benchmarks.turns import TurnsFailed
from benchmarks.workload import DEFAULT, QUICK, Part, Workload
from gateway.errors import StartupError
from tests.support.gateway_process import GatewayFailed
from tests.support.java import JavaMissing

TABLE_WIDTH = 150
"""Of a table that goes into a file or a pipe."""


def main(
    *,
    only: Annotated[list[Part] | None, typer.Option(help="Only this part; may be given several times.")] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, max=100, help="How often everything is measured.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run: few records, once.")] = False,
    size: Annotated[
        list[int] | None, typer.Option(help="Produce and consume only records of this size (100, 1024).")
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option(help="Produce and consume only in so many partitions (1, 6).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes of the gateway: serve --workers.")] = 1,
    java: Annotated[bool, typer.Option(help="Measure with the Java client, and Apache Kafka, too.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", help="Write the sections to this file, between its marks if it has them."),
    ] = None,
) -> None:
    """Measure the gateway next to raw COPY of the same rows and next to Apache Kafka, and the price of its promises."""
    unwind_on_termination()
    workload = _workload(QUICK if quick else DEFAULT, repetitions, size, partitions)
    progress = Console(stderr=True, highlight=False)
    try:
        parts = only or list(Part)
        clients = _clients(progress, java=java)
        with ExitStack() as running:
            stack = running.enter_context(Stack(workers=workers))
            kafka = None
            if {Part.KAFKA, Part.IDEMPOTENCE} & set(parts) and any(
                isinstance(client, JavaClient) for client in clients
            ):
                kafka = running.enter_context(ApacheKafka(stack.directory))
            results = measure(stack, clients, workload, parts, progress.print, kafka=kafka)
    except (StackFailed, GatewayFailed, ClientFailed, TurnsFailed, StartupError) as failed:
        progress.print(str(failed), style="red", markup=False)
        raise typer.Exit(1) from None
    for part, seconds in results.seconds.items():
        progress.print(f"{part}: {seconds} s")
    console = Console()
    print_sections(results, console if console.is_terminal else Console(width=TABLE_WIDTH))
    if json_file is not None:
        json_file.write_text(json.dumps(results.as_json(), indent=2) + "\n", encoding="utf-8")
    if markdown_file is not None:
        write_markdown(results, markdown_file)


def _workload(
    base: Workload, repetitions: int | None, sizes: list[int] | None, partitions: list[int] | None
) -> Workload:
    shapes = tuple(
        shape
        for shape in base.shapes
        if (not sizes or shape.record_bytes in sizes) and (not partitions or shape.partitions in partitions)
    )
    if not shapes:
        raise typer.BadParameter("nothing is left to measure: sizes are 100 and 1024, partitions 1 and 6")
    return replace(base, repetitions=repetitions or base.repetitions, shapes=shapes)


def _clients(progress: Console, *, java: bool) -> list[Client]:
    clients: list[Client] = [Librdkafka()]
    if java:
        try:
            clients.append(JavaClient())
        except JavaMissing as missing:
            progress.print(f"Without the Java client and Apache Kafka: {missing}.", style="yellow", markup=False)
    return clients


def unwind_on_termination() -> None:
    """SIGTERM as Ctrl-C: no PostgreSQL, gateway or directory is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, interrupt)


if __name__ == "__main__":
    typer.run(main)
