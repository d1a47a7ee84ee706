"""A connection on which a test may send anything, and many requests before the first answer."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self

from tests.support.gateway_process import HOST
from tests.support.wire_client import _build, message_class

TIMEOUT_S = 60.0


def request_frame(
    api: str, version: int, fields: dict[str, Any], *, correlation_id: int = 1, client_id: str | None = "raw"
) -> bytes:
    """A whole request as kafka-python encodes it, its length included."""
    request = _build(message_class(f"{api}Request"), fields, version)
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(version=version, header=True, framed=True))


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def decode_answer(api: str, version: int, frame: bytes) -> dict[str, Any]:
    """A response frame without its length, as plain values."""
    answer: dict[str, Any] = (
        message_class(f"{api}Response").decode(frame, version=version, header=True).to_dict(json=False)
    )
    return answer


class RawConnection:
    """A socket to a gateway. Nothing is sent or read that the test does not ask for."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((HOST, port))
        self._next_id = 1

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, api: str, version: int, **fields: Any) -> int:
        """Send a request without waiting; returns its correlation id."""
        correlation_id = self._next_id
        self._next_id += 1
        self.send(request_frame(api, version, fields, correlation_id=correlation_id))
        return correlation_id

    def call(self, api: str, version: int, **fields: Any) -> dict[str, Any]:
        correlation_id = self.request(api, version, **fields)
        frame = self.receive()
        assert struct.unpack_from(">i", frame) == (correlation_id,)
        return decode_answer(api, version, frame)

    def receive(self) -> bytes:
        """The next response frame, without its length."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def receive_id(self) -> int:
        """The correlation id of the next response."""
        correlation_id: int
        (correlation_id,) = struct.unpack_from(">i", self.receive())
        return correlation_id

    def is_closed_by_peer(self, *, timeout_s: float = TIMEOUT_S) -> bool:
        """Wait until the peer closes; False if it does not, AssertionError if it answers instead."""
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            self.socket.settimeout(TIMEOUT_S)
        assert data == b"", f"an answer instead of the end: {data[:60]!r}"
        return True

    def has_answer(self, *, timeout_s: float) -> bool:
        """Whether something can be read within a time; for checks that nothing comes."""
        self.socket.settimeout(timeout_s)
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(TIMEOUT_S)

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionError("the gateway closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
