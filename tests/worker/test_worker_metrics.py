"""What a gateway tells monitoring of the workers on its database."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

from gateway.worker import Begun, Reject, Work
from tests.support.gateway_process import GatewayProcess
from tests.worker.conftest import Desk


def test_retries_dead_letters_and_what_is_in_flight_are_metrics(desk: Desk, tmp_path: Path) -> None:
    desk.topic(delivery_ordering="pass")
    desk.append(b"fails", b"never", b"in hand")

    def handler(work: Work[Any]) -> None:
        if work.delivery.value == b"never":
            raise Reject("no")
        raise ValueError("not yet")

    worker = desk.worker()
    for _ in range(2):
        worker.work(worker.take(), handler)
    worker.take()
    with (
        GatewayProcess(desk.url, directory=tmp_path) as gateway,
        urllib.request.urlopen(f"{gateway.http_url}/metrics") as answer,
    ):
        text = answer.read().decode()
    labels = '{consumergroup="desk",topic="orders"}'
    for line in (
        f"tablewire_deliveries_in_flight{labels} 1.0",
        f"tablewire_deliveries_waiting{labels} 1.0",
        f"tablewire_dead_letters{labels} 1.0",
        "tablewire_delivery_retries_total 1.0",
        "tablewire_delivery_timeouts_total 0.0",
        "tablewire_delivery_dead_lettered_total 1.0",
        "tablewire_delivery_redriven_total 0.0",
    ):
        assert line in text.splitlines()


def test_what_becomes_of_keys_is_counted_in_the_process_of_the_worker(desk: Desk) -> None:
    desk.topic(delivery_ordering="pass")
    desk.append(b"done", b"done again", key="a")
    desk.append(b"fails", key="b")
    desk.append(b"held", key="c")
    desk.append(b"has no key")
    desk.append(b"outside", key="d")
    desk.rows("SELECT kafka.begin_once('', 'orders', 'desk', 'c', interval '1 hour')")

    def handler(work: Work[Any]) -> None:
        if work.delivery.value == b"fails":
            raise ValueError("not yet")

    before = counted()
    worker = desk.worker()
    *inside, outside = worker.take(6)
    worker.work(inside, handler)
    assert worker.begin(outside) is Begun.STARTED
    worker.ack(outside)
    after = counted()
    assert {name: after[name] - before[name] for name in after} == {
        "begun": 2,
        "committed": 2,
        "failed": 1,
        "duplicate": 1,
        "held": 1,
    }


def counted() -> dict[str, float]:
    names = ("begun", "committed", "failed", "duplicate", "held")
    return {name: REGISTRY.get_sample_value("tablewire_worker_keys_total", {"outcome": name}) or 0.0 for name in names}
