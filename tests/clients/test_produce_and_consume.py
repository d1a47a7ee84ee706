"""Produce and consume, the same for every client: what is written comes back, from any position."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.clients.conftest import CLIENTS, Row
from tests.support.kafka_clients import (
    CODECS,
    CREATE_TIME,
    INVALID_TIMESTAMP,
    LOG_APPEND_TIME,
    MESSAGE_TOO_LARGE,
    Client,
    Codec,
    Record,
    Refused,
    Sent,
    has_codec,
)

NOON = 1_700_000_000_000

NewTopic = Callable[..., str]
MakeClient = Callable[[str, str], Client]

# Everything a record may be: null and empty are different, header names repeat and may be empty.
PECULIAR = [
    Record(b"value", b"key", (("trace", b"1"), ("trace", b"2")), NOON),
    Record(None, b"tombstone", (), NOON + 1),
    Record(b"no key", None, (("", b"empty name"), ("", None)), NOON + 2),
    Record(b"", b"", (("empty value", b""), ("null value", None)), NOON + 3),
    Record(None, None, (), NOON + 4),
    Record(b"\x00\xff\xfe\x80", b"\x00", (("name with ünïcödé ☃", b"\x00\xff"),), NOON + 5),
    Record(b"late", b"older than the ones before", (), NOON - 60_000),
    Record(b"epoch", b"the first millisecond", (), 1),
]


def peculiar(client: Client) -> list[Record]:
    """PECULIAR, as far as the client's producer lets such a record out."""
    records = PECULIAR
    if client.name in ("aiokafka", "kafka-python"):  # both want a key or a value
        records = [one for one in records if (one.key, one.value) != (None, None)]
    if client.name == "kafka-python":  # wants header values to be bytes
        records = [replace(one, headers=tuple(h for h in one.headers if h[1] is not None)) for one in records]
    return records


def numbered(count: int, *, size_bytes: int = 0) -> list[Record]:
    return [Record(b"%d" % n + b"." * size_bytes, b"k%d" % n, (), NOON + n) for n in range(count)]


def test_peculiar_records_come_back_to_every_client(
    client: Client, bootstrap: str, new_topic: NewTopic, make_client: MakeClient
) -> None:
    topic, records = new_topic(), peculiar(client)
    assert client.produce(topic, records) == [Sent(0, offset) for offset in range(len(records))]
    for name in CLIENTS:
        received = make_client(name, bootstrap).consume(topic, len(records))
        assert [one.record for one in received] == records, f"read by {name}"
        assert [one.offset for one in received] == list(range(len(records)))
        assert {one.timestamp_type for one in received} == {CREATE_TIME}


def test_peculiar_records_are_rows_byte_for_byte(
    client: Client, new_topic: NewTopic, rows: Callable[[str], list[Row]]
) -> None:
    topic, records = new_topic(), peculiar(client)
    client.produce(topic, records)
    stored = rows(topic)
    assert [Record(row.value, row.key, row.headers, row.timestamp_ms) for row in stored] == records
    assert [row.offset for row in stored] == list(range(len(records)))


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_is_understood(client: Client, new_topic: NewTopic, codec: Codec) -> None:
    if not has_codec(client, codec):
        pytest.skip(f"kafka-python has no {codec} here: the package python-snappy, lz4 or zstandard is missing")
    topic = new_topic()
    records = peculiar(client) + numbered(300, size_bytes=200)
    assert client.produce(topic, records, codec=codec) == [Sent(0, offset) for offset in range(len(records))]
    assert [one.record for one in client.consume(topic, len(records))] == records


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_each_acks_setting_writes_the_records(client: Client, new_topic: NewTopic, acks: int | str) -> None:
    topic = new_topic()
    records = numbered(50)
    sent = client.produce(topic, records, acks=acks)  # type: ignore[arg-type]
    if acks != 0:
        assert sent == [Sent(0, offset) for offset in range(50)]
    assert [one.record for one in client.consume(topic, 50)] == records


def test_an_idempotent_producer_writes_each_record_once(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    first, second = numbered(500), numbered(20)
    assert client.produce(topic, first, idempotence=True) == [Sent(0, offset) for offset in range(500)]
    # A second producer has an id of its own, and its sequence starts at 0 again.
    assert client.produce(topic, second, idempotence=True) == [Sent(0, 500 + offset) for offset in range(20)]
    assert [one.record for one in client.consume(topic, 520)] == first + second


def test_an_idempotent_producer_is_named_in_the_rows(
    client: Client, new_topic: NewTopic, rows: Callable[[str], list[Row]]
) -> None:
    topic = new_topic()
    client.produce(topic, numbered(30), idempotence=True)
    stored = rows(topic)
    assert [row.sequence for row in stored] == list(range(30))
    assert len({row.producer_id for row in stored}) == 1
    assert stored[0].producer_id >= 0
    assert {row.producer_epoch for row in stored} == {0}


def test_log_append_time_replaces_the_producers_time(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    sent = client.produce(topic, numbered(20))
    after_ms = int(time.time() * 1000)
    received = client.consume(topic, 20)
    assert [(one.key, one.value) for one in received] == [(one.key, one.value) for one in numbered(20)]
    assert {one.timestamp_type for one in received} == {LOG_APPEND_TIME}
    assert all(before_ms <= one.timestamp_ms <= after_ms for one in received)
    if client.name != "confluent-kafka":  # librdkafka reports the time the application gave
        assert [one.timestamp_ms for one in sent if isinstance(one, Sent)] == [one.timestamp_ms for one in received]


def test_a_producer_without_a_timestamp_stamps_the_record_itself(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    before_ms = int(time.time() * 1000)
    client.produce(topic, [Record(b"now")])
    after_ms = int(time.time() * 1000)
    (received,) = client.consume(topic, 1)
    assert before_ms <= received.timestamp_ms <= after_ms
    assert received.timestamp_type == CREATE_TIME


def test_a_time_from_the_future_is_refused(client: Client, new_topic: NewTopic) -> None:
    """message.timestamp.after.max.ms is one hour by default."""
    topic = new_topic()
    now_ms = int(time.time() * 1000)
    assert client.produce(topic, [Record(b"tomorrow", None, (), now_ms + 86_400_000)]) == [Refused(INVALID_TIMESTAMP)]
    assert client.produce(topic, [Record(b"soon", None, (), now_ms + 600_000)]) == [Sent(0, 0)]


def test_a_batch_over_max_message_bytes_is_refused_and_takes_no_offset(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes="2000")
    assert client.produce(topic, [Record(b"fits")]) == [Sent(0, 0)]
    assert client.produce(topic, [Record(os.urandom(3000))]) == [Refused(MESSAGE_TOO_LARGE)]
    assert client.produce(topic, [Record(b"fits again")]) == [Sent(0, 1)]
    assert [one.value for one in client.consume(topic, 2)] == [b"fits", b"fits again"]


def test_max_message_bytes_is_about_the_batch_as_sent(client: Client, new_topic: NewTopic) -> None:
    """Compressible records pass where the same bytes uncompressed do not."""
    topic = new_topic(max_message_bytes="2000")
    record = Record(b"a" * 20_000, None, (), NOON)
    assert client.produce(topic, [record]) == [Refused(MESSAGE_TOO_LARGE)]
    assert client.produce(topic, [record], codec="gzip") == [Sent(0, 0)]
    assert [one.record for one in client.consume(topic, 1)] == [record]


def test_each_position_in_a_batch_can_be_the_first_read(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    records = numbered(40)
    client.produce(topic, records)
    for start in (0, 1, 17, 39):
        received = client.consume(topic, 40 - start, start=start)
        assert received[0].offset == start, f"read from {start}"
        assert [one.record for one in received] == records[start:]


def test_reading_starts_across_batches_of_several_producers(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    for batch in range(4):
        client.produce(topic, [Record(b"%d.%d" % (batch, n)) for n in range(5)])
    received = client.consume(topic, 12, start=8)
    assert [one.offset for one in received] == list(range(8, 20))
    assert [one.value for one in received][:3] == [b"1.3", b"1.4", b"2.0"]


@pytest.fixture
def in_background() -> Iterator[Callable[[Callable[[], object]], None]]:
    threads: list[threading.Thread] = []

    def run(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        threads.append(thread)
        thread.start()

    yield run
    for thread in threads:
        thread.join(30)


def test_a_reader_at_the_end_gets_what_is_written_later(
    client: Client,
    bootstrap: str,
    new_topic: NewTopic,
    make_client: MakeClient,
    in_background: Callable[[Callable[[], object]], None],
) -> None:
    topic = new_topic()
    client.produce(topic, numbered(3))
    writer = make_client("confluent-kafka", bootstrap)
    has_read = threading.Event()

    def write_until_read() -> None:
        # When exactly the reader has found the end is its own affair: write until it has seen something.
        while not has_read.wait(0.2):
            writer.produce(topic, [Record(b"later")])

    in_background(write_until_read)
    try:
        received = client.consume(topic, 1, start="end")
    finally:
        has_read.set()
    assert received[0].offset >= 3
    assert {one.value for one in received} == {b"later"}


def test_a_record_larger_than_the_fetch_limit_is_delivered(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes="9000000")
    records = [Record(b"small"), Record(os.urandom(3_000_000)), Record(b"after")]
    for record in records:
        assert isinstance(client.produce(topic, [record])[0], Sent)
    received = client.consume(topic, 3, fetch_max_bytes=1000)
    assert [one.value for one in received] == [record.value for record in records]


def test_a_large_record_comes_back(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes="9000000")
    record = Record(os.urandom(8_000_000), b"large", (("size", b"8000000"),), NOON)
    assert client.produce(topic, [record]) == [Sent(0, 0)]
    assert [one.record for one in client.consume(topic, 1, fetch_max_bytes=20_000_000)] == [record]


def test_many_small_records_keep_their_order(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    records = [Record(b"%d" % n, None, (), NOON) for n in range(10_000)]
    assert client.produce(topic, records, codec="gzip") == [Sent(0, offset) for offset in range(10_000)]
    received = client.consume(topic, 10_000)
    assert [one.offset for one in received] == list(range(10_000))
    assert [one.value for one in received] == [record.value for record in records]


def test_a_small_fetch_limit_reads_everything_in_steps(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    records = numbered(100, size_bytes=500)
    for start in range(0, 100, 10):
        client.produce(topic, records[start : start + 10])
    assert [one.record for one in client.consume(topic, 100, fetch_max_bytes=2000)] == records


def test_producing_creates_the_topic(client: Client, topic: str) -> None:
    """auto.create.topics.enable is on by default: a producer's first Metadata request makes the topic."""
    assert client.produce(topic, [Record(b"first")]) == [Sent(0, 0)]
    assert [one.value for one in client.consume(topic, 1)] == [b"first"]


def test_equal_keys_go_to_one_partition(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    records = [Record(b"%d" % n, b"key-%d" % (n % 7), (), NOON) for n in range(70)]
    sent = client.produce(topic, records, partition=None)
    places: dict[bytes | None, set[int]] = {}
    for record, one in zip(records, sent, strict=True):
        assert isinstance(one, Sent)
        places.setdefault(record.key, set()).add(one.partition)
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len(set.union(*places.values())) > 1
    for partition in set.union(*places.values()):
        expected = [record for record in records if places[record.key] == {partition}]
        received = client.consume(topic, len(expected), partition=partition)
        assert [one.record for one in received] == expected
