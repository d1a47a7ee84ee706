"""The end of tasks that run in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

__all__ = ["end_task"]

log = structlog.get_logger()

PATIENCE_SECONDS = 1.0


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancel the task until it has ended; what it raised is not of interest any more.

    Once is not always enough: wait_for of Python 3.11, by which psycopg's pool waits, swallows a cancellation that
    comes together with what it waits for or with its timeout, and a loop would go on for ever.
    """
    if task is None:
        return
    task.cancel()
    while not task.done():
        await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        if not task.done():
            log.info("a background task is cancelled once more", task=repr(task.get_coro()))
            task.cancel()
    if not task.cancelled():
        task.exception()
