"""Effects outside PostgreSQL: the key is begun in a commit of its own, and the window is the documented one."""

from __future__ import annotations

import pytest

from gateway.worker import Begun, DeliveryLost, NewRecord, WorkerError
from tests.worker.conftest import Desk


def keys(desk: Desk) -> list[object]:
    return desk.rows("SELECT status, attempts, last_error FROM kafka.idempotency_keys")


def test_begin_effect_ack(desk: Desk) -> None:
    desk.topic()
    desk.topic("receipts")
    desk.append(b"1", b"1", key="one")
    worker = desk.worker()
    (delivery,) = worker.take()
    assert worker.begin(delivery) is Begun.STARTED
    assert keys(desk) == [("PENDING", 1, None)]
    worker.ack(delivery, result="charge 7", produced=[NewRecord("receipts", b"done")])
    assert keys(desk) == [("COMMITTED", 1, None)]
    assert desk.rows("SELECT count(*) FROM kafka.committed_messages WHERE topic = 'receipts'") == [(1,)]
    (copy,) = worker.take()
    assert worker.begin(copy) is Begun.ALREADY_DONE
    assert (desk.deliveries(), desk.committed()) == ([], {0: 2})


def test_a_nack_lets_the_key_be_begun_again(desk: Desk) -> None:
    desk.topic(delivery_backoff_ms=0)
    desk.append(b"1", key="one")
    worker = desk.worker()
    (delivery,) = worker.take()
    worker.begin(delivery)
    worker.nack(delivery, "card refused")
    assert keys(desk) == [("FAILED", 1, "card refused")]
    (again,) = worker.take()
    assert (again.attempts, again.last_error) == (2, "card refused")
    assert worker.begin(again) is Begun.STARTED
    worker.nack(again, "stolen card", retryable=False)
    assert keys(desk) == [("FAILED", 2, "stolen card")]
    assert desk.rows("SELECT attempts, last_error FROM kafka.dead_letters") == [(2, "stolen card")]


def test_a_crash_between_effect_and_mark_is_seen_when_the_lease_is_over(desk: Desk) -> None:
    """The honest window: the effect may have happened, and nobody but the outside world knows."""
    desk.topic(delivery_ack_timeout_ms=60_000)
    desk.append(b"1", key="one")
    crashed = desk.worker()
    (delivery,) = crashed.take()
    crashed.begin(delivery)
    crashed.connection.close()
    other = desk.worker()
    assert other.take() == []
    desk.expire()
    (again,) = desk.worker().take()
    assert (again.attempts, again.last_error) == (2, "ack_timeout")
    last = desk.worker()
    desk.expire()
    (again,) = last.take()
    assert last.begin(again) is Begun.IN_FLIGHT, "its key is leased for a moment longer"
    assert desk.deliveries() == [(0, "available", 2, "ack_timeout")], "which counts as no attempt"
    desk.connection.execute("UPDATE kafka.idempotency_keys SET lease_until = now() - interval '1 second'")
    desk.make_due()
    (again,) = last.take()
    assert last.begin(again) is Begun.STARTED
    last.ack(again)
    assert desk.committed() == {0: 1}


def test_whoever_is_too_late_is_told_so(desk: Desk) -> None:
    desk.topic()
    desk.append(b"1", key="one")
    slow, quick = desk.worker(), desk.worker()
    (delivery,) = slow.take()
    slow.begin(delivery)
    slow.extend(delivery)
    desk.expire()
    desk.connection.execute("UPDATE kafka.idempotency_keys SET lease_until = now() - interval '1 second'")
    (again,) = quick.take()
    assert quick.begin(again) is Begun.STARTED
    for late in (lambda: slow.ack(delivery), lambda: slow.extend(delivery)):
        with pytest.raises(DeliveryLost):
            late()
    slow.nack(delivery, "whatever")  # changes nothing either
    quick.ack(again)
    assert keys(desk) == [("COMMITTED", 2, keys(desk)[0][2])]  # type: ignore[index]
    assert desk.committed() == {0: 1}


def test_more_time_is_as_long_as_the_ack_timeout(desk: Desk) -> None:
    desk.topic()
    desk.append(b"1", key="one")
    worker = desk.worker()
    (delivery,) = worker.take()
    worker.begin(delivery)
    desk.expire()
    worker.extend(delivery)
    assert desk.rows("SELECT leased_until > now() + interval '20 seconds' FROM kafka.deliveries") == [(True,)]
    assert desk.worker().take() == []
    worker.ack(delivery)


def test_a_record_without_a_key_needs_no_begin_and_one_with_a_key_does(desk: Desk) -> None:
    desk.topic()
    desk.append(b"1")
    desk.append(b"2", key="two")
    worker = desk.worker()
    (first,) = worker.take()
    worker.ack(first)
    (second,) = worker.take()
    with pytest.raises(WorkerError, match="must be begun"):
        worker.ack(second)
    worker.give_back([second])
    assert desk.deliveries() == [(1, "available", 0, None)]
