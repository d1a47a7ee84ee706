"""What is measured: the shapes of the records, how many, and their content."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["DEFAULT", "QUICK", "Shape", "Workload", "payloads"]

RECORD_SIZES = (100, 1024)
PARTITION_COUNTS = (1, 6)


@dataclass(frozen=True, slots=True)
class Shape:
    """Records of one size in a topic of so many partitions; they have a value and nothing else."""

    record_bytes: int
    partitions: int

    def __str__(self) -> str:
        size = f"{self.record_bytes // 1024} KiB" if self.record_bytes % 1024 == 0 else f"{self.record_bytes} B"
        return f"{size} × {self.partitions}"


@dataclass(frozen=True, slots=True)
class Workload:
    """How much of everything one run does."""

    repetitions: int
    records: dict[int, int]
    """Per measurement, by record size."""
    latency_rate: int
    """Records per second."""
    latency_seconds: int
    shapes: tuple[Shape, ...] = tuple(Shape(size, count) for size in RECORD_SIZES for count in PARTITION_COUNTS)
    latency_shape: Shape = Shape(1024, 6)


DEFAULT = Workload(repetitions=5, records={100: 250_000, 1024: 100_000}, latency_rate=1000, latency_seconds=10)
QUICK = Workload(repetitions=1, records={100: 10_000, 1024: 5_000}, latency_rate=1000, latency_seconds=2)


def payloads(record_bytes: int) -> list[bytes]:
    """A few values of random letters, as Kafka's ProducerPerformance sends them; the same in every run."""
    letters = random.Random(record_bytes)
    return [bytes(letters.choices(range(65, 91), k=record_bytes)) for _ in range(64)]
