"""Which batches a writer takes, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.broker import append_queue as module
from gateway.broker.append_queue import OVERLAP_BYTES, Append, AppendQueue, Writer
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


async def test_what_a_producer_has_waiting_can_be_taken_out() -> None:
    def append_of(producer_id: int, partition: int) -> Append:
        batch = BATCH._replace(producer_id=producer_id, producer_epoch=0, base_sequence=0)
        return Append(PartitionKey(1, partition), batch, on_done=lambda: None, uses_log_append_time=False)

    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_of(7, 0))
    group = await take(queue)
    behind, other, elsewhere, alone = append_of(7, 0), append_of(8, 0), append_of(7, 1), append_of(7, 2)
    for append in (behind, other, elsewhere, alone):
        queue.put(append)
    assert queue.withdraw({behind.producer_key, alone.producer_key}) in ([behind, alone], [alone, behind])
    queue.give_back(group)
    assert await take(queue) == [other, elsewhere]


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


async def test_one_that_has_a_group_gets_the_next_when_as_much_waits_as_was_answered_last() -> None:
    queue = AppendQueue(max_bytes=1 << 20)
    first, second, third = append_to(0, 100), append_to(0, 60), append_to(0, 40)
    groups: list[list[Append]] = []
    queue.put(append_to(1, 100))
    queue.give_back(await take(queue))  # that is what was answered last
    queue.wait(groups.append)
    queue.put(first)
    await asyncio.sleep(0)
    queue.follow(groups.append)
    queue.put(second)
    await asyncio.sleep(0)
    assert groups == [[first]]
    queue.put(third)
    await asyncio.sleep(0)
    assert groups == [[first], [second, third]]
    # Two groups of the partition are out: it is free when both are back.
    queue.give_back(groups[0])
    later = append_to(0)
    queue.put(later)
    taking = asyncio.create_task(take(queue))
    assert await is_waiting(taking)
    queue.give_back(groups[1])
    assert await taking == [later]
    queue.give_back([later])
    async with asyncio.timeout(10):
        await queue.drained()


async def test_of_little_in_flight_the_next_group_is_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who are answered send as much again, which is worth waiting for: one commit instead of two."""
    monkeypatch.setattr(module, "GATHER_SECONDS", 60.0)
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0, 16_384))
    queue.put(append_to(0, 16_384))
    group = await take(queue)
    left = append_to(0, 16_384)
    queue.put(left)
    followed: list[list[Append]] = []
    queue.follow(followed.append)
    taking = asyncio.create_task(take(queue))
    assert await is_waiting(taking)
    assert followed == []
    queue.leave(followed.append)
    queue.give_back(group)
    sent = [append_to(0, 16_384), append_to(1, 16_384)]
    for append in sent:
        assert await is_waiting(taking)
        queue.put(append)
    assert await taking == [left, *sent]


async def test_what_does_not_come_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 0.001)
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0, 50_000))
    group = await take(queue)
    left = append_to(0)
    queue.put(left)
    queue.give_back(group)
    async with asyncio.timeout(10):
        assert await take(queue) == [left]


@pytest.mark.parametrize("in_flight", [[1_000, 1_000], [100_000, 50_000]], ids=["hardly any", "enough for two"])
async def test_what_is_hardly_any_or_enough_for_two_commits_does_not_wait(
    in_flight: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 60.0)
    queue = AppendQueue(max_bytes=1 << 20)
    queue.put(append_to(0, in_flight[0]))
    group = await take(queue)
    left = append_to(0, in_flight[1])
    queue.put(left)
    queue.give_back(group)
    async with asyncio.timeout(10):
        assert await take(queue) == [left]


async def test_a_follower_gets_nothing_but_its_own_partitions() -> None:
    """Another writer's are that one's, and what nobody has need not wait for a commit that may be held up."""
    queue = AppendQueue(max_bytes=1 << 20)
    mine: list[list[Append]] = []
    theirs: list[list[Append]] = []
    queue.wait(mine.append)
    queue.put(append_to(0))
    await asyncio.sleep(0)
    queue.wait(theirs.append)
    queue.put(append_to(1, OVERLAP_BYTES))
    await asyncio.sleep(0)
    queue.follow(mine.append)
    queue.put(append_to(1))
    queue.put(append_to(0, OVERLAP_BYTES))
    queue.put(append_to(2))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [[append.key.partition for append in group] for group in mine] == [[0], [0]]
    assert [[append.key.partition for append in group] for group in theirs] == [[1]]
    async with asyncio.timeout(10):
        assert [append.key.partition for append in await take(queue)] == [2]  # in a while


class Play:
    """Writers that take, follow and give back as they are told."""

    def __init__(self) -> None:
        self.queue = AppendQueue(max_bytes=100)
        self.put_so_far: list[Append] = []
        self.taken: list[Append] = []
        self.held: list[list[list[Append]]] = []
        """Of each writer, its groups: the first one and those that followed."""

    async def put(self, partition: int, size_bytes: int) -> None:
        self.put_so_far.append(append_to(partition, size_bytes))
        self.queue.put(self.put_so_far[-1])

    async def take(self, partition: int, size_bytes: int) -> None:
        if self.queue._ready_bytes:
            self.queue._is_overdue = True
            groups: list[list[Append]] = []
            await self._call(self.queue.wait, groups)
            self.held.append(groups)

    async def follow(self, partition: int, size_bytes: int) -> None:
        if self.held:
            self.queue._answered_bytes = 0
            groups = self.held[partition % len(self.held)]
            await self._call(self.queue.follow, groups)

    async def give_back(self, partition: int, size_bytes: int) -> None:
        if self.held:
            groups = self.held[partition % len(self.held)]
            self.queue.give_back(groups.pop(0))
            if not groups:
                self.held.remove(groups)

    async def _call(self, wait: Callable[[Writer], None], groups: list[list[Append]]) -> None:
        before = len(groups)
        wait(groups.append)
        await asyncio.sleep(0)
        self.queue.leave(groups.append)
        self.taken += [append for group in groups[before:] for append in group]

    def check(self) -> None:
        keys = [{append.key for group in groups for append in group} for groups in self.held]
        held = set().union(*keys)
        assert sum(map(len, keys)) == len(held), "no partition is with two writers"
        waiting = [append for append in self.put_so_far if append not in self.taken]
        ready = [append for append in waiting if append.key not in held]
        assert self.queue._ready_bytes == sum(len(append.batch.data) for append in ready)
        assert self.queue._ready_bytes + self.queue._held_bytes == sum(len(append.batch.data) for append in waiting)

    async def end(self) -> None:
        while self.held:
            await self.give_back(0, 0)
        while len(self.taken) < len(self.put_so_far):
            await self.take(0, 0)
            await self.give_back(0, 0)
        await self.queue.drained()


names = st.sampled_from(["put", "take", "follow", "give_back"])


@given(st.lists(st.tuples(names, st.integers(0, 3), st.integers(1, 80))))
def test_nothing_is_lost_or_overtaken_within_a_partition(steps: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        play = Play()
        for step, partition, size_bytes in steps:
            await getattr(play, step)(partition, size_bytes)
            play.check()
        async with asyncio.timeout(10):
            await play.end()
        for key in (PartitionKey(1, partition) for partition in range(4)):
            put = [append for append in play.put_so_far if append.key == key]
            assert [append for append in play.taken if append.key == key] == put

    asyncio.run(play())
