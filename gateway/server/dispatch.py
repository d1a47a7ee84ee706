"""From a frame to its answer: header, version check, decoding, handler, encoding."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.broker.broker import Broker
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
    encode_response,
)
from gateway.telemetry.metrics import REQUESTS

__all__ = ["Pending", "begin", "finish"]


class Pending:
    """A request that was begun: what `finish` needs to answer it."""

    __slots__ = ("answer", "header", "version")

    def __init__(self, header: RequestHeader, answer: Answer, *, version: int) -> None:
        self.header = header
        self.answer = answer
        self.version = version


async def begin(content: bytes, broker: Broker) -> Pending:
    """Decode a request and start its handler; MalformedRequest if it cannot be answered."""
    header = decode_header(content)
    handler = HANDLERS.get(header.api_key)
    if handler is None or header.version not in handler.versions:
        if header.api_key == ApiKey.API_VERSIONS:  # KIP-511: answered in the one version everybody reads
            return Pending(header, announcement(ErrorCode.unsupported_version), version=0)
        raise MalformedRequest(f"API {header.api_key} version {header.version} is not served")
    client_id, request = decode_request(content, header)
    REQUESTS.labels(handler.api_key.name.lower(), str(header.version)).inc()
    context = RequestContext(header.version, client_id, broker)
    return Pending(header, await handler.function(request, context), version=header.version)


async def finish(pending: Pending) -> bytes | None:
    """The response frame, once there is one; None where the client wants none."""
    answer = pending.answer
    tree: Tree | None = await answer if isinstance(answer, Awaitable) else answer
    if tree is None:
        return None
    return frame(encode_response(pending.header, tree, version=pending.version))
