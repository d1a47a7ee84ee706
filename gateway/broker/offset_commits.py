"""Group commit of consumer offsets: whatever arrived while the last statement was in flight goes into the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from gateway.errors import CoordinatorNotAvailable, NotCoordinator
from gateway.storage import offsets as storage
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS
from gateway.storage.keys import PartitionKey
from gateway.storage.offsets import OffsetToCommit

__all__ = ["OffsetCommits"]

log = structlog.get_logger()

MAX_OFFSETS_AT_ONCE = 10_000


@dataclass(slots=True)
class _Commit:
    group_id: str
    epoch: int
    offsets: Sequence[OffsetToCommit]
    done: asyncio.Future[None]


class OffsetCommits:
    """Writes committed offsets in the order in which they came. `on_lost` is told of groups that are another's."""

    def __init__(self, database: Database, *, on_lost: Callable[[str, int], None]) -> None:
        self._database = database
        self._on_lost = on_lost
        self._waiting: list[_Commit] = []
        self._task: asyncio.Task[None] | None = None

    def commit(self, group_id: str, offsets: Sequence[OffsetToCommit], *, epoch: int) -> asyncio.Future[None]:
        """Resolved once the offsets are durable; refused when the group has another coordinator."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not offsets:
            done.set_result(None)
            return done
        self._waiting.append(_Commit(group_id, epoch, offsets, done))
        if self._task is None:
            self._task = asyncio.create_task(self._write_all())
        return done

    async def stop(self) -> None:
        """Write what was accepted."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                size, count = 0, 0
                # An old and a new claim of one group never share a statement: the epochs would contradict each other.
                epochs: dict[str, int] = {}
                for one in self._waiting:
                    size += len(one.offsets)
                    is_other = epochs.setdefault(one.group_id, one.epoch) != one.epoch
                    if count and (is_other or size > MAX_OFFSETS_AT_ONCE):
                        epochs = {earlier.group_id: earlier.epoch for earlier in self._waiting[:count]}
                        break
                    count += 1
                commits, self._waiting = self._waiting[:count], self._waiting[count:]
                await self._write(commits, epochs)
        finally:
            self._task = None

    async def _write(self, commits: list[_Commit], epochs: dict[str, int]) -> None:
        # Of several offsets for one partition the last counts.
        newest: dict[tuple[str, PartitionKey], OffsetToCommit] = {
            (one.group_id, offset.key): offset for one in commits for offset in one.offsets
        }
        try:
            written = await storage.commit(self._database, epochs, newest)
        except DATABASE_ERRORS as error:
            log.warning("offsets were not committed", groups=len(epochs), error=str(error))
            _refuse(commits, CoordinatorNotAvailable("the database is not available; try again"))
            return
        except Exception as error:
            _refuse(commits, error)
            raise
        for group_id in epochs.keys() - written:
            self._on_lost(group_id, epochs[group_id])
        for one in commits:
            if one.group_id in written:
                if not one.done.done():
                    one.done.set_result(None)
            else:
                _refuse([one], NotCoordinator("another gateway coordinates this group"))


def _refuse(commits: list[_Commit], error: Exception) -> None:
    for one in commits:
        if not one.done.done():
            one.done.set_exception(error)
            one.done.exception()  # whoever asked may be gone; nobody else need hear of it
