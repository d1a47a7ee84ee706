"""Workers: effects that happen once. See docs/effects-once.md.

Records of a topic are delivered to the workers of a group straight from PostgreSQL; what a worker writes, the mark of
the record's key, the records it produces and the group's offset become true in one commit.
"""

from __future__ import annotations

from gateway.domain.idempotency import Identity
from gateway.worker.aio import AsyncWorker, run_async_worker
from gateway.worker.errors import ConnectionLost, DeliveryLost, GroupInUse, Reject, UnknownTopic, WorkerError
from gateway.worker.model import Begun, Delivery, NewRecord, Work
from gateway.worker.sync import Worker, run_worker

__all__ = [
    "AsyncWorker",
    "Begun",
    "ConnectionLost",
    "Delivery",
    "DeliveryLost",
    "GroupInUse",
    "Identity",
    "NewRecord",
    "Reject",
    "UnknownTopic",
    "Work",
    "Worker",
    "WorkerError",
    "run_async_worker",
    "run_worker",
]
