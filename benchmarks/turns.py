"""Two ways to produce in one client process, in turns of a second or less.

A machine's speed changes from minute to minute and a JVM's while it compiles, by more than a comparison of a few
percent can bear; neighbouring turns of one process have both in common. The program (`turns_client.py`,
`TurnsClient.java`) is told on its standard input whose turn it is, and answers with its records and seconds.
"""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.gateway_process import REPOSITORY

__all__ = ["Turn", "Turns", "TurnsFailed"]

END_TIMEOUT_S = 30.0


class TurnsFailed(Exception):
    """The program ended before its time; the message is what it wrote."""


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
        try:
            self._process.stdin.close()
            self._process.wait(END_TIMEOUT_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()

    def take(self, whose: str) -> Turn:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{whose}\n")
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise TurnsFailed(f"{' '.join(self._command)} ended with {self._process.wait(END_TIMEOUT_S)}")
        records, seconds = answer.split()
        return Turn(int(records), float(seconds))
