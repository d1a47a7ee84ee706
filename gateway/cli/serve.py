"""`tablewire serve`: settings, then a database, then the gateway, or several as workers.

The embedded PostgreSQL outlives the gateway by design: it is stopped last, whatever ended the gateway.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import uvloop

from gateway.cli.refusals import refusals
from gateway.cli.welcome import print_welcome
from gateway.cli.workers import run_workers
from gateway.config import Address, Settings, load_settings
from gateway.errors import StartupError
from gateway.storage import schema
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.embedded_home import packaged_programs
from gateway.telemetry.logs import configure_logs

__all__ = ["serve"]

WATCH_SECONDS = 0.5


def serve(
    listen: Annotated[str | None, typer.Option(help="Where Kafka clients connect, host:port.")] = None,
    advertised: Annotated[str | None, typer.Option(help="The address clients are told, host:port.")] = None,
    http_listen: Annotated[str | None, typer.Option(help="Metrics and health, host:port.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the embedded PostgreSQL keeps its data.")] = None,
    node_id: Annotated[int | None, typer.Option(help="This gateway's broker id.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="How many processes serve, each a broker of its own on the next port.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Bring the schema of TABLEWIRE_DATABASE_URL up to date first.")
    ] = False,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Only say whether the settings can be used.")
    ] = False,
) -> None:
    """Serve Kafka clients until Ctrl-C or SIGTERM."""
    with refusals():
        settings = load_settings(
            {
                "listen": listen,
                "advertised": advertised,
                "http_listen": http_listen,
                "data_dir": data_dir,
                "node_id": node_id,
                "workers": workers,
                "log_level": log_level,
                "migrate": migrate or None,
            }
        )
        if check_config:
            typer.echo("The settings can be used.")
            return
        _unwind_on_termination()
        if settings.database_url is None:
            _serve_embedded(settings)
        else:
            _serve_external(settings, settings.database_url)


def _unwind_on_termination() -> None:
    """Until the gateway takes over, SIGTERM unwinds as Ctrl-C does, so that no PostgreSQL is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def terminate(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, interrupt)
    # The terminal was closed: as SIGTERM, whoever handles that by then.
    signal.signal(signal.SIGHUP, terminate)


def _serve_external(settings: Settings, database_url: str) -> None:
    if settings.migrate:
        schema.migrate(database_url)
    schema.check_schema(database_url)
    _run(settings, database_url, password_file=None)


def _serve_embedded(settings: Settings) -> None:
    server = EmbeddedPostgres(settings.data_dir)
    try:
        server.start()
        schema.migrate(server.url)
        with _watched(server):
            # Absolute, because the lines are pasted into another terminal.
            _run(settings, server.url, password_file=settings.data_dir.absolute() / "password")
    finally:
        # A second Ctrl-C must not leave a server without an owner.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        server.stop()


@contextmanager
def _watched(server: EmbeddedPostgres) -> Iterator[None]:
    """Start the embedded server again should it end while the gateway runs; clients retry meanwhile."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH_SECONDS):
            try:
                if server.revive():
                    typer.echo("tablewire: PostgreSQL had ended and was started again.", err=True)
            except StartupError as refused:
                typer.echo(f"tablewire: {refused}", err=True)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _run(settings: Settings, database_url: str, *, password_file: Path | None) -> None:
    def announce(*addresses: Address) -> None:
        print_welcome(addresses, database_url, psql=packaged_programs() / "psql", password_file=password_file)

    if settings.workers > 1:
        configure_logs(json=settings.log_format == "json", level=settings.log_level)
        asyncio.run(run_workers(settings, database_url, announce=announce))
        return
    # Not at the top: `migrate` and `--version` need nothing of the server.
    from gateway.server.server import run_gateway

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_gateway(settings, database_url, announce=lambda *address: announce(Address(*address))))
