"""A consumer of any Kafka client joins the group of workers, through a gateway: who gets what, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from gateway.worker import GroupInUse, Work
from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_for
from tests.worker.conftest import Desk


@pytest.fixture
def gateway(desk: Desk, tmp_path: Path) -> Iterator[GatewayProcess]:
    settings = {"TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    with GatewayProcess(desk.url, directory=tmp_path, settings=settings) as process:
        yield process


def book(work: Work[Any]) -> None:
    value = work.delivery.value
    assert value is not None
    work.connection.execute("INSERT INTO payments VALUES (%s, %s)", [int(value), work.delivery.attempts])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_joins_a_workers_group_has_it_until_it_leaves(
    desk: Desk, payments: Callable[[], list[int]], gateway: GatewayProcess, protocol: str
) -> None:
    desk.topic()
    desk.append(b"1", b"2", b"3")
    worker = desk.worker()
    (first,) = worker.take()
    worker.work([first], book)
    (second,) = worker.take()

    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": "desk",
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(30)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"2"), "it begins behind what is settled"
    with pytest.raises(GroupInUse, match="group desk has members"):
        worker.work([second], book)
    with pytest.raises(GroupInUse):
        desk.worker().take()
    assert payments() == [1], "what a worker had in hand is undone"

    consumer.commit(message, asynchronous=False)
    consumer.close()
    wait_for(lambda: desk.rows("SELECT state FROM kafka.groups"), [("Empty",)], timeout_s=30)
    worker.run(book, until_idle=True)
    assert payments() == [1, 3], "what the consumer has committed is its own"
    assert desk.committed() == {0: 3}
