"""A task of the background ends when it is told to, also where something swallows that it was cancelled."""

from __future__ import annotations

import asyncio

import pytest

from gateway import tasks
from gateway.tasks import end_task


async def swallowing(times: int) -> None:
    """A loop in which so many cancellations get lost, as in wait_for of Python 3.11."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if times == 0:
                raise
            times -= 1


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_task_is_cancelled_until_it_has_ended(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr(tasks, "PATIENCE_SECONDS", 0.01)
    task = asyncio.create_task(swallowing(times))
    await asyncio.sleep(0)
    await asyncio.wait_for(end_task(task), timeout=5)
    assert task.cancelled()


async def test_what_a_task_raised_is_not_raised_again_nor_complained_of() -> None:
    async def fail() -> None:
        raise ValueError("of no interest")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_task(task)
    assert not task._log_traceback  # type: ignore[attr-defined]


async def test_there_may_be_nothing_to_end() -> None:
    await end_task(None)
