"""Workers in one transaction: effect, mark, output and offset become true together; what fails is tried again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from gateway.worker import GroupInUse, Reject, UnknownTopic, Work, Worker, WorkerError, run_worker
from tests.support.waiting import wait_for
from tests.worker.conftest import Desk

Payments = Callable[[], list[int]]


def book(work: Work[Any]) -> None:
    value = work.delivery.value
    assert value is not None
    work.connection.execute("INSERT INTO payments VALUES (%s, %s)", [int(value), work.delivery.attempts])


def book_unless(*poisoned: bytes) -> Callable[[Work[Any]], None]:
    def handler(work: Work[Any]) -> None:
        book(work)
        if work.delivery.value in poisoned:
            raise ValueError("poison")

    return handler


def drain(worker: Worker, handler: Callable[[Work[Any]], object] = book, *, batch: int = 1) -> None:
    worker.run(handler, batch=batch, until_idle=True)


# --- the first try ----------------------------------------------------------------------------


def test_effect_mark_output_and_offset_become_true_in_one_commit(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.topic("receipts")
    desk.append(b"7", key="seven", tenant="acme")

    def seen() -> list[Any]:
        return desk.rows(
            "SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM kafka.idempotency_keys),"
            " (SELECT count(*) FROM kafka.committed_messages WHERE topic = 'receipts'),"
            " (SELECT sum(committed_offset) FROM kafka.consumer_offsets)::int"
        )

    def handler(work: Work[Any]) -> None:
        book(work)
        work.result = "booking 1"
        work.produce("receipts", b"booked", key=b"7", headers=[("of", b"seven")])
        assert seen() == [(0, 0, 0, 0)]

    drain(desk.worker(), handler)
    assert seen() == [(1, 1, 1, 1)]
    keys = desk.rows("SELECT tenant, key, status, result_reference, group_id, attempts FROM kafka.idempotency_keys")
    assert keys == [("acme", "seven", "COMMITTED", "booking 1", "desk", 1)]
    assert desk.deliveries() == []


def test_a_record_produced_with_a_key_goes_where_kafkas_client_would_send_it(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.topic("receipts", partitions=7)
    desk.append(b"1")

    def handler(work: Work[Any]) -> None:
        for key in (b"21", b"foobar", b"a-little-bit-long-string"):
            work.produce("receipts", b"", key=key)
        work.produce("receipts", b"", partition=6)
        work.produce("receipts", b"chance")

    drain(desk.worker(), handler)
    found = desk.rows(
        "SELECT convert_from(key, 'UTF8'), partition FROM kafka.committed_messages WHERE topic = 'receipts'"
    )
    # murmur2 of Kafka's own tests: -973932308, -790332482, -985981536.
    expected = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    wanted = {key: (number & 0x7FFFFFFF) % 7 for key, number in expected.items()}
    assert {key: partition for key, partition in found if key is not None} == wanted
    assert len(found) == 5


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_everything_is_worked_on_once_whatever_the_batch(desk: Desk, payments: Payments, batch: int) -> None:
    desk.topic(partitions=3)
    for number in range(20):
        desk.append(b"%d" % number, partition=number % 3)
    drain(desk.worker(), batch=batch)
    assert payments() == list(range(20))
    assert desk.committed() == {0: 7, 1: 7, 2: 6}
    assert desk.deliveries() == []


def test_a_group_begins_at_the_start_at_the_end_or_where_it_was(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"2")
    drain(desk.worker(group_id="late", from_latest=True))
    assert payments() == []
    desk.connection.execute("INSERT INTO kafka.groups (group_id) VALUES ('second')")
    desk.connection.execute(
        "INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition, committed_offset)"
        " SELECT 'second', topic_id, 0, 1 FROM kafka.topics"
    )
    drain(desk.worker(group_id="second"))
    assert payments() == [2]
    drain(desk.worker(group_id="first"))
    assert payments() == [1, 2, 2]


def test_what_was_aborted_and_markers_are_passed_over(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"2", b"3")
    desk.connection.execute(
        "UPDATE kafka.messages SET is_transactional = true, producer_id = 9, producer_epoch = 0, sequence = 0"
        ' WHERE "offset" = 1'
    )
    desk.connection.execute('UPDATE kafka.messages SET control_type = 0, is_transactional = true WHERE "offset" = 2')
    desk.connection.execute(
        "INSERT INTO kafka.aborted_transactions (topic_id, partition, producer_id, first_offset, last_offset)"
        " SELECT topic_id, 0, 9, 1, 2 FROM kafka.topics"
    )
    worker = desk.worker()
    drain(worker)
    assert payments() == [1]
    assert desk.committed() == {0: 3}


def test_records_of_an_open_transaction_wait_for_its_end(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"2")
    desk.connection.execute("UPDATE kafka.partitions SET last_stable_offset = 1")
    worker = desk.worker()
    drain(worker)
    assert (payments(), desk.committed()) == ([1], {0: 1})
    desk.connection.execute("UPDATE kafka.partitions SET last_stable_offset = 2")
    drain(worker)
    assert (payments(), desk.committed()) == ([1, 2], {0: 2})


def test_a_topic_that_grows_is_noticed(desk: Desk, payments: Payments) -> None:
    desk.topic()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(desk.worker().run, book, must_stop=stop.is_set, idle_s=0.01)
        desk.append(b"1")
        wait_for(payments, [1])
        desk.connection.execute("UPDATE kafka.topics SET partition_count = 2")
        desk.connection.execute(
            "INSERT INTO kafka.partitions (topic_id, partition) SELECT topic_id, 1 FROM kafka.topics"
        )
        desk.append(b"2", partition=1)
        wait_for(payments, [1, 2])
        stop.set()
        running.result(30)


# --- keys -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 10])
def test_a_key_that_is_done_is_not_worked_on_again(desk: Desk, payments: Payments, batch: int) -> None:
    desk.topic(partitions=2)
    for _ in range(3):
        desk.append(b"1", key="one")
        desk.append(b"1", key="one", partition=1)
        desk.append(b"2", key="one", tenant="another")
    drain(desk.worker(), batch=batch)
    assert payments() == [1, 2]
    assert desk.committed() == {0: 6, 1: 3}


def test_two_groups_do_not_suppress_each_other(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", key="one")
    drain(desk.worker(group_id="a"))
    drain(desk.worker(group_id="b"))
    assert payments() == [1, 1]


def test_a_worker_may_do_without_keys(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"1", key="one")
    drain(desk.worker(uses_keys=False))
    assert payments() == [1, 1]


@pytest.mark.parametrize("ordering", ["in-place", "pass"])
def test_a_key_that_another_worker_has_in_hand_is_waited_for_and_found_done(
    desk: Desk, payments: Payments, ordering: str
) -> None:
    desk.topic(partitions=2, delivery_ordering=ordering)
    desk.append(b"1", key="one")
    desk.append(b"1", b"2", key="one", partition=1)
    other = desk.connect()
    (said,) = other.execute("SELECT kafka.begin_once('', 'orders', 'desk', 'one')").fetchone() or ()
    assert said == "started"
    worker = desk.worker()
    assert worker.work(worker.take(5), book) == []  # in flight: nothing to do, and no attempt counted
    assert payments() == []
    assert {row[1:3] for row in desk.deliveries()} == {("available", 0)}
    other.execute("SELECT kafka.mark_success('', 'orders', 'desk', 'one')")
    other.commit()
    desk.make_due()
    drain(worker, batch=5)
    assert payments() == []
    assert desk.committed() == {0: 1, 1: 2}


# --- failures ---------------------------------------------------------------------------------


def test_a_failure_leaves_nothing_and_the_next_attempt_is_told_why(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", key="one")
    told: list[Any] = []

    def handler(work: Work[Any]) -> None:
        told.append((work.delivery.attempts, work.delivery.last_error))
        book(work)
        if work.delivery.attempts == 1:
            raise ValueError("no money")

    worker = desk.worker()
    drain(worker, handler)
    assert payments() == []
    assert desk.deliveries() == [(0, "available", 1, "ValueError: no money")]
    assert desk.rows("SELECT status, attempts, last_error FROM kafka.idempotency_keys") == [
        ("FAILED", 1, "ValueError: no money")
    ]
    drain(worker, handler)
    assert told == [(1, None)], "its pause is not over"
    desk.make_due()
    drain(worker, handler)
    assert told == [(1, None), (2, "ValueError: no money")]
    assert payments() == [1]
    assert desk.rows("SELECT status, attempts FROM kafka.idempotency_keys") == [("COMMITTED", 2)]
    assert desk.deliveries() == []
    assert desk.rows("SELECT retried, dead_lettered FROM kafka.delivery_totals") == [(1, 0)]


def test_one_that_fails_in_a_batch_does_not_spoil_the_others(desk: Desk, payments: Payments) -> None:
    desk.topic(delivery_ordering="pass")
    desk.append(*(b"%d" % number for number in range(10)))
    drain(desk.worker(), book_unless(b"3"), batch=10)
    assert payments() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    # Settled records behind it keep their rows until it is settled too.
    assert desk.deliveries()[0] == (3, "available", 1, "ValueError: poison")
    assert {row[1] for row in desk.deliveries()[1:]} == {"acknowledged"}
    assert desk.committed() == {0: 3}
    desk.make_due()
    drain(desk.worker())
    assert payments() == list(range(10))
    assert (desk.deliveries(), desk.committed()) == ([], {0: 10})


@pytest.mark.parametrize("batch", [1, 10])
def test_in_place_nothing_later_of_a_partition_is_delivered_before_one_is_settled(
    desk: Desk, payments: Payments, batch: int
) -> None:
    desk.topic(partitions=2)
    desk.append(*(b"%d" % number for number in range(10)))
    desk.append(b"100", partition=1)
    worker = desk.worker()
    drain(worker, book_unless(b"3"), batch=batch)
    assert payments() == [0, 1, 2, 100]
    assert {row[1:3] for row in desk.deliveries() if row[0] > 3} <= {("available", 0)}, "given back, not counted"
    drain(desk.worker(), batch=batch)
    assert payments() == [0, 1, 2, 100], "another worker must wait as well"
    desk.make_due()
    drain(worker, batch=batch)
    assert payments() == [*range(10), 100]
    assert desk.rows("SELECT number FROM payments WHERE attempts > 1") == [(3,)]
    assert [n for (n,) in desk.rows("SELECT number FROM payments WHERE number < 100 ORDER BY ctid")] == list(range(10))


def test_a_record_that_was_tried_before_is_tried_alone(desk: Desk) -> None:
    """It may have ended its worker: no other is counted because of it."""
    desk.topic(delivery_ordering="pass")
    desk.append(*(b"%d" % number for number in range(4)))
    worker = desk.worker()
    assert [one.attempts for one in worker.take(3)] == [1, 1, 1]
    desk.expire()  # as if the worker had died
    other = desk.worker()
    for offset in range(3):
        (alone,) = other.take(10)
        assert (alone.offset, alone.attempts, alone.last_error) == (offset, 2, "ack_timeout")
    assert [(one.offset, one.attempts) for one in other.take(10)] == [(3, 1)]


def test_whoever_takes_too_long_has_lost_the_record_and_what_it_wrote(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", key="one")
    slow, quick = desk.worker(), desk.worker()
    told: list[Any] = []

    def hang(work: Work[Any]) -> None:
        book(work)
        desk.expire()
        quick.run(lambda other: told.append(other.delivery.last_error), until_idle=True)

    taken = slow.take()
    slow.work(taken, hang)
    # The key was still in the slow one's transaction, so the quick one could not begin it yet.
    assert (payments(), told) == ([], [])
    desk.make_due()
    drain(quick)
    assert payments() == [1]
    assert desk.rows("SELECT attempts FROM payments") == [(2,)]
    assert desk.rows("SELECT timed_out FROM kafka.delivery_totals") == [(1,)]


def test_a_worker_that_hangs_in_its_transaction_is_ended_by_the_server(desk: Desk, payments: Payments) -> None:
    desk.topic(delivery_ack_timeout_ms=300)
    desk.append(b"1", key="one")
    hanging = threading.Event()
    let_go = threading.Event()

    def hang(work: Work[Any]) -> None:
        book(work)
        hanging.set()
        let_go.wait(60)

    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(
            run_worker, lambda: psycopg.connect(desk.url), "orders", "desk", hang, must_stop=stop.is_set
        )
        assert hanging.wait(30)
        quick = desk.worker()
        wait_for(lambda: (drain(quick), payments())[1], [1], timeout_s=30)
        stop.set()
        let_go.set()
        slow.result(30)
    assert payments() == [1]
    assert desk.deliveries() == []


def test_a_connection_that_breaks_is_replaced_and_what_it_held_is_tried_again(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"2", key=None)
    broken: list[int] = []

    def handler(work: Work[Any]) -> None:
        book(work)
        if not broken:
            broken.append(work.connection.info.backend_pid)
            desk.rows("SELECT pg_terminate_backend(%s)", broken[0])
            work.connection.execute("SELECT 1")

    run_worker(lambda: psycopg.connect(desk.url), "orders", "desk", handler, until_idle=True)
    if payments() == []:  # the pause after the failure was not over
        desk.make_due()
        drain(desk.worker())
    assert payments() == [1, 2]
    assert desk.rows("SELECT attempts FROM payments WHERE number = 1") == [(2,)]


def test_a_worker_that_stops_gives_back_what_it_has_in_hand(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"2")
    desk.worker().run(book, must_stop=lambda: payments() == [1])
    assert desk.deliveries() == [(1, "available", 0, None)]
    drain(desk.worker())
    assert desk.rows("SELECT attempts FROM payments") == [(1,), (1,)]


def test_workers_share_a_topic_and_each_record_is_worked_on_once(desk: Desk, payments: Payments) -> None:
    desk.topic(partitions=3, delivery_ordering="pass", delivery_backoff_ms=1, delivery_max_attempts=50)
    for number in range(150):
        desk.append(b"%d" % number, partition=number % 3, key=f"k{number % 120}")
    lock = threading.Lock()
    failed: Counter[bytes] = Counter()
    workers: Counter[int] = Counter()

    def handler(work: Work[Any]) -> None:
        book(work)
        with lock:
            workers[threading.get_ident()] += 1
            failed[work.delivery.value or b""] += 1
            if failed[work.delivery.value or b""] == 1 and work.delivery.offset % 4 == 0:
                raise ValueError("once")

    def work(number: int) -> None:
        connection = desk_connections[number]
        is_done = False
        while not is_done:
            Worker(connection, "orders", "desk").run(handler, batch=1 + number * 3, until_idle=True)
            with psycopg.connect(desk.url) as look:
                row = look.execute("SELECT sum(committed_offset) FROM kafka.consumer_offsets").fetchone()
                is_done = row is not None and row[0] == 150

    desk_connections = [desk.connect() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len(payments()) == 120, Counter(payments()).most_common(3)
    assert len(workers) > 1
    assert desk.deliveries() == []


# --- giving up --------------------------------------------------------------------------------


def dead_letters(desk: Desk) -> list[Any]:
    return desk.rows(
        "SELECT partition, key, value, headers FROM kafka.committed_messages WHERE topic = 'dlq.orders'"
        ' ORDER BY partition, "offset"'
    )


def story(row: Any) -> dict[str, str]:
    return {header["name"]: header["value"] for header in row[3]}


def test_after_the_last_attempt_a_record_becomes_a_dead_letter_and_the_group_goes_on(
    desk: Desk, payments: Payments
) -> None:
    desk.topic(partitions=2, delivery_max_attempts=3, delivery_backoff_ms=0)
    desk.append(b"1", b"2", key="one", tenant="acme", partition=1, headers=[("x", b"y")])
    drain(desk.worker(uses_keys=True), book_unless(b"1"))
    assert payments() == [2], "the key failed with its first record and is done with its second"
    ((partition, _, value, _),) = dead_letters(desk)
    assert (partition, value) == (1, b"1")
    told = story(dead_letters(desk)[0])
    times = [told.pop(f"tablewire.dlq.{name}") for name in ("timestamp", "first-delivered-at", "last-delivered-at")]
    assert times == sorted(times)
    assert told == {
        "x": "y",
        "idempotency-key": "one",
        "tenant-id": "acme",
        "tablewire.dlq.topic": "orders",
        "tablewire.dlq.partition": "1",
        "tablewire.dlq.offset": "0",
        "tablewire.dlq.group": "desk",
        "tablewire.dlq.attempts": "3",
        "tablewire.dlq.error": "ValueError: poison",
        "tablewire.dlq.tenant": "acme",
        "tablewire.dlq.key": "one",
    }
    assert desk.committed()[1] == 2
    assert desk.deliveries() == []
    assert desk.rows("SELECT attempts, copies, state, dlq_partition, dlq_offset FROM kafka.dead_letters") == [
        (3, 1, "dead", 1, 0)
    ]
    assert desk.rows("SELECT retried, dead_lettered FROM kafka.delivery_totals") == [(2, 1)]


def test_a_record_that_will_never_work_is_given_up_at_once(desk: Desk) -> None:
    desk.topic()
    desk.append(b"1")

    def refuse(work: Work[Any]) -> None:
        raise Reject("no such account")

    drain(desk.worker(), refuse)
    told = story(dead_letters(desk)[0])
    assert (told["tablewire.dlq.attempts"], told["tablewire.dlq.error"]) == ("1", "no such account")
    assert "tablewire.dlq.key" not in told


def test_a_record_says_itself_how_often_it_is_tried(desk: Desk, payments: Payments) -> None:
    desk.topic(delivery_backoff_ms=0)
    desk.append(b"1", headers=[("delivery-max-attempts", b"2")])
    drain(desk.worker(), book_unless(b"1"))
    assert story(dead_letters(desk)[0])["tablewire.dlq.attempts"] == "2"


def test_a_record_says_itself_how_soon_it_is_tried(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", headers=[("delivery-backoff-ms", b"3600000"), ("delivery-backoff-max-ms", b"7200000")])
    drain(desk.worker(), book_unless(b"1"))
    pause = "available_at BETWEEN now() + interval '29 minutes' AND now() + interval '1 hour'"
    assert desk.rows(f"SELECT attempts, {pause} FROM kafka.deliveries") == [(1, True)]


def test_a_record_that_nobody_answers_becomes_a_dead_letter_too(desk: Desk) -> None:
    desk.topic(delivery_max_attempts=2)
    desk.append(b"1", key="one")
    worker = desk.worker()
    for attempt in (1, 2):
        (delivery,) = worker.take()
        assert delivery.attempts == attempt
        desk.expire()
        worker = desk.worker()
    assert worker.take() == []
    told = story(dead_letters(desk)[0])
    assert (told["tablewire.dlq.attempts"], told["tablewire.dlq.error"]) == ("2", "ack_timeout")
    assert desk.rows("SELECT status, last_error FROM kafka.idempotency_keys") == [("FAILED", "ack_timeout")]


def test_copies_of_a_key_become_one_dead_letter(desk: Desk, payments: Payments) -> None:
    desk.topic(partitions=2, delivery_max_attempts=1)
    desk.append(b"1", b"1", key="one")
    desk.append(b"1", key="one", partition=1)
    desk.append(b"1", key="one", tenant="another")
    drain(desk.worker(), book_unless(b"1"))
    assert len(dead_letters(desk)) == 2
    assert desk.rows("SELECT tenant, copies FROM kafka.dead_letters ORDER BY 1") == [("", 3), ("another", 1)]
    assert desk.committed() == {0: 3, 1: 1}


def test_a_dead_letter_topic_that_was_deleted_is_made_anew(desk: Desk, payments: Payments) -> None:
    desk.topic(delivery_max_attempts=1)
    worker = desk.worker()
    desk.append(b"1")
    drain(worker, book_unless(b"1"))
    desk.connection.execute("DELETE FROM kafka.topics WHERE name = 'dlq.orders'")
    assert desk.rows("SELECT count(*) FROM kafka.dead_letters") == [(0,)]
    desk.append(b"1")
    drain(worker, book_unless(b"1"))
    assert len(dead_letters(desk)) == 1


def test_a_record_redriven_for_another_group_is_passed_over(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", headers=[("tablewire.redriven-for", b"another")])
    desk.append(b"2", headers=[("tablewire.redriven-for", b"desk")])
    drain(desk.worker())
    assert payments() == [2]


# --- places and groups ------------------------------------------------------------------------


def test_consumers_and_workers_do_not_share_a_group(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"2")
    worker = desk.worker()
    (delivery,) = worker.take()
    desk.connection.execute("UPDATE kafka.groups SET state = 'Stable'")
    with pytest.raises(GroupInUse, match="group desk has members"):
        worker.work([delivery], book)
    assert payments() == []
    with pytest.raises(GroupInUse):
        desk.worker().take()
    desk.connection.execute("UPDATE kafka.groups SET state = 'Empty'")
    worker.work([delivery], book)
    assert payments() == [1]


def test_a_reset_of_the_groups_offsets_is_followed(desk: Desk, payments: Payments) -> None:
    desk.topic()
    desk.append(b"1", b"2", b"3")
    worker = desk.worker()
    drain(worker)
    (delivery,) = (desk.append(b"4"), worker.take())[1]
    desk.connection.execute("UPDATE kafka.consumer_offsets SET committed_offset = 1")
    worker.work([delivery], book)
    assert payments() == [1, 2, 3], "what was in hand counts no more"
    drain(worker)
    assert payments() == [1, 2, 2, 3, 3, 4]
    assert desk.committed() == {0: 4}


def test_records_that_were_deleted_are_not_delivered(desk: Desk, payments: Payments) -> None:
    desk.topic(delivery_ordering="pass")
    desk.append(b"1", b"2", b"3")
    worker = desk.worker()
    drain(worker, book_unless(b"1"))
    desk.connection.execute("UPDATE kafka.partitions SET log_start_offset = 2")
    desk.append(b"4")
    drain(worker)
    assert payments() == [2, 3, 4]
    assert (desk.deliveries(), desk.committed()) == ([], {0: 4})


def test_behind_a_record_that_is_retried_for_long_only_so_many_pass(desk: Desk, payments: Payments) -> None:
    desk.topic(delivery_ordering="pass", delivery_max_unsettled=5)
    desk.append(*(b"%d" % number for number in range(20)))
    worker = desk.worker()
    drain(worker, book_unless(b"0"), batch=3)
    assert payments() == [1, 2, 3, 4]
    desk.make_due()
    drain(worker, batch=3)
    assert payments() == list(range(20))


def test_deleting_the_group_or_the_topic_takes_its_deliveries_along(desk: Desk) -> None:
    desk.topic()
    desk.append(b"1")
    for group in ("a", "b"):
        desk.worker(group_id=group).take()
    desk.connection.execute("DELETE FROM kafka.groups WHERE group_id = 'a'")
    assert desk.rows("SELECT DISTINCT group_id FROM kafka.deliveries") == [("b",)]
    desk.connection.execute("DELETE FROM kafka.topics")
    assert desk.rows("SELECT count(*) FROM kafka.deliveries") == [(0,)]


def test_bad_names_and_connections_are_refused(desk: Desk) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        desk.worker("nowhere").take()
    with pytest.raises(WorkerError, match="needs an id"):
        desk.worker(group_id="")
    with pytest.raises(WorkerError, match="longer than the max"):
        desk.worker("t" * 246)
    busy = desk.connect()
    busy.execute("SELECT 1")
    with pytest.raises(WorkerError, match="transaction open"):
        Worker(busy, "orders", "desk")


def test_the_views_show_what_is_going_on(desk: Desk, payments: Payments) -> None:
    desk.topic(delivery_ordering="pass")
    desk.append(b"1", b"2")
    worker = desk.worker(name="anna")
    worker.work(worker.take(), book_unless(b"1"))
    worker.take()
    shown = desk.rows(
        'SELECT "offset", state, attempts, last_error, worker, next_attempt_at IS NOT NULL, age IS NOT NULL'
        ' FROM kafka.deliveries_by_age ORDER BY "offset"'
    )
    assert shown == [
        (0, "available", 1, "ValueError: poison", None, True, True),
        (1, "acquired", 1, None, "anna", False, True),
    ]
    assert desk.rows("SELECT group_id, topic, in_flight, waiting, dead_letters FROM kafka.delivery_stats") == [
        ("desk", "orders", 1, 1, 0)
    ]
