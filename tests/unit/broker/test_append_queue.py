"""Which batches a writer takes, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.broker import append_queue as module
from gateway.broker.append_queue import OVERLAP_BYTES, Append, AppendQueue
from gateway.protocol.batches import BatchLimits, ProducedBatch, decode_produced
from gateway.storage.keys import PartitionKey
from tests.support.handmade import make_batch

BATCH = decode_produced(make_batch([b"x"]), BatchLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20))
SMALL = len(BATCH.data)


def sized(size_bytes: int) -> ProducedBatch:
    """The queue looks at nothing but the size."""
    return BATCH._replace(data=bytes(size_bytes))


def append_to(partition: int, size_bytes: int = SMALL) -> Append:
    return Append(PartitionKey(1, partition), sized(size_bytes), on_done=lambda: None, uses_log_append_time=False)


async def take(queue: AppendQueue) -> list[Append]:
    taken: asyncio.Future[list[Append]] = asyncio.get_running_loop().create_future()
    queue.wait(taken.set_result)
    return await taken


async def is_waiting(task: asyncio.Task[Any]) -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return not task.done()


async def test_what_came_together_is_taken_together() -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    taking = asyncio.create_task(take(queue))
    assert await is_waiting(taking)
    first, second, third = append_to(0), append_to(1), append_to(0)
    for append in (first, second, third):
        queue.put(append)
    assert await taking == [first, third, second]


async def test_a_partition_is_with_one_writer_at_a_time() -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    group = await take(queue)
    later = append_to(0, OVERLAP_BYTES)
    queue.put(later)
    taking = asyncio.create_task(take(queue))
    assert await is_waiting(taking)
    queue.give_back(group)
    assert await taking == [later]


async def test_little_waits_for_the_commit_in_flight_much_does_not() -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    group = await take(queue)
    taking = asyncio.create_task(take(queue))
    queue.put(append_to(1))
    assert await is_waiting(taking)
    queue.put(append_to(2, OVERLAP_BYTES))
    assert [append.key.partition for append in await taking] == [1, 2]
    queue.give_back(group)


async def test_little_does_not_wait_for_a_commit_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERLAP_SECONDS", 0.001)
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    await take(queue)
    overdue = append_to(1)
    queue.put(overdue)
    async with asyncio.timeout(10):
        assert await take(queue) == [overdue]


async def test_what_came_for_a_partition_under_way_does_not_wait_for_another_one_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    await take(queue)  # and it is never given back
    monkeypatch.setattr(module, "OVERLAP_SECONDS", 0.001)
    queue.put(append_to(1))
    async with asyncio.timeout(10):
        group = await take(queue)
        later = append_to(1)
        queue.put(later)
        queue.give_back(group)
        assert await take(queue) == [later]


async def test_a_group_ends_at_its_size_and_has_at_least_one_batch() -> None:
    queue = AppendQueue(max_bytes=100)
    first, second, third = append_to(0, 300), append_to(0, 60), append_to(1, 60)
    for append in (first, second, third):
        queue.put(append)
    groups = []
    for _ in range(3):
        groups.append(await take(queue))
        queue.give_back(groups[-1])
    assert sorted(groups, key=lambda group: group[0].key) == [[first], [second], [third]]
    async with asyncio.timeout(10):
        await queue.drained()


async def test_a_writer_that_was_stopped_is_not_woken_instead_of_another() -> None:
    queue = AppendQueue(max_bytes=100)
    called: list[str] = []

    def living(group: list[Append]) -> None:
        called.append("living")

    def stopped(group: list[Append]) -> None:
        called.append("stopped")

    queue.wait(living)
    queue.wait(stopped)  # the last one would be the first
    queue.leave(stopped)
    queue.leave(stopped)
    queue.put(append_to(0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert called == ["living"]


async def test_one_writer_is_called_for_what_came_together_and_another_for_what_is_left() -> None:
    queue = AppendQueue(max_bytes=OVERLAP_BYTES)
    groups: list[list[Append]] = []
    for _ in range(3):
        queue.wait(groups.append)
    appends = [append_to(partition, OVERLAP_BYTES // 2) for partition in range(4)]
    for append in appends:
        queue.put(append)
    assert groups == []  # not in the middle of it
    for _ in range(5):
        await asyncio.sleep(0)
    assert groups == [appends[:2], appends[2:]]


steps = st.lists(st.tuples(st.sampled_from(["put", "take", "give back"]), st.integers(0, 3), st.integers(1, 80)))


@given(steps)
def test_nothing_is_lost_or_overtaken_within_a_partition(steps: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        queue = AppendQueue(max_bytes=100)
        queue._is_overdue = True
        put: list[Append] = []
        taken: list[Append] = []
        held: list[list[Append]] = []
        for step, partition, size_bytes in steps:
            if step == "put":
                put.append(append_to(partition, size_bytes))
                queue.put(put[-1])
            elif step == "take" and queue._ready_bytes:
                queue._is_overdue = True
                held.append(await take(queue))
                taken += held[-1]
            elif step == "give back" and held:
                queue.give_back(held.pop(partition % len(held)))
            keys = [{append.key for append in group} for group in held]
            assert sum(map(len, keys)) == len(set().union(*keys)), "no partition is taken twice"
            ready = [append for append in put if append not in taken and append.key not in set().union(*keys)]
            assert queue._ready_bytes == sum(len(append.batch.data) for append in ready)
        for group in held:
            queue.give_back(group)
        while len(taken) < len(put):
            group = await take(queue)
            taken += group
            queue.give_back(group)
        await queue.drained()
        for partition in range(4):
            key = PartitionKey(1, partition)
            assert [each for each in taken if each.key == key] == [each for each in put if each.key == key]

    asyncio.run(play())
