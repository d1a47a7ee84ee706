"""A worker process that books payments, and fails, hangs and is killed while it does.

Each payment it is handed is a line in its log before anything else happens: number, attempt, offset, last error.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from gateway.worker import Reject, Work, run_worker

FAILURE, HANG = 0.05, 0.002
HANG_S = 2.5
"""Longer than the topic's ack timeout."""


class Poisoned(Exception):
    """This payment always fails."""


def main() -> None:
    database_url, topic, group_id, seed, batch, log_path = sys.argv[1:]
    chance = random.Random(int(seed))
    with Path(log_path).open("a", buffering=1) as log:

        def book(work: Work[psycopg.Connection[Any]]) -> None:
            delivery = work.delivery
            assert delivery.value is not None
            payment = json.loads(delivery.value)
            number, attempts = payment["number"], delivery.attempts
            log.write(f"{number} {attempts} {delivery.offset} {delivery.last_error}\n")
            work.connection.execute(
                "INSERT INTO payments (number, amount) VALUES (%s, %s)", [number, payment["amount"]]
            )
            if payment["kind"] == "poisoned":
                raise Poisoned(f"payment {number}")
            if payment["kind"] == "refused":
                raise Reject(f"payment {number} is refused")
            # A good payment fails a few times at most, so that it is never given up.
            if attempts <= 3 and chance.random() < FAILURE:
                raise RuntimeError("chance")
            if attempts <= 2 and chance.random() < HANG:
                time.sleep(HANG_S)
            work.produce("receipts", b"%d" % number, key=b"%d" % number)

        run_worker(lambda: psycopg.connect(database_url), topic, group_id, book, batch=int(batch), idle_s=0.05)


if __name__ == "__main__":
    main()
