"""Two ways to produce in one client process, in turns of a fraction of a second.

A machine's speed changes from minute to minute and a JVM's while it compiles, by more than a comparison of a few
percent can bear; neighbouring turns of one process have both in common. The program (`turns_client.py`,
`TurnsClient.java`) is told on its standard input whose turn it is, and answers with its records and seconds.
"""

from __future__ import annotations

import select
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.gateway_process import REPOSITORY

__all__ = ["Turn", "Turns", "TurnsFailed"]

END_TIMEOUT_S = 30.0
TURN_TIMEOUT_S = 180.0


class TurnsFailed(Exception):
    """The program ended before its time, or took too long."""


class Turn(NamedTuple):
    """What was acknowledged in one turn."""

    records: int
    seconds: float


class Turns:
    """The program while its context lasts."""

    def __init__(self, command: list[Any]) -> None:
        self._command = list(map(str, command))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_TIMEOUT_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def take(self, whose: str) -> Turn:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{whose}\n")
            if not select.select([self._process.stdout], [], [], TURN_TIMEOUT_S)[0]:
                self._process.kill()
                raise TurnsFailed(f"{' '.join(self._command)} did not end a turn in {TURN_TIMEOUT_S:.0f} s")
            answer = self._process.stdout.readline()
        if not answer:
            self._process.kill()
            raise TurnsFailed(f"{' '.join(self._command)} ended with {self._process.wait()}")
        records, seconds = answer.split()
        return Turn(int(records), float(seconds))
