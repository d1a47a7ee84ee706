"""One connection that sends any request in any version, encoded by kafka-python from Kafka's own schemas."""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Any, Self

from kafka.protocol import admin, consumer, metadata, producer

TIMEOUT_S = 60.0
CLIENT_ID = "wire-test"
TOPIC_ALREADY_EXISTS = 36
RETRIABLE = (6, 7)
"""NOT_LEADER_OR_FOLLOWER and REQUEST_TIMED_OUT: the database does not answer in time."""


def message_class(name: str) -> Any:
    """A message class by its schema's name, such as CreateTopicsRequest."""
    for module in (admin, consumer, metadata, producer):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(f"kafka-python has no {name}")


class WireClient:
    """Requests and answers in lock step."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        # As real clients do; otherwise the kernel holds a request back until the one before is acknowledged.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._correlation_id = 0
        self.requests_sent = 0

    def call(self, api: str, version: int, **fields: Any) -> dict[str, Any]:
        """Send `<api>Request`; nested structs are given as dicts. Returns the answer as plain values."""
        response_class = message_class(f"{api}Response")
        self._socket.sendall(self.frame(api, version, **fields))
        self.requests_sent += 1
        head = self._stream.read(4)
        assert len(head) == 4, f"the connection was closed instead of answering {api} v{version}"
        (size,) = struct.unpack(">i", head)
        frame = self._stream.read(size)
        assert len(frame) == size, f"the answer to {api} v{version} ends early"
        response = response_class.decode(frame, version=version, header=True)
        assert response.header.correlation_id == self._correlation_id
        assert response.encode(header=True) == frame, "bytes follow the answer"
        return response.to_dict()  # type: ignore[no-any-return]

    def frame(self, api: str, version: int, **fields: Any) -> bytes:
        """`<api>Request` as it goes over the wire, for the next answer."""
        request = _build(message_class(f"{api}Request"), fields, version)
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id=CLIENT_ID)
        return request.encode(version=version, header=True, framed=True)  # type: ignore[no-any-return]

    def create_topic(self, name: str, *, partitions: int = 1, **configs: str) -> str:
        """A new topic; the configs' names with underscores for dots."""
        entry = new_topic_entry(name, partitions, **configs)
        deadline = time.monotonic() + TIMEOUT_S
        answer = self.call("CreateTopics", 7, topics=[entry], timeout_ms=20_000, validate_only=False)
        # What may pass by itself is tried again, as clients do: a machine may be busy with other tests.
        accepted = {0}
        while answer["topics"][0]["error_code"] in RETRIABLE and time.monotonic() < deadline:
            time.sleep(0.2)
            answer = self.call("CreateTopics", 7, topics=[entry], timeout_ms=20_000, validate_only=False)
            accepted.add(TOPIC_ALREADY_EXISTS)  # the first try may have been done after all
        assert answer["topics"][0]["error_code"] in accepted, answer
        return name

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _build(data_class: Any, fields: dict[str, Any], version: int) -> Any:
    values = {}
    for name, value in fields.items():
        field = data_class.fields[name]
        if value is not None and field.is_struct_array():
            values[name] = [_build(field.data_class, item, version) for item in value]
        elif value is not None and field.is_struct():
            values[name] = _build(field.data_class, value, version)
        else:
            values[name] = value
    return data_class(version=version, **values)


def new_topic_entry(name: str, partitions: int = 1, **configs: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": [],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def partition_count(wire: WireClient, name: str) -> int:
    """0 when there is no such topic."""
    answer = wire.call(
        "DescribeTopicPartitions", 0, topics=[{"name": name}], response_partition_limit=2000, cursor=None
    )
    return len(answer["topics"][0]["partitions"])


def known_brokers(bootstrap: str) -> list[int]:
    """The gateways that one of them tells clients of, sorted."""
    with WireClient(bootstrap) as wire:
        answer = wire.call("Metadata", 8, topics=[], allow_auto_topic_creation=False)
    return sorted(one["node_id"] for one in answer["brokers"])
