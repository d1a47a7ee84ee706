"""The tail: newest batches in memory, against a naive model."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.broker.tail import Tail
from gateway.protocol.batches import BatchLimits, StoredBatch, decode_produced
from gateway.storage.log import PartitionKey
from tests.support.handmade import make_batch

KEY = PartitionKey(1, 0)


def fill(tail: Tail, *sizes: int, records: int = 10, key: PartitionKey = KEY) -> None:
    for index, size in enumerate(sizes):
        tail.add(
            key,
            base_offset=index * records,
            next_offset=(index + 1) * records,
            batch=bytes([index]) * size,
        )


def test_batches_come_whole_from_the_one_that_holds_the_offset() -> None:
    tail = Tail(limit_bytes=1000)
    fill(tail, 5, 5, 5)
    assert tail.read(KEY, start_offset=13, end_offset=30, max_bytes=1000) == ([b"\1" * 5, b"\2" * 5], 30)


def test_the_first_batch_comes_whatever_its_size_the_next_only_if_it_fits() -> None:
    tail = Tail(limit_bytes=1000)
    fill(tail, 50, 5, 5)
    assert tail.read(KEY, start_offset=0, end_offset=30, max_bytes=1) == ([b"\0" * 50], 10)
    assert tail.read(KEY, start_offset=0, end_offset=30, max_bytes=55) == ([b"\0" * 50, b"\1" * 5], 20)


def test_a_batch_beyond_the_end_is_not_shown() -> None:
    tail = Tail(limit_bytes=1000)
    fill(tail, 5, 5, 5)
    assert tail.read(KEY, start_offset=0, end_offset=20, max_bytes=1000) == ([b"\0" * 5, b"\1" * 5], 20)
    assert tail.read(KEY, start_offset=0, end_offset=19, max_bytes=1000) == ([b"\0" * 5], 10)
    assert tail.read(KEY, start_offset=15, end_offset=19, max_bytes=1000) is None


def test_a_produced_batch_is_made_servable_once_and_counted_by_its_size() -> None:
    sent = make_batch([b"one", b"two"])
    produced = decode_produced(sent, BatchLimits(max_batch_bytes=10_000, max_decompressed_bytes=10_000))
    stored = StoredBatch(produced, base_offset=7, leader_epoch=3, log_append_time_ms=None)
    tail = Tail(limit_bytes=1000)
    tail.add(KEY, base_offset=7, next_offset=9, batch=stored)
    assert tail.size_bytes == len(sent)
    first, second = (tail.read(KEY, start_offset=7, end_offset=9, max_bytes=1000) for _ in range(2))
    assert first == ([bytes(stored)], 9)
    assert second is not None
    assert first[0][0] is second[0][0]
    tail.forget(KEY)
    assert tail.size_bytes == 0


def test_an_offset_that_is_not_held_is_none() -> None:
    tail = Tail(limit_bytes=1000)
    assert tail.read(KEY, start_offset=0, end_offset=9, max_bytes=9) is None
    tail.add(KEY, base_offset=100, next_offset=110, batch=b"x")
    assert tail.read(KEY, start_offset=99, end_offset=110, max_bytes=9) is None
    assert tail.read(KEY, start_offset=110, end_offset=120, max_bytes=9) is None
    assert tail.read(PartitionKey(1, 1), start_offset=100, end_offset=110, max_bytes=9) is None


def test_a_gap_forgets_what_came_before_it() -> None:
    tail = Tail(limit_bytes=1000)
    fill(tail, 5, 5)
    tail.add(KEY, base_offset=50, next_offset=60, batch=b"new")
    assert tail.read(KEY, start_offset=10, end_offset=60, max_bytes=1000) is None
    assert tail.read(KEY, start_offset=50, end_offset=60, max_bytes=1000) == ([b"new"], 60)
    assert tail.size_bytes == 3


def test_a_batch_above_the_limit_is_not_kept_and_breaks_the_run() -> None:
    tail = Tail(limit_bytes=10)
    fill(tail, 5)
    tail.add(KEY, base_offset=10, next_offset=20, batch=bytes(11))
    assert tail.size_bytes == 0
    assert tail.read(KEY, start_offset=0, end_offset=20, max_bytes=1000) is None


def test_a_limit_of_nothing_keeps_nothing() -> None:
    tail = Tail(limit_bytes=0)
    fill(tail, 5, 5)
    assert tail.size_bytes == 0


def test_the_oldest_of_all_partitions_go_first() -> None:
    tail = Tail(limit_bytes=20)
    other = PartitionKey(2, 0)
    fill(tail, 8)
    fill(tail, 8, key=other)
    tail.add(KEY, base_offset=10, next_offset=20, batch=bytes(8))
    assert tail.read(KEY, start_offset=0, end_offset=20, max_bytes=99) is None
    assert tail.read(other, start_offset=0, end_offset=10, max_bytes=99) is not None
    assert tail.read(KEY, start_offset=10, end_offset=20, max_bytes=99) is not None


def test_a_topic_is_forgotten_as_a_whole() -> None:
    tail = Tail(limit_bytes=1000)
    for partition in range(3):
        fill(tail, 5, key=PartitionKey(1, partition))
    fill(tail, 5, key=PartitionKey(2, 0))
    tail.forget_topic(1)
    assert tail.size_bytes == 5


def test_a_partition_that_comes_and_goes_leaves_nothing_behind() -> None:
    """Two gateways that write by turns break the run at every batch."""
    tail = Tail(limit_bytes=1000)
    for index in range(5000):
        tail.add(KEY, base_offset=index * 20, next_offset=index * 20 + 10, batch=b"x")
    assert tail.size_bytes == 1
    assert len(tail._age) < 3000


@dataclass
class Model:
    """Per partition a list of (base, next, batch); evicted by age over all of them."""

    limit_bytes: int
    runs: dict[PartitionKey, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    age: list[tuple[PartitionKey, tuple[int, int, bytes]]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(len(batch) for run in self.runs.values() for _, _, batch in run)

    def forget(self, key: PartitionKey) -> None:
        self.runs.pop(key, None)
        self.age = [entry for entry in self.age if entry[0] != key]

    def add(self, key: PartitionKey, entry: tuple[int, int, bytes]) -> None:
        run = self.runs.get(key)
        if len(entry[2]) > self.limit_bytes:
            self.forget(key)
            return
        if run is None or run[-1][1] != entry[0]:
            self.forget(key)
            run = self.runs[key] = []
        run.append(entry)
        self.age.append((key, entry))
        while self.size_bytes > self.limit_bytes:
            oldest, _ = self.age.pop(0)
            self.runs[oldest].pop(0)
            if not self.runs[oldest]:
                del self.runs[oldest]

    def read(self, key: PartitionKey, start: int, end: int, max_bytes: int) -> tuple[list[bytes], int] | None:
        found: list[bytes] = []
        after = start
        for base, next_offset, batch in self.runs.get(key, []):
            if next_offset <= start or (not found and base > start):
                continue
            if next_offset > end or (found and sum(map(len, found)) + len(batch) > max_bytes):
                break
            found.append(batch)
            after = next_offset
        return (found, after) if found else None


class TailAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tail, self.model = Tail(limit_bytes=100), Model(100)
        self.ends: dict[PartitionKey, int] = {}

    keys = st.builds(PartitionKey, st.integers(1, 2), st.integers(0, 1))

    @rule(key=keys, size=st.integers(0, 60), records=st.integers(1, 5), gap=st.sampled_from([0, 0, 0, 3]))
    def add(self, key: PartitionKey, size: int, records: int, gap: int) -> None:
        base = self.ends.get(key, 0) + gap
        self.ends[key] = base + records
        batch = bytes([base % 256]) * size
        self.tail.add(key, base_offset=base, next_offset=base + records, batch=batch)
        self.model.add(key, (base, base + records, batch))

    @rule(key=keys)
    def forget(self, key: PartitionKey) -> None:
        self.tail.forget(key)
        self.model.forget(key)

    @rule(key=keys, back=st.integers(0, 30), hidden=st.integers(0, 6), max_bytes=st.integers(0, 120))
    def read(self, key: PartitionKey, back: int, hidden: int, max_bytes: int) -> None:
        end = self.ends.get(key, 0)
        start = max(0, end - back)
        found = self.tail.read(key, start_offset=start, end_offset=end - hidden, max_bytes=max_bytes)
        assert found == self.model.read(key, start, end - hidden, max_bytes)

    @invariant()
    def has_the_same_size(self) -> None:
        assert self.tail.size_bytes == self.model.size_bytes <= 100


TailAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTailAgainstModel = TailAgainstModel.TestCase
