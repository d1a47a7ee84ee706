"""Workers on asyncio connections: the same scripts, carried out by `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from gateway.worker import AsyncWorker, Begun, Reject, Work, WorkerError, run_async_worker
from tests.worker.conftest import Desk

Payments = Callable[[], list[int]]


async def book(work: Work[Any]) -> None:
    delivery = work.delivery
    number = int(delivery.value or b"")
    await work.connection.execute("INSERT INTO payments VALUES (%s, %s)", [number, delivery.attempts])
    if delivery.value == b"3" and delivery.attempts == 1:
        raise ValueError("once")
    if delivery.value == b"4":
        raise Reject("never")
    work.produce("receipts", b"r", key=delivery.value)


@pytest.mark.parametrize("batch", [1, 10])
async def test_two_workers_share_a_topic(desk: Desk, payments: Payments, batch: int) -> None:
    desk.topic(partitions=2, delivery_ordering="pass", delivery_backoff_ms=0)
    desk.topic("receipts", partitions=3)
    for number in range(10):
        desk.append(b"%d" % number, partition=number % 2, key=f"k{number}")
    is_over = False

    async def run() -> None:
        await run_async_worker(
            lambda: psycopg.AsyncConnection.connect(desk.url),
            "orders",
            "desk",
            book,
            batch=batch,
            must_stop=lambda: is_over,
            idle_s=0.01,
        )

    running = [asyncio.create_task(run()) for _ in range(2)]
    while desk.committed() != {0: 5, 1: 5}:
        await asyncio.sleep(0.02)
        for task in running:
            assert not task.done(), task.exception()
    is_over = True
    await asyncio.gather(*running)
    assert payments() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert desk.rows("SELECT count(*) FROM kafka.committed_messages WHERE topic = 'receipts'") == [(9,)]
    assert desk.rows("SELECT last_error FROM kafka.dead_letters") == [("never",)]


async def test_an_effect_outside_postgresql(desk: Desk) -> None:
    desk.topic()
    desk.append(b"1", b"2", key=None)
    async with await psycopg.AsyncConnection.connect(desk.url) as connection:
        worker = AsyncWorker(connection, "orders", "desk")
        (delivery,) = await worker.take()
        assert await worker.begin(delivery) is Begun.STARTED
        await worker.extend(delivery)
        await worker.ack(delivery)
        (delivery,) = await worker.take(wait_s=1)
        await worker.nack(delivery, "no")
        assert await worker.take() == []
    assert desk.deliveries() == [(1, "available", 1, "no")]
    assert worker.name


async def test_a_connection_with_a_transaction_open_is_refused(desk: Desk) -> None:
    async with await psycopg.AsyncConnection.connect(desk.url) as connection:
        await connection.execute("SELECT 1")
        with pytest.raises(WorkerError, match="transaction open"):
            AsyncWorker(connection, "orders", "desk")


async def test_a_connection_that_breaks_is_replaced_and_what_it_held_is_tried_again(
    desk: Desk, payments: Payments
) -> None:
    desk.topic(delivery_backoff_ms=0)
    desk.topic("receipts")
    desk.append(b"1", b"2")
    broken: list[int] = []

    async def break_once(work: Work[Any]) -> None:
        await book(work)
        if not broken:
            broken.append(work.connection.info.backend_pid)
            desk.rows("SELECT pg_terminate_backend(%s)", broken[0])
            await work.connection.execute("SELECT 1")

    await run_async_worker(
        lambda: psycopg.AsyncConnection.connect(desk.url),
        "orders",
        "desk",
        break_once,
        must_stop=lambda: payments() == [1, 2],
        idle_s=0.01,
    )
    assert desk.rows("SELECT number, attempts FROM payments ORDER BY 1") == [(1, 2), (2, 1)]
    assert desk.rows("SELECT count(*) FROM kafka.committed_messages WHERE topic = 'receipts'") == [(2,)]


async def test_a_task_that_is_cancelled_leaves_nothing(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1")
    begun = asyncio.Event()

    async def hang(work: Work[Any]) -> None:
        await book(work)
        begun.set()
        await asyncio.sleep(60)

    async with await psycopg.AsyncConnection.connect(desk.url) as connection:
        worker = AsyncWorker(connection, "orders", "desk")
        task = asyncio.create_task(worker.run(hang))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert payments() == []
