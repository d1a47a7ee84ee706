"""What is measured: the parts, the shapes of the records, how many, and their content."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["DEFAULT", "QUICK", "GroupLoad", "Part", "Shape", "Workload", "payloads"]

RECORD_SIZES = (100, 1024)
PARTITION_COUNTS = (1, 6)


class Part(StrEnum):
    """What can be asked for by name; measured in this order."""

    PRODUCE = "produce"
    CONSUME = "consume"
    LATENCY = "latency"
    KAFKA = "kafka"
    IDEMPOTENCE = "idempotence"
    TRANSACTIONS = "transactions"
    KEYS = "keys"
    WORKER = "worker"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True)
class Shape:
    """Records of one size in a topic of so many partitions; they have a value and nothing else."""

    record_bytes: int
    partitions: int

    def __str__(self) -> str:
        size = f"{self.record_bytes // 1024} KiB" if self.record_bytes % 1024 == 0 else f"{self.record_bytes} B"
        return f"{size} × {self.partitions}"


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """Groups with committed offsets; some of them have live members."""

    groups: int
    members: int
    members_per_group: int
    connections: int
    """Over which the heartbeats of all members go."""
    seconds: int

    def __str__(self) -> str:
        return (
            f"{self.groups:,} groups with committed offsets, {self.members} live members in "
            f"{self.members // self.members_per_group} of them, {self.connections} connections"
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """How much of everything one run does."""

    repetitions: int
    records: dict[int, int]
    """Per measurement, by record size."""
    latency_rate: int
    """Records per second."""
    latency_seconds: int
    kafka_records: dict[int, int]
    """Per measurement next to Apache Kafka, by record size: more, because each is a JVM that gets going, but no more
    than the gateway keeps in memory, which is what consumers read right after producing."""
    kafka_latency_seconds: int
    compared_records: dict[int, int]
    """Per run of transactions, by record size."""
    turn_records: dict[int, int]
    """Per turn of idempotence on or off, by record size."""
    turns: int
    """Of each of the two, in one repetition."""
    warmup_turns: int
    """Before them, not counted: a JVM compiles what it runs."""
    turns_until_settled: int
    """Of each of the two, before dirty pages are written: less than makes PostgreSQL begin a checkpoint by itself."""
    commits: int
    """Small transactions whose commits are timed."""
    end_commits: dict[int, int]
    """How many transactions are ended for EndTxn's cost, by the number of their records."""
    group_load: GroupLoad
    shapes: tuple[Shape, ...] = tuple(Shape(size, count) for size in RECORD_SIZES for count in PARTITION_COUNTS)
    idempotence_shapes: tuple[Shape, ...] = (Shape(1024, 6), Shape(100, 6))
    keys_shapes: tuple[Shape, ...] = (Shape(1024, 6), Shape(100, 6))
    transaction_shapes: tuple[Shape, ...] = (Shape(1024, 6), Shape(100, 6))
    is_doubled: bool = True
    """Both sides of a comparison of producing are run twice."""
    latency_shape: Shape = Shape(1024, 6)
    isolation_shape: Shape = Shape(1024, 6)
    commit_shape: Shape = Shape(100, 3)
    commit_records: int = 10
    worker_shape: Shape = Shape(100, 6)
    worker_effects: dict[int, int] = field(default_factory=lambda: {1: 1_500, 100: 10_000})
    """Records that a worker works on, by how many share a commit."""


DEFAULT = Workload(
    repetitions=5,
    records={100: 250_000, 1024: 100_000},
    latency_rate=1000,
    latency_seconds=8,
    kafka_records={100: 1_200_000, 1024: 240_000},
    kafka_latency_seconds=5,
    compared_records={100: 1_000_000, 1024: 250_000},
    turn_records={100: 25_000, 1024: 6_000},
    turns=90,
    warmup_turns=15,
    turns_until_settled=15,
    commits=300,
    end_commits={10: 20, 1_000: 20, 100_000: 5},
    group_load=GroupLoad(groups=1000, members=200, members_per_group=5, connections=20, seconds=10),
)
QUICK = Workload(
    repetitions=1,
    records={100: 10_000, 1024: 5_000},
    latency_rate=1000,
    latency_seconds=2,
    kafka_records={100: 50_000, 1024: 20_000},
    kafka_latency_seconds=2,
    compared_records={100: 10_000, 1024: 5_000},
    turn_records={100: 5_000, 1024: 2_000},
    turns=2,
    warmup_turns=1,
    turns_until_settled=2,
    commits=20,
    end_commits={10: 3, 1_000: 3, 10_000: 2},
    is_doubled=False,
    worker_effects={1: 200, 100: 1_000},
    group_load=GroupLoad(groups=50, members=20, members_per_group=5, connections=4, seconds=3),
)


def payloads(record_bytes: int) -> list[bytes]:
    """A few values of random letters, as Kafka's ProducerPerformance sends them; the same in every run."""
    letters = random.Random(record_bytes)
    return [bytes(letters.choices(range(65, 91), k=record_bytes)) for _ in range(64)]
