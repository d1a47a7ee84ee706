"""How a command ends when it must refuse: one sentence on standard error, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from gateway.config import SettingsError
from gateway.errors import PipelineError, StartupError

__all__ = ["refusals"]

CANNOT_START = 1
BAD_SETTING = 2
INTERRUPTED = 130


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except SettingsError as refused:
        typer.echo(f"tablewire: {refused}", err=True)
        raise typer.Exit(BAD_SETTING) from None
    except (StartupError, PipelineError) as refused:
        typer.echo(f"tablewire: {refused}", err=True)
        raise typer.Exit(CANNOT_START) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
