"""Memory that requests and responses of all connections may take together."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Budget"]


class Budget:
    """Counts bytes in flight; who finds it full stops reading and is called when there is room again."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: dict[Callable[[], None], None] = {}

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
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()

    def call_when_free(self, resume: Callable[[], None]) -> None:
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        self._waiting.pop(resume, None)
