"""From a frame to its answer: header, version check, decoding, handler, encoding."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from prometheus_client import Counter

from gateway import clock
from gateway.broker.broker import Broker
from gateway.broker.catalog import FRESH_SECONDS
from gateway.errors import ErrorCode
from gateway.handlers import HANDLERS
from gateway.handlers.api_versions import announcement
from gateway.handlers.registry import Answer, RequestContext
from gateway.protocol.framing import frame
from gateway.protocol.messages import (
    ApiKey,
    MalformedRequest,
    RequestHeader,
    Tree,
    decode_header,
    decode_request,
    encode_body,
    encode_response,
)
from gateway.protocol.produce_requests import read_usual
from gateway.telemetry.metrics import REQUESTS

if TYPE_CHECKING:
    from gateway.server._usual_requests import UsualPending

__all__ = ["Pending", "begin", "begin_at_once"]

_usual_requests: ModuleType | None
try:
    from gateway.server import _usual_requests
except ImportError:  # nothing could be compiled: every request goes the long way
    _usual_requests = None

PRODUCE = HANDLERS[ApiKey.PRODUCE]
PRODUCE_KEY = struct.pack(">h", ApiKey.PRODUCE)
VERSION_PLACE = 3
"""Where the lower half of a request's version stands; there is no upper one yet."""


class Pending:
    """A request that was begun: its response, or what becomes it."""

    __slots__ = ("_answer", "_header", "_response", "_version", "held_bytes", "is_made")

    def __init__(self, header: RequestHeader, answer: Answer, *, version: int, decoded_bytes: int = 0) -> None:
        self._header = header
        self._version = version
        # A tree takes more memory than its bytes, and only bytes are counted.
        self._response = self._encode(answer) if isinstance(answer, (Mapping, bytes)) else None
        self._answer = None if isinstance(answer, (Mapping, bytes)) else answer
        self.is_made = self._response is not None
        self.held_bytes = decoded_bytes + len(self._response or b"")
        """What it takes beside the request: decoded batches, and the response if that is made already."""

    def response_now(self) -> bytes | None:
        """The response frame if it can be had without waiting."""
        return self._response

    async def response(self) -> bytes | None:
        """The response frame, once there is one; None where the client wants none."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            made = await answer
            self._response = None if made is None else self._encode(made)
        return self._response

    def abandon(self) -> None:
        """Nobody will ask for the response any more."""
        if isinstance(self._answer, Coroutine):
            self._answer.close()

    def _encode(self, answer: Tree | bytes) -> bytes:
        if isinstance(answer, bytes):
            return frame(encode_body(self._header, answer))
        return frame(encode_response(self._header, answer, version=self._version))


async def begin(content: bytes, broker: Broker, *, connection: int, client_host: str) -> Pending:
    """Decode a request and start its handler; MalformedRequest if it cannot be answered."""
    header = decode_header(content)
    handler = HANDLERS.get(header.api_key)
    if handler is None or header.version not in handler.versions:
        if header.api_key == ApiKey.API_VERSIONS:  # KIP-511: answered in the one version everybody reads
            return Pending(header, announcement(ErrorCode.unsupported_version), version=0)
        raise MalformedRequest(f"API {header.api_key} version {header.version} is not served")
    usual = read_usual(content, version=header.version) if header.api_key == ApiKey.PRODUCE else None
    client_id, request = usual or decode_request(content, header)
    _counter(handler.api_key, header.version).inc()
    context = RequestContext(header.version, client_id, broker, connection, client_host)
    answer = await handler.function(request, context)
    return Pending(header, answer, version=header.version, decoded_bytes=context.memory.decoded_bytes)


def begin_at_once(
    content: bytes, broker: Broker, *, connection: int, on_settled: Callable[[], None]
) -> UsualPending | None:
    """Begin a request that need not wait for anything; None, nothing begun, for any other."""
    if _usual_requests is None or not content.startswith(PRODUCE_KEY):
        return None
    pending: UsualPending | None = _usual_requests.begin_usual(
        content,
        broker.catalog,
        broker.appends.submit,
        versions=PRODUCE.versions,
        fresh_since=clock.monotonic_seconds() - FRESH_SECONDS,
        now_ms=clock.now_ms(),
        max_plain_bytes=broker.settings.max_decompressed_message_bytes,
        find_joined=broker.transactions.find_joined,
        connection=connection,
        on_settled=on_settled,
    )
    if pending is not None:
        _counter(ApiKey.PRODUCE, content[VERSION_PLACE]).inc()
    return pending


@cache
def _counter(api_key: ApiKey, version: int) -> Counter:
    """Of the requests of a version that is served."""
    return REQUESTS.labels(api_key.name.lower(), str(version))
