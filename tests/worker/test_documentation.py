"""The example of docs/effects-once.md, as it is printed there."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.support.gateway_process import REPOSITORY, GatewayProcess
from tests.support.waiting import wait_for
from tests.worker.conftest import Desk


def example() -> dict[str, Any]:
    page = (REPOSITORY / "docs" / "effects-once.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(# payments\.py.*?)```", page, flags=re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(compile(found[1], "payments.py", "exec"), names)
    return names


def test_the_example_books_each_payment_once(desk: Desk, tmp_path: Path) -> None:
    names = example()
    main = names["main"]
    # Two that create it at once would meet in PostgreSQL's catalogue.
    desk.connection.execute(names["TABLE"])
    is_over = threading.Event()
    with GatewayProcess(desk.url, directory=tmp_path) as gateway:
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap})
        for topic in ("payments", "receipts"):
            desk.topic(topic)
        for number in (1, 2, 3, 2, 1, 2):
            payment = {"number": number, "account": f"a{number}", "amount": number * 10}
            producer.produce("payments", json.dumps(payment), headers=[("idempotency-key", f"payment-{number}")])
        producer.produce("payments", json.dumps({"number": 4, "account": "a", "amount": 0}))
        assert producer.flush(30) == 0
        workers = [
            threading.Thread(target=main, args=[desk.url], kwargs={"must_stop": is_over.is_set}, daemon=True)
            for _ in range(2)
        ]
        for worker in workers:
            worker.start()
        wait_for(lambda: desk.committed("bookkeeping"), {0: 7}, timeout_s=60)
        is_over.set()
        for worker in workers:
            worker.join(30)
        assert not any(worker.is_alive() for worker in workers)
    booked = desk.rows("SELECT number, account, amount FROM payments ORDER BY number")
    assert booked == [(1, "a1", 10), (2, "a2", 20), (3, "a3", 30)]
    assert desk.rows("SELECT count(*) FROM kafka.committed_messages WHERE topic = 'receipts'") == [(3,)]
    assert desk.rows("SELECT last_error FROM kafka.dead_letters") == [("a payment must be more than nothing",)]
