"""Memory that requests and responses of all connections may take together."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Budget", "Reader"]


class Reader(Protocol):
    """Who reads requests, and stops while there is no room for them."""

    def resume_if_free(self) -> None: ...


class Budget:
    """Counts bytes in flight; who finds it full stops reading and is called when there is room again."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: dict[Reader, None] = {}
        self._let_through: Reader | None = None

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def is_full(self) -> bool:
        return self._used_bytes >= self._limit_bytes

    def take(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        if not self.is_full:
            self._call_waiting()

    def call_when_free(self, reader: Reader) -> None:
        self._waiting[reader] = None

    def lets_through(self, reader: Reader) -> bool:
        """Whether this one may read on although the budget is full: one at a time, until its frame is complete."""
        if self._let_through is None:
            self._let_through = reader
        return self._let_through is reader

    def end_passage(self, reader: Reader) -> None:
        """The frame is complete, or never will be: the next one may go on."""
        if self._let_through is reader:
            self._let_through = None
            self._call_waiting()

    def forget(self, reader: Reader) -> None:
        self._waiting.pop(reader, None)
        self.end_passage(reader)

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for reader in waiting:
            reader.resume_if_free()
