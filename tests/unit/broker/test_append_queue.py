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


async def is_waiting(task: asyncio.Task[Any]) -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return not task.done()


async def test_what_came_together_is_taken_together() -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    taking = asyncio.create_task(queue.take())
    assert await is_waiting(taking)
    first, second, third = append_to(0), append_to(1), append_to(0)
    for append in (first, second, third):
        queue.put(append)
    assert await taking == [first, third, second]


async def test_a_partition_is_with_one_writer_at_a_time() -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    group = await queue.take()
    later = append_to(0, OVERLAP_BYTES)
    queue.put(later)
    taking = asyncio.create_task(queue.take())
    assert await is_waiting(taking)
    queue.give_back(group)
    assert await taking == [later]


async def test_little_waits_for_the_commit_in_flight_much_does_not() -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    group = await queue.take()
    taking = asyncio.create_task(queue.take())
    queue.put(append_to(1))
    assert await is_waiting(taking)
    queue.put(append_to(2, OVERLAP_BYTES))
    assert [append.key.partition for append in await taking] == [1, 2]
    queue.give_back(group)


async def test_little_does_not_wait_for_a_commit_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERLAP_SECONDS", 0.001)
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    await queue.take()
    overdue = append_to(1)
    queue.put(overdue)
    async with asyncio.timeout(10):
        assert await queue.take() == [overdue]


async def test_what_came_for_a_partition_under_way_does_not_wait_for_another_one_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0))
    await queue.take()  # and it is never given back
    monkeypatch.setattr(module, "OVERLAP_SECONDS", 0.001)
    queue.put(append_to(1))
    async with asyncio.timeout(10):
        group = await queue.take()
        later = append_to(1)
        queue.put(later)
        queue.give_back(group)
        assert await queue.take() == [later]


async def test_a_group_ends_at_its_size_and_has_at_least_one_batch() -> None:
    queue = AppendQueue(max_bytes=100)
    first, second, third = append_to(0, 300), append_to(0, 60), append_to(1, 60)
    for append in (first, second, third):
        queue.put(append)
    groups = []
    for _ in range(3):
        groups.append(await queue.take())
        queue.give_back(groups[-1])
    assert sorted(groups, key=lambda group: group[0].key) == [[first], [second], [third]]
    async with asyncio.timeout(10):
        await queue.drained()


async def test_a_writer_that_was_stopped_is_not_woken_instead_of_another() -> None:
    queue = AppendQueue(max_bytes=100)
    stopped, living = asyncio.create_task(queue.take()), asyncio.create_task(queue.take())
    assert await is_waiting(stopped)
    stopped.cancel()
    queue.put(append_to(0))
    async with asyncio.timeout(10):
        assert len(await living) == 1


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
                held.append(await queue.take())
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
            group = await queue.take()
            taken += group
            queue.give_back(group)
        await queue.drained()
        for partition in range(4):
            key = PartitionKey(1, partition)
            assert [each for each in taken if each.key == key] == [each for each in put if each.key == key]

    asyncio.run(play())
