"""Several gateways as one service: a parent that starts them, starts again what ends, and stops all of them.

The parent serves nobody. It holds the write end of each worker's standard input: when the parent is gone, however it
ended, a worker reads the end of that pipe and ends too. A worker reports on its standard output, in one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog

from gateway.clock import monotonic_seconds
from gateway.config import Address, Settings
from gateway.errors import StartupError

__all__ = ["run_workers"]

log = structlog.get_logger()

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A worker that served for so long is started again as quickly as if it had never ended."""
STOP_SECONDS = 15.0
"""Beyond the drain's own limit: what a worker may take to let go of the database."""

T = TypeVar("T")


async def run_workers(settings: Settings, database_url: str, *, announce: Callable[..., None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain all. StartupError when one of them cannot be started at first."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    workers = [_Worker(index, settings.for_worker(index), database_url) for index in range(settings.workers)]
    try:
        addresses = await _unless(stop, _start_all(workers))
        if addresses is None:
            return
        announce(*addresses)
        await _unless(stop, _keep_all(workers))
        log.info("draining", workers=len(workers))
        await _stop_all(workers, settings.drain_timeout_ms / 1000 + STOP_SECONDS)
    finally:
        for worker in workers:
            await worker.kill()


class _Worker:
    """One gateway process, and the next one in its place."""

    def __init__(self, index: int, settings: Settings, database_url: str) -> None:
        self.number = index + 1
        values = settings.model_dump(mode="json", exclude={"database_url"})
        order = {"number": self.number, "settings": values, "database_url": database_url}
        self._order = json.dumps(order).encode() + b"\n"
        self._process: Process | None = None

    async def start(self) -> Address:
        """The address it tells clients; StartupError when it does not come to serve."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "gateway.cli.worker",
            str(self.number),  # for those who look at the list of processes
            stdin=PIPE,
            stdout=PIPE,
            env=_environment(),
            # Ctrl-C in the terminal is for the parent, which tells its workers.
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(self._order)
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            raise StartupError(f"Worker {self.number} ended with {_said(code)} before it could serve.")
        report = json.loads(line)
        if "refused" in report:
            await process.wait()
            raise StartupError(report["refused"])
        return Address(*report["serves"])

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    def terminate(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def _start_all(workers: list[_Worker]) -> list[Address]:
    """All at once; the first refusal is the one that is told."""
    try:
        async with asyncio.TaskGroup() as group:
            starts = [group.create_task(worker.start()) for worker in workers]
    except ExceptionGroup as refused:
        raise refused.exceptions[0] from None
    return [start.result() for start in starts]


async def _keep_all(workers: list[_Worker]) -> None:
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(_keep(worker))


async def _keep(worker: _Worker) -> None:
    """Start the worker again whenever it ends, after pauses that grow while it does not live long."""
    pause_seconds = FIRST_PAUSE_SECONDS
    while True:
        started_at = monotonic_seconds()
        code = await worker.wait()
        if monotonic_seconds() - started_at > STEADY_SECONDS:
            pause_seconds = FIRST_PAUSE_SECONDS
        log.error("a worker ended", worker=worker.number, ended_with=_said(code), starts_again_in_s=pause_seconds)
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        try:
            await worker.start()
        except StartupError as refused:
            log.warning("a worker could not be started", worker=worker.number, reason=str(refused))
        else:
            log.info("a worker serves again", worker=worker.number)


async def _stop_all(workers: list[_Worker], timeout_seconds: float) -> None:
    """SIGTERM to all; StartupError names one that did not come to a good end."""
    waits = {asyncio.create_task(worker.wait()): worker for worker in workers if worker.is_running}
    if not waits:
        return
    for worker in waits.values():
        worker.terminate()
    _, late = await asyncio.wait(waits, timeout=timeout_seconds)
    for wait in late:
        wait.cancel()
    for wait, worker in waits.items():
        if wait in late:
            raise StartupError(f"Worker {worker.number} did not stop within {timeout_seconds:.0f} s.")
        # SIGTERM itself ends one that was just being started again.
        if (code := wait.result()) not in (0, -signal.SIGTERM):
            raise StartupError(f"Worker {worker.number} ended with {_said(code)} while it drained.")


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when it was given up because of `stop`."""
    working = asyncio.create_task(work)
    tasks: list[asyncio.Task[Any]] = [working, asyncio.create_task(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    is_done = working.done()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return working.result() if is_done else None


def _environment() -> dict[str, str]:
    """This very package, wherever the parent found it."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def _said(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
