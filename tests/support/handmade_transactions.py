"""A transactional producer by hand, and a consumer that reads as a client must: skipping aborted transactions.

Both protocol generations by their versions. Nothing here retries or corrects by itself.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka.record.memory_records import MemoryRecords

from tests.support.handmade import Outcome, make_batch
from tests.support.wire_client import CLIENT_ID, WireClient, _build, message_class

NONE = 0
OLD_EPOCH = 47
INVALID_TXN_STATE = 48
WRONG_MAPPING = 49
BAD_TIMEOUT = 50
CONCURRENT = 51
FENCED = 90
ABORTABLE = 120

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Generation(NamedTuple):
    """Which versions a client of one generation speaks."""

    name: str
    init: int
    add: int
    add_offsets: int
    commit_offsets: int
    end: int
    produce: int

    @property
    def bumps(self) -> bool:
        """KIP-890: a new epoch with each transaction, partitions are added by producing."""
        return self.end >= 5


OLDEST = Generation("oldest", 0, 0, 0, 0, 0, 3)
CLASSIC = Generation("classic", 4, 3, 3, 3, 3, 9)
KIP_890 = Generation("KIP-890", 5, 5, 4, 5, 5, 12)


class Producer(NamedTuple):
    """What a producer was told it is."""

    id: int
    epoch: int


NOBODY = Producer(-1, -1)


class Record(NamedTuple):
    offset: int
    value: bytes


class Read(NamedTuple):
    """What one Fetch gave, before and after the client's own filter."""

    code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    next_offset: int
    visible: tuple[Record, ...]
    markers: tuple[tuple[int, int], ...]
    """Offset and type (0 abort, 1 commit) of control records."""
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset, as answered."""


def transactional_batch(values: Sequence[bytes], producer: Producer, *, sequence: int) -> bytes:
    return make_batch(values, producer_id=producer.id, epoch=producer.epoch, sequence=sequence, is_transactional=True)


class TransactionConnection(WireClient):
    """A connection over which one or many producers speak, each request answered before the next."""

    def __init__(self, bootstrap: str, generation: Generation = CLASSIC) -> None:
        super().__init__(bootstrap)
        self.bootstrap = bootstrap
        self.generation = generation

    def send(self, api: str, version: int, **fields: Any) -> None:
        """Send without waiting for the answer."""
        request = _build(message_class(f"{api}Request"), fields, version)
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id=CLIENT_ID)
        self._socket.sendall(request.encode(version=version, header=True, framed=True))

    def receive(self, api: str, version: int) -> dict[str, Any]:
        """The answer to the oldest request that has none yet. ConnectionError when there is none to come."""
        try:
            head = self._stream.read(4)
            frame = self._stream.read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""
        except ConnectionResetError:
            head = frame = b""
        if len(head) < 4 or len(frame) < struct.unpack(">i", head)[0]:
            raise ConnectionError(f"the connection was closed instead of answering {api}")
        response = message_class(f"{api}Response").decode(frame, version=version, header=True)
        return response.to_dict(json=False)  # type: ignore[no-any-return]

    def call(self, api: str, version: int, **fields: Any) -> dict[str, Any]:
        self.send(api, version, **fields)
        return self.receive(api, version)

    def init(
        self,
        transactional_id: str | None,
        had: Producer = NOBODY,
        *,
        timeout_ms: int = 60_000,
        version: int | None = None,
    ) -> tuple[int, Producer]:
        version = self.generation.init if version is None else version
        fields: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        if version >= 3:
            fields |= {"producer_id": had.id, "producer_epoch": had.epoch}
        answer = self.call("InitProducerId", version, **fields)
        return answer["error_code"], Producer(answer["producer_id"], answer["producer_epoch"])

    def start(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Producer:
        """A new instance, which must be welcome."""
        deadline = time.monotonic() + 20
        while True:
            code, producer = self.init(transactional_id, timeout_ms=timeout_ms)
            if code == NONE:
                return producer
            # Apache Kafka's coordinator needs a moment; the gateway does not.
            assert code in (14, 15, 16, CONCURRENT), code
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def add(
        self,
        transactional_id: str,
        producer: Producer,
        places: Mapping[str, Sequence[int]],
        *,
        version: int | None = None,
        only_verifies: bool = False,
    ) -> dict[tuple[str, int], int]:
        """Error codes by topic and partition."""
        version = self.generation.add if version is None else version
        topics = [{"name": topic, "partitions": list(partitions)} for topic, partitions in places.items()]
        if version < 4:
            answer = self.call(
                "AddPartitionsToTxn",
                version,
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )
            results = answer["results_by_topic_v3_and_below"]
        else:
            one = {
                "transactional_id": transactional_id,
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "verify_only": only_verifies,
                "topics": topics,
            }
            answer = self.call("AddPartitionsToTxn", version, transactions=[one])
            assert answer["error_code"] == NONE, answer
            (result,) = answer["results_by_transaction"]
            assert result["transactional_id"] == transactional_id
            results = result["topic_results"]
        return {
            (topic["name"], one["partition_index"]): one["partition_error_code"]
            for topic in results
            for one in topic["results_by_partition"]
        }

    def add_one(self, transactional_id: str, producer: Producer, topic: str, partition: int = 0, **more: Any) -> int:
        return self.add(transactional_id, producer, {topic: [partition]}, **more)[topic, partition]

    def add_offsets(
        self, transactional_id: str, producer: Producer, group_id: str, *, version: int | None = None
    ) -> int:
        version = self.generation.add_offsets if version is None else version
        answer = self.call(
            "AddOffsetsToTxn",
            version,
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id=group_id,
        )
        return int(answer["error_code"])

    def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        member_id: str = "",
        generation_id: int = -1,
        instance_id: str | None = None,
        metadata: str | None = None,
        version: int | None = None,
    ) -> dict[tuple[str, int], int]:
        version = self.generation.commit_offsets if version is None else version
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in offsets.items():
            one: dict[str, Any] = {"partition_index": partition, "committed_offset": offset}
            if version >= 2:
                one["committed_leader_epoch"] = -1
            one["committed_metadata"] = metadata
            topics.setdefault(topic, []).append(one)
        fields: dict[str, Any] = {
            "transactional_id": transactional_id,
            "group_id": group_id,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }
        if version >= 3:
            fields |= {"member_id": member_id, "generation_id": generation_id, "group_instance_id": instance_id}
        answer = self.call("TxnOffsetCommit", version, **fields)
        return {
            (topic["name"], one["partition_index"]): one["error_code"]
            for topic in answer["topics"]
            for one in topic["partitions"]
        }

    def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, version: int | None = None
    ) -> tuple[int, Producer]:
        """Error code, and what the producer goes on with."""
        version = self.generation.end if version is None else version
        answer = self.call(
            "EndTxn",
            version,
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        if version < 5 or answer["error_code"] != NONE:
            return answer["error_code"], producer
        return NONE, Producer(answer["producer_id"], answer["producer_epoch"])

    def produce(
        self,
        transactional_id: str | None,
        batches: Mapping[tuple[str, int], bytes],
        *,
        version: int | None = None,
    ) -> dict[tuple[str, int], Outcome]:
        """One request with a batch for each partition."""
        version = self.generation.produce if version is None else version
        self.send_produce(transactional_id, batches, version=version)
        return self.receive_produce(version=version)

    def send_produce(
        self, transactional_id: str | None, batches: Mapping[tuple[str, int], bytes], *, version: int
    ) -> None:
        """Send without waiting for the answer."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), records in batches.items():
            topics.setdefault(topic, []).append({"index": partition, "records": records})
        fields = {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout_ms": 20_000,
            "topic_data": [{"name": topic, "partition_data": partitions} for topic, partitions in topics.items()],
        }
        self.send("Produce", version, **fields)

    def receive_produce(self, *, version: int) -> dict[tuple[str, int], Outcome]:
        answer = self.receive("Produce", version)
        return {
            (topic["name"], one["index"]): Outcome(one["error_code"], one["base_offset"])
            for topic in answer["responses"]
            for one in topic["partition_responses"]
        }

    def write(
        self,
        transactional_id: str,
        producer: Producer,
        topic: str,
        values: Sequence[bytes],
        *,
        sequence: int,
        partition: int = 0,
        version: int | None = None,
    ) -> Outcome:
        """One transactional batch."""
        batch = transactional_batch(values, producer, sequence=sequence)
        return self.produce(transactional_id, {(topic, partition): batch}, version=version)[topic, partition]

    def write_plainly(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> Outcome:
        return self.produce(None, {(topic, partition): make_batch(values)})[topic, partition]

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        isolation: int = READ_COMMITTED,
        max_bytes: int = 1 << 20,
        version: int = 11,
    ) -> Read:
        """One Fetch, filtered as every client filters."""
        answer = self.call(
            "Fetch",
            version,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {
                            "partition": partition,
                            "current_leader_epoch": -1,
                            "fetch_offset": offset,
                            "log_start_offset": -1,
                            "partition_max_bytes": max_bytes,
                        }
                    ],
                }
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
        (one,) = answer["responses"][0]["partitions"]
        aborted = tuple((each["producer_id"], each["first_offset"]) for each in one["aborted_transactions"] or ())
        visible, markers, next_offset = _filtered(one["records"] or b"", aborted, offset, isolation)
        return Read(
            one["error_code"],
            one["high_watermark"],
            one["last_stable_offset"],
            one["log_start_offset"],
            next_offset,
            visible,
            markers,
            aborted,
        )

    def read_all(
        self,
        topic: str,
        *,
        partition: int = 0,
        isolation: int = READ_COMMITTED,
        start: int = 0,
        max_bytes: int = 1 << 20,
    ) -> list[Record]:
        """Fetch until nothing comes any more."""
        found: list[Record] = []
        while True:
            read = self.fetch(topic, start, partition=partition, isolation=isolation, max_bytes=max_bytes)
            assert read.code == NONE, read
            found += read.visible
            if read.next_offset == start:
                return found
            start = read.next_offset

    def markers(self, topic: str, *, partition: int = 0) -> list[tuple[int, int]]:
        """Offset and type of all control records, of what a consumer of committed records gets."""
        found: list[tuple[int, int]] = []
        start = 0
        while (read := self.fetch(topic, start, partition=partition)).next_offset > start:
            found += read.markers
            start = read.next_offset
        return found

    def list_offset(self, topic: str, timestamp: int, *, partition: int = 0, isolation: int = READ_COMMITTED) -> int:
        answer = self.call(
            "ListOffsets",
            5,
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                {
                    "name": topic,
                    "partitions": [{"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}],
                }
            ],
        )
        (one,) = answer["topics"][0]["partitions"]
        assert one["error_code"] == NONE, one
        return int(one["offset"])

    def end_offset(self, topic: str, *, partition: int = 0, isolation: int = READ_COMMITTED) -> int:
        return self.list_offset(topic, -1, partition=partition, isolation=isolation)


def _filtered(
    records: bytes, aborted: Sequence[tuple[int, int]], start: int, isolation: int
) -> tuple[tuple[Record, ...], tuple[tuple[int, int], ...], int]:
    """What a client hands to its application: the rule of Java's CompletedFetch."""
    waiting = sorted(aborted, key=lambda each: each[1])
    aborting: set[int] = set()
    visible: list[Record] = []
    markers: list[tuple[int, int]] = []
    next_offset = start
    batches = MemoryRecords(records)
    while batches.has_next():
        batch = batches.next_batch()
        last_offset = batch.base_offset + batch.last_offset_delta
        next_offset = max(next_offset, last_offset + 1)
        while waiting and waiting[0][1] <= last_offset:
            aborting.add(waiting.pop(0)[0])
        if batch.is_control_batch:
            (record,) = list(batch)
            markers.append((record.offset, record.type))
            if record.abort:
                aborting.discard(batch.producer_id)
            continue
        if isolation == READ_COMMITTED and batch.is_transactional and batch.producer_id in aborting:
            continue
        visible += [Record(record.offset, record.value) for record in batch if record.offset >= start]
    return tuple(visible), tuple(markers), next_offset
