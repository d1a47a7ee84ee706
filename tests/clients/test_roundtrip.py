"""Any records in any batches: written by one client, they are the rows, and another client reads them back.

The second reader asks a gateway that keeps nothing in memory, so its records were encoded anew from rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import confluent_kafka
import kafka
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clients.conftest import Row
from tests.support.gateway_process import GatewayProcess
from tests.support.kafka_clients import CODECS, WAIT_S, Codec, Headers, Record

NOW = 1_760_000_000_000

# A header's name is UTF-8 without NUL, which neither a C client nor PostgreSQL's text can hold.
names = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
data = st.none() | st.binary(max_size=64) | st.binary(min_size=1000, max_size=3000)
headers: st.SearchStrategy[Headers] = st.lists(st.tuples(names, st.none() | st.binary(max_size=40)), max_size=5).map(
    tuple
)
# librdkafka takes 0 for "now".
timestamps = st.integers(1, NOW) | st.integers(NOW - 5, NOW)
records = st.builds(Record, value=data, key=data, headers=headers, timestamp_ms=timestamps)


@dataclass(frozen=True)
class Batch:
    """Records that one producer sends together."""

    codec: Codec
    idempotence: bool
    records: list[Record]


batches = st.lists(
    st.builds(Batch, codec=st.sampled_from(CODECS), idempotence=st.booleans(), records=st.lists(records, min_size=1)),
    min_size=1,
    max_size=3,
)

examples = settings(
    max_examples=40,
    deadline=None,
    # One topic for all examples: each is appended to it.
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@dataclass
class Writer:
    """Long-lived librdkafka producers, one for each way to send: no example waits for a connection."""

    bootstrap: str
    producers: dict[tuple[Codec, bool], confluent_kafka.Producer] = field(default_factory=dict)

    def write(self, topic: str, batch: Batch) -> list[int]:
        """Send the batch and return the offsets of its records."""
        producer = self.producers.get((batch.codec, batch.idempotence))
        if producer is None:
            producer = self.producers[batch.codec, batch.idempotence] = confluent_kafka.Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "compression.type": batch.codec,
                    "enable.idempotence": batch.idempotence,
                    "linger.ms": 5,
                }
            )
        offsets: list[int] = []

        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            assert error is None, error
            offsets.append(message.offset())  # type: ignore[arg-type]

        for record in batch.records:
            assert record.timestamp_ms is not None
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=0,
                timestamp=record.timestamp_ms,
                on_delivery=delivered,
            )
        assert producer.flush(WAIT_S) == 0
        return offsets


class Reader:
    """A long-lived kafka-python consumer that is sent back and forth."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False
        )

    def read(self, topic: str, start: int, count: int) -> list[tuple[int, Record]]:
        place = kafka.TopicPartition(topic, 0)
        if self._consumer.assignment() != {place}:
            self._consumer.assign([place])
        self._consumer.seek(place, start)
        received: list[tuple[int, Record]] = []
        deadline = time.monotonic() + WAIT_S
        while len(received) < count and time.monotonic() < deadline:
            for message in self._consumer.poll(timeout_ms=200).get(place, ()):
                record = Record(message.value, message.key, tuple(message.headers), message.timestamp)
                received.append((message.offset, record))
        return received

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="module")
def writer(bootstrap: str) -> Writer:
    return Writer(bootstrap)


@pytest.fixture(scope="module")
def reader(bootstrap: str) -> Iterator[Reader]:
    reader = Reader(bootstrap)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def cold_writer(cold_gateway: GatewayProcess) -> Writer:
    return Writer(cold_gateway.bootstrap)


@pytest.fixture(scope="module")
def cold_reader(cold_gateway: GatewayProcess) -> Iterator[Reader]:
    reader = Reader(cold_gateway.bootstrap)
    yield reader
    reader.close()


def write_all(writer: Writer, topic: str, written: list[Batch]) -> list[tuple[int, Record]]:
    """Send the batches in order and return each record with the offset it was given."""
    placed: list[tuple[int, Record]] = []
    for batch in written:
        placed.extend(zip(writer.write(topic, batch), batch.records, strict=True))
    first = placed[0][0]
    assert [offset for offset, _ in placed] == list(range(first, first + len(placed))), "offsets have no gap"
    return placed


def test_records_come_back_as_written(writer: Writer, reader: Reader, new_topic: Callable[..., str]) -> None:
    topic = new_topic()

    @examples
    @given(batches)
    def check(written: list[Batch]) -> None:
        placed = write_all(writer, topic, written)
        assert reader.read(topic, placed[0][0], len(placed)) == placed

    check()


def test_rows_and_what_is_read_from_them_are_the_records(
    cold_writer: Writer,
    cold_reader: Reader,
    topic: str,
    cold_rows: Callable[[str], list[Row]],
) -> None:
    @examples
    @given(batches)
    def check(written: list[Batch]) -> None:
        placed = write_all(cold_writer, topic, written)
        stored = [row for row in cold_rows(topic) if row.offset >= placed[0][0]]
        assert [(row.offset, Record(row.value, row.key, row.headers, row.timestamp_ms)) for row in stored] == placed
        assert cold_reader.read(topic, placed[0][0], len(placed)) == placed

    check()


def test_any_offset_of_a_batch_is_read_from_rows(cold_writer: Writer, cold_reader: Reader, topic: str) -> None:
    batch = Batch("zstd", idempotence=True, records=[Record(b"%d" % n, None, (), NOW) for n in range(50)])
    placed = write_all(cold_writer, topic, [batch, batch])
    for start in (0, 1, 25, 49, 50, 51, 99):
        assert cold_reader.read(topic, start, 100 - start) == placed[start:]
