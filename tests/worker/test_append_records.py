"""Appending records from SQL: as a writer of the gateway would, and beside it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg
import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import stored_rows
from tests.worker.conftest import Desk

APPEND = "SELECT * FROM kafka.append_records(%s, %s, %s, %s, %s, %s, %s)"


def ends(desk: Desk) -> list[Any]:
    return desk.rows("SELECT partition, next_offset, last_stable_offset FROM kafka.partition_offsets ORDER BY 1")


def test_records_get_the_next_offsets_in_the_order_given(desk: Desk) -> None:
    desk.topic(partitions=2)
    desk.append(b"first")
    places = desk.rows(
        APPEND,
        ["orders"] * 3,
        [1, 0, 1],
        [b"k", None, None],
        [b"a", b"b", None],
        [2, 0, 1],
        ["x", "x", "y"],
        [b"1", None, b""],
    )
    assert places == [("orders", 1, 0), ("orders", 0, 1), ("orders", 1, 1)]
    assert ends(desk) == [(0, 2, 2), (1, 2, 2)]
    found = desk.rows(
        'SELECT partition, "offset", key, value, header_names, header_values, timestamp_type FROM kafka.messages'
        ' WHERE partition = 1 OR "offset" > 0 ORDER BY 1, 2'
    )
    assert found == [
        (0, 1, None, b"b", None, None, 0),
        (1, 0, b"k", b"a", ["x", "x"], [b"1", None], 0),
        (1, 1, None, None, ["y"], [b""], 0),
    ]


def test_a_topic_that_counts_by_append_time_says_so(desk: Desk) -> None:
    desk.topic(message_timestamp_type="LogAppendTime")
    desk.append(b"1")
    assert desk.rows('SELECT timestamp_type, "timestamp" <= now() FROM kafka.messages') == [(1, True)]


def test_what_is_rolled_back_takes_no_offset(desk: Desk) -> None:
    desk.topic()
    with desk.connect() as connection:
        connection.execute("SELECT kafka.append_record('orders', 0, NULL, 'gone')")
        connection.rollback()
    desk.append(b"kept")
    assert desk.rows('SELECT "offset", value FROM kafka.messages') == [(0, b"kept")]


def test_an_open_transaction_holds_the_last_stable_offset_back(desk: Desk) -> None:
    desk.topic()
    desk.append(b"1")
    desk.connection.execute("UPDATE kafka.partitions SET next_offset = 2")  # as if a transaction had written offset 1
    desk.append(b"2")
    assert ends(desk) == [(0, 3, 1)]


@pytest.mark.parametrize(("topic", "partition"), [("nowhere", 0), ("orders", 1), ("orders", -1)])
def test_a_partition_that_is_not_there_is_an_error(desk: Desk, topic: str, partition: int) -> None:
    desk.topic()
    with pytest.raises(psycopg.Error, match=f"no partition {partition} of topic {topic}") as refused:
        desk.append(b"1", topic=topic, partition=partition)
    assert refused.value.sqlstate == "TW003"


def test_a_compacted_topic_wants_keys(desk: Desk) -> None:
    desk.topic(cleanup_policy="compact,delete")
    with pytest.raises(psycopg.Error, match="a record needs a key"):
        desk.append(b"1")


@pytest.mark.parametrize(
    "wrong",
    [
        (["orders"], [0, 0], [None], [b""], [0], [], []),
        (["orders"], [0], [None], [b""], [2], ["one"], [b"1"]),
        (["orders"], [0], [None], [b""], [1], ["one"], []),
    ],
)
def test_arrays_that_do_not_fit_are_refused(desk: Desk, wrong: tuple[Any, ...]) -> None:
    desk.topic()
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        desk.rows(APPEND, *wrong)


def test_many_writers_leave_no_gap_and_no_deadlock(desk: Desk) -> None:
    desk.topic(partitions=3)
    start = threading.Barrier(6)

    def write(number: int) -> None:
        with psycopg.connect(desk.url) as connection:
            start.wait(30)
            for turn in range(15):
                # In whatever order the caller names them, partitions are locked in the same one.
                order = [(number + turn + step) % 3 for step in range(3)]
                value = b"%d" % number
                connection.execute(
                    "SELECT * FROM kafka.append_records(%s, %s, %s, %s)",
                    [["orders"] * 3, order, [None] * 3, [value] * 3],
                )
                connection.commit()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(write, range(6)))
    assert ends(desk) == [(partition, 90, 90) for partition in range(3)]
    rows = stored_rows(desk.url, "orders")
    assert [(row.partition, row.offset) for row in rows] == [(p, n) for p in range(3) for n in range(90)]


def test_a_gateway_and_sql_write_the_same_partition(desk: Desk, tmp_path: Path) -> None:
    """The gateway's memory of the partition is proven wrong and read anew; its consumers see both."""
    desk.topic()
    with GatewayProcess(desk.url, directory=tmp_path) as gateway:
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.bootstrap, "enable.idempotence": True})
        for number in range(0, 20, 2):
            producer.produce("orders", b"%d" % number, partition=0)
            assert producer.flush(30) == 0
            desk.append(b"%d" % (number + 1))
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": gateway.bootstrap, "group.id": "g", "isolation.level": "read_committed"}
        )
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
        found = consumer.consume(20, timeout=30)
        while len(found) < 20:
            found += consumer.consume(20 - len(found), timeout=30)
        consumer.close()
    assert [(message.offset(), message.value()) for message in found] == [(n, b"%d" % n) for n in range(20)]
