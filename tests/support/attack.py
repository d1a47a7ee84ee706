"""What must hold around every bad input: the gateway lives, has not grown, wrote nothing, and serves others."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import psycopg
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.support.gateway_process import GatewayProcess
from tests.support.raw_connection import RawConnection

MIB = 1 << 20
COUNTED = ("messages JOIN kafka.topics USING (topic_id)", "topics", "partitions", "topic_configs", "producer_ids")
"""Rows of deleted topics are gone for everybody, but leave their table a moment later."""


def resident_bytes(pid: int, *, peak: bool = False) -> int:
    field = "VmHWM" if peak else "VmRSS"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no {field}")


@contextmanager
def bounded_memory(pid: int, *, limit_bytes: int) -> Iterator[None]:
    """The process's peak inside the block is at most this much above where it began."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak starts anew
    before = resident_bytes(pid)
    yield
    grown = resident_bytes(pid, peak=True) - before
    assert grown <= limit_bytes, f"grew by {grown / MIB:.0f} MiB, allowed are {limit_bytes / MIB:.0f}"


class Target:
    """A gateway, its database, and a topic that has one record in it."""

    def __init__(self, process: GatewayProcess) -> None:
        self.process = process
        self.topic = self.new_topic()

    def connect(self, **options: Any) -> RawConnection:
        return RawConnection(self.process.port, **options)

    def new_topic(self, *, partitions: int = 1, **configs: str) -> str:
        name = f"bad-{uuid.uuid4().hex[:12]}"
        entry = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        with self.connect() as connection:
            answer = connection.call("CreateTopics", 7, topics=[entry], timeout_ms=20_000, validate_only=False)
        assert answer["topics"][0]["error_code"] == 0, answer
        return name

    def produce(
        self, records: bytes | None, *, topic: str | None = None, version: int = 9, acks: int = -1
    ) -> dict[str, Any]:
        """Send one partition's records as they are; returns the partition's answer."""
        with self.connect() as connection:
            return produce_on(
                connection, records, topic=self.topic if topic is None else topic, version=version, acks=acks
            )

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.process.database_url, autocommit=True) as database:
            return database.execute(query.encode(), parameters).fetchall()

    def counts(self) -> dict[str, int]:
        return {name: self.rows(f"SELECT count(*) FROM kafka.{name}")[0][0] for name in COUNTED}

    def require_topic_is_served(self) -> None:
        """Others are served, without writing."""
        with self.connect() as connection:
            answer = connection.call("Metadata", 8, topics=[{"name": self.topic}], allow_auto_topic_creation=False)
        assert answer["topics"][0]["error_code"] == 0

    def require_service(self) -> None:
        """An ordinary client finds everything as it should be."""
        value = uuid.uuid4().bytes
        with self.connect() as connection:
            assert connection.call("ApiVersions", 0)["error_code"] == 0
            answer = produce_on(connection, make_batch([Sent(value)]), topic=self.topic)
            assert answer["error_code"] == 0, answer
            found = fetch_on(connection, [(self.topic, 0, answer["base_offset"])])
            assert value in bytes(found[0]["records"])

    @contextmanager
    def unharmed(self, *, limit_bytes: int = 48 * MIB) -> Iterator[None]:
        pid, before = self.process.pid, self.counts()
        with bounded_memory(pid, limit_bytes=limit_bytes):
            yield
        assert self.process.is_running, self.process.log_text()[-3000:]
        assert self.process.pid == pid
        assert self.counts() == before, "a refused input left rows behind"
        self.require_service()
        self.process.require_clean_log()


class Sent(NamedTuple):
    """One record as a test hands it to kafka-python's writer."""

    value: bytes | None = b"value"
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


def make_batch(records: Sequence[Sent], *, codec: int = 0, is_transactional: bool = False) -> bytes:
    """A sound batch, as kafka-python writes it."""
    builder = DefaultRecordBatchBuilder(2, codec, is_transactional, -1, -1, -1, 1 << 30)
    now_ms = int(time.time() * 1000)
    for index, sent in enumerate(records):
        timestamp_ms = now_ms if sent.timestamp_ms is None else sent.timestamp_ms
        builder.append(index, timestamp_ms, sent.key, sent.value, list(sent.headers))
    return bytes(builder.build())


def with_payload(payload: bytes, *, count: int, codec: int = 0) -> bytes:
    """A batch around records, or compressed records, made by hand."""
    now_ms = int(time.time() * 1000)
    head = (0, len(payload) + 49, -1, 2, 0, codec, count - 1, now_ms, now_ms, -1, -1, -1, count)
    return with_crc(struct.pack(">qiibIhiqqqhii", *head) + payload)


def with_crc(batch: bytes) -> bytes:
    """The batch with the checksum of what it now holds."""
    return batch[:17] + struct.pack(">I", google_crc32c.value(batch[21:])) + batch[21:]


def patched(batch: bytes, layout: str, position: int, value: int) -> bytes:
    """The batch with one field changed and the checksum made right again."""
    data = bytearray(batch)
    struct.pack_into(f">{layout}", data, position, value)
    return with_crc(bytes(data))


def produce_fields(records: bytes | None, *, topic: str, acks: int = -1) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 20_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
    }


def produce_on(
    connection: RawConnection, records: bytes | None, *, topic: str, version: int = 9, acks: int = -1
) -> dict[str, Any]:
    answer = connection.call("Produce", version, **produce_fields(records, topic=topic, acks=acks))
    one: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return one


def fetch_fields(
    wanted: list[tuple[str, int, int]],
    *,
    max_bytes: int = 50 * MIB,
    partition_max_bytes: int = MIB,
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """Fields of Fetch v4 to v12 for (topic, partition, offset), neighbours of one topic together."""
    topics: list[dict[str, Any]] = []
    for topic, partition, offset in wanted:
        if not topics or topics[-1]["topic"] != topic:
            topics.append({"topic": topic, "partitions": []})
        topics[-1]["partitions"].append(
            {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
        )
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "topics": topics,
        **fields,
    }


def fetch_on(
    connection: RawConnection, wanted: list[tuple[str, int, int]], *, version: int = 11, **options: Any
) -> list[dict[str, Any]]:
    """The answers of all partitions, one after the other."""
    answer = connection.call("Fetch", version, **fetch_fields(wanted, **options))
    assert answer.get("error_code", 0) == 0, answer
    return [one for topic in answer["responses"] for one in topic["partitions"]]
