"""A producer by hand: batches with any id, epoch and sequence, made by kafka-python, and requests that may be
pipelined. Nothing here retries, numbers or corrects by itself."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.support.wire_client import WireClient, message_class

PRODUCE_VERSION = 12

OUT_OF_ORDER = 45
OLD_DUPLICATE = 46
OLD_EPOCH = 47
FENCED = 90
INVALID_RECORD = 87
INVALID_REQUEST = 42


class Outcome(NamedTuple):
    """What one partition was answered."""

    code: int
    base_offset: int
    log_append_time_ms: int = -1


class StoredRow(NamedTuple):
    partition: int
    offset: int
    value: bytes
    producer_id: int | None
    epoch: int | None
    sequence: int | None


def make_batch(
    values: Sequence[bytes],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp_ms: int | None = None,
    compression: int = 0,
    is_transactional: bool = False,
) -> bytes:
    """One record batch (magic 2) with its checksum, as a client would send it."""
    builder = DefaultRecordBatchBuilder(2, compression, is_transactional, producer_id, epoch, sequence, 1 << 24)
    now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    for offset, value in enumerate(values):
        assert builder.append(offset, now_ms, None, value, []) is not None
    return bytes(builder.build())


class HandmadeProducer(WireClient):
    """A connection that asks for producer ids and sends batches, one at a time or many before the first answer."""

    def init_producer_id(
        self, producer_id: int = -1, epoch: int = -1, *, version: int = 5, transactional_id: str | None = None
    ) -> tuple[int, int, int]:
        """Error code, id and epoch."""
        fields: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
        if version >= 3:
            fields |= {"producer_id": producer_id, "producer_epoch": epoch}
        answer = self.call("InitProducerId", version, **fields)
        return answer["error_code"], answer["producer_id"], answer["producer_epoch"]

    def produce(self, topic: str, batch: bytes, *, partition: int = 0, version: int = PRODUCE_VERSION) -> Outcome:
        return self.produce_many({(topic, partition): batch}, version=version)[topic, partition]

    def produce_many(
        self, batches: dict[tuple[str, int], bytes], *, version: int = PRODUCE_VERSION
    ) -> dict[tuple[str, int], Outcome]:
        """One request with a batch for each partition, in the order given."""
        self.send_produce(batches, version=version)
        return self.receive_produce(version=version)

    def send_produce(self, batches: dict[tuple[str, int], bytes], *, version: int = PRODUCE_VERSION) -> None:
        """Send without waiting for the answer."""
        self.send_frame(self.frame_produce(batches, version=version))

    def frame_produce(self, batches: dict[tuple[str, int], bytes], *, version: int = PRODUCE_VERSION) -> bytes:
        """The request as it goes over the wire."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), records in batches.items():
            topics.setdefault(topic, []).append({"index": partition, "records": records})
        return self.frame(
            "Produce",
            version,
            transactional_id=None,
            acks=-1,
            timeout_ms=20_000,
            topic_data=[{"name": topic, "partition_data": partitions} for topic, partitions in topics.items()],
        )

    def send_frame(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive_frame(self) -> bytes:
        """The answer to the oldest request that has none yet. ConnectionError when the gateway is gone."""
        head = self._stream.read(4)
        if len(head) < 4:
            raise ConnectionError("the connection was closed instead of answering Produce")
        (size,) = struct.unpack(">i", head)
        frame = self._stream.read(size)
        if len(frame) < size:
            raise ConnectionError("the connection was closed in the middle of an answer")
        return frame

    def receive_produce(self, *, version: int = PRODUCE_VERSION) -> dict[tuple[str, int], Outcome]:
        return self.decode_produce(self.receive_frame(), version=version)

    def decode_produce(self, frame: bytes, *, version: int = PRODUCE_VERSION) -> dict[tuple[str, int], Outcome]:
        answer = message_class("ProduceResponse").decode(frame, version=version, header=True).to_dict()
        return {
            (topic["name"], one["index"]): Outcome(one["error_code"], one["base_offset"], one["log_append_time_ms"])
            for topic in answer["responses"]
            for one in topic["partition_responses"]
        }


def stored_rows(database_url: str, topic: str) -> list[StoredRow]:
    """What is in the table, by partition and offset."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        found = connection.execute(
            'SELECT m.partition, m."offset", m.value, m.producer_id, m.producer_epoch, m.sequence'
            " FROM kafka.messages m JOIN kafka.topics t USING (topic_id) WHERE t.name = %s"
            ' ORDER BY m.partition, m."offset"',
            [topic],
        ).fetchall()
    return [StoredRow(*row) for row in found]
