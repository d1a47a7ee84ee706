"""One client connection: frames in, answers out in the order of the requests.

Produce, as it usually comes, is begun when it arrives and answered when it is committed. What has to wait is done by
two tasks: one begins requests in order, one answers them in order, so that many may be in flight.
Reading and beginning stop while this connection or all together hold more than they may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import structlog

from gateway.broker.broker import Broker
from gateway.config import Settings
from gateway.domain.connections import StaleConnection
from gateway.handlers.registry import UnheardRefusal
from gateway.protocol.framing import LENGTH_BYTES, FrameReader, MalformedFrame
from gateway.protocol.messages import MalformedRequest
from gateway.server.dispatch import Pending, begin, begin_at_once
from gateway.server.limits import Budget
from gateway.telemetry.metrics import CONNECTIONS, MALFORMED, UNEXPECTED

if TYPE_CHECKING:
    from gateway.server._usual_requests import UsualPending

__all__ = ["Connection"]

log = structlog.get_logger()


class Connection(asyncio.Protocol):
    """What asyncio tells about one socket."""

    def __init__(self, broker: Broker, settings: Settings, budget: Budget, connections: set[Connection]) -> None:
        self._broker = broker
        self._number = broker.connections.accept()
        self._settings = settings
        self._budget = budget
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(max_bytes=settings.socket_request_max_bytes)
        self._arrived: deque[bytes] = deque()
        self._begun: deque[tuple[Pending | UsualPending, int]] = deque()
        self._has_arrived = asyncio.Event()
        self._has_begun = asyncio.Event()
        self._has_answered = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._is_lost = asyncio.Event()
        self._held_bytes = 0
        self._unanswered = 0
        self._is_beginning = False
        self._is_answering = False
        self._is_paused = False
        self._is_draining = False
        self._last_active = self._loop.time()
        self._frame_started: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watchdog: asyncio.TimerHandle | None = None
        self.peer = "?"
        self.peer_host = "?"

    # --- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername") or ("?", 0)
        self.peer_host, self.peer = name[0], f"{name[0]}:{name[1]}"
        if (reason := self._refusal()) is not None:
            log.warning("connection refused", peer=self.peer, reason=reason)
            self._transport.abort()
            return
        self._connections.add(self)
        CONNECTIONS.inc()
        self._tasks = [
            asyncio.create_task(self._begin_requests()),
            asyncio.create_task(self._answer_requests()),
        ]
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._last_active = self._loop.time()
        if self._is_draining:
            return
        self._hold(len(data))
        try:
            frames = self._frames.feed(data)
        except MalformedFrame as error:
            self._close_malformed(str(error))
            return
        if frames or self._frame_started is None:
            self._frame_started = self._last_active if self._frames.is_inside_a_frame else None
        if frames:
            self._arrived.extend(frames)
            self._unanswered += len(frames)
            self._is_quiet.clear()
            self._begin_at_once()
        self._pause_if_full()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._last_active = self._loop.time()
        self._may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._connections:
            self._connections.discard(self)
            CONNECTIONS.dec()
        for task in self._tasks:
            task.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()
        for pending, _ in self._begun:
            pending.abandon()
        self._budget.forget(self)
        self._budget.give_back(self._held_bytes)
        self._held_bytes = 0
        self._is_quiet.set()
        self._is_lost.set()

    # --- requests in order --------------------------------------------------------------------

    # Both tasks also look whether the connection is lost: wait_for of Python 3.11, by which psycopg's pool waits,
    # swallows a cancellation that comes together with what it waits for.

    def _begin_at_once(self) -> None:
        """Begin what need not wait; from the first request that must, a task goes on."""
        while self._arrived and not self._is_beginning and self._may_begin():
            try:
                pending = begin_at_once(
                    self._arrived[0], self._broker, connection=self._number, on_settled=self._answer_at_once
                )
            except Exception as error:  # noqa: BLE001 - whatever it was, only this client is to suffer
                self._close_unexpected(error)
                return
            if pending is None:
                break
            self._add(pending, self._arrived.popleft())
        if self._arrived:
            self._has_arrived.set()

    async def _begin_requests(self) -> None:
        while not self._is_lost.is_set():
            await self._has_arrived.wait()
            self._is_beginning = True
            while self._arrived:
                while not self._may_begin():
                    self._has_answered.clear()
                    await self._has_answered.wait()
                content = self._arrived.popleft()
                try:
                    pending = await begin(
                        content, self._broker, connection=self._number, client_host=f"/{self.peer_host}"
                    )
                except MalformedRequest as error:
                    self._close_malformed(str(error))
                    return
                except StaleConnection as error:
                    log.warning("connection closed: its client has moved on", peer=self.peer, reason=str(error))
                    self._transport.abort()
                    return
                except Exception as error:  # noqa: BLE001 - whatever it was, only this client is to suffer
                    self._close_unexpected(error)
                    return
                if self._is_lost.is_set():
                    pending.abandon()
                    return
                self._add(pending, content)
                self._has_begun.set()
            self._is_beginning = False
            self._has_arrived.clear()

    def _may_begin(self) -> bool:
        return not self._begun or not (self._begun_is_full() or self._budget.is_full)

    def _add(self, pending: Pending | UsualPending, content: bytes) -> None:
        self._hold(pending.held_bytes)
        self._begun.append((pending, len(content) + LENGTH_BYTES + pending.held_bytes))

    def _answer_at_once(self) -> None:
        """A request was settled: answer it if it is its turn, and what can be answered after it."""
        if self._is_answering or self._is_lost.is_set():
            return  # the task is at it, or nobody listens
        responses = []
        try:
            while self._begun:
                pending, size_bytes = self._begun[0]
                if isinstance(pending, Pending) or not self._may_write.is_set():
                    break  # large ones go one by one
                response = pending.response_now()
                if response is None:
                    break
                responses.append(response)
                self._end_request(size_bytes)
        except Exception as error:  # noqa: BLE001
            self._close_unexpected(error)
            return
        if responses:
            self._transport.write(responses[0] if len(responses) == 1 else b"".join(responses))
            self._last_active = self._loop.time()
            self.resume_if_free()
        if self._begun and (isinstance(self._begun[0][0], Pending) or not self._may_write.is_set()):
            self._has_begun.set()

    async def _answer_requests(self) -> None:
        """Answer requests that must be waited for; a settled one that calls back is answered on the way."""
        while not self._is_lost.is_set():
            await self._has_begun.wait()
            await self._may_write.wait()
            self._is_answering = True
            while self._begun and not self._is_lost.is_set():
                pending, size_bytes = self._begun[0]
                try:
                    response = pending.response_now()
                    if response is None and isinstance(pending, Pending):
                        response = await pending.response()
                    elif response is None:
                        break  # it calls when it is settled
                except UnheardRefusal as error:
                    log.warning("connection closed: acks=0 and refused", peer=self.peer, reason=str(error))
                    self._transport.abort()
                    return
                except Exception as error:  # noqa: BLE001
                    self._close_unexpected(error)
                    return
                if response is not None:
                    # A response counts too until the peer has taken it.
                    waiting_bytes = 0 if pending.is_made else len(response)
                    self._hold(waiting_bytes)
                    self._transport.write(response)
                    self._last_active = self._loop.time()
                    await self._may_write.wait()
                    size_bytes += waiting_bytes
                self._end_request(size_bytes)
                self.resume_if_free()
            self._is_answering = False
            self._has_begun.clear()

    def _end_request(self, size_bytes: int) -> None:
        self._begun.popleft()
        self._release(size_bytes)
        self._unanswered -= 1
        self._has_answered.set()
        if self._unanswered == 0:
            self._is_quiet.set()

    # --- limits -------------------------------------------------------------------------------

    def _refusal(self) -> str | None:
        if len(self._connections) >= self._settings.max_connections:
            return "max.connections is reached"
        same_host = sum(1 for other in self._connections if other.peer_host == self.peer_host)
        if same_host >= self._settings.max_connections_per_ip:
            return "max.connections.per.ip is reached"
        return None

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._budget.take(size_bytes)

    def _release(self, size_bytes: int) -> None:
        size_bytes = min(size_bytes, self._held_bytes)
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)

    def _is_full(self) -> bool:
        return (
            self._unanswered >= self._settings.connection_max_inflight_requests
            # One frame may be larger than the limit; it must still be read to its end.
            or (self._unanswered > 0 and self._held_bytes >= self._settings.connection_max_inflight_bytes)
        )

    def _begun_is_full(self) -> bool:
        """Thousands of small requests may arrive in one piece; their answers must not all be made at once."""
        return (
            len(self._begun) >= self._settings.connection_max_inflight_requests
            or self._held_bytes >= self._settings.connection_max_inflight_bytes
        )

    def _may_read(self) -> bool:
        if self._is_full():
            return False
        if not self._budget.is_full:
            return True
        if self._unanswered > 0:
            return False  # the answers will make room
        # Of those that are in the middle of a frame one at a time goes on, so that frames which fill the budget
        # while none of them is complete do not wait for each other.
        return not self._frames.is_inside_a_frame or self._budget.lets_through(self)

    def _pause_if_full(self) -> None:
        if self._unanswered > 0 or not self._frames.is_inside_a_frame:
            self._budget.end_passage(self)
        if not self._is_paused and not self._may_read():
            self._is_paused = True
            self._transport.pause_reading()
            self._budget.call_when_free(self)

    def resume_if_free(self) -> None:
        """There is room again, of this connection's own or of all together."""
        if not self._is_paused or self._is_draining or self._transport.is_closing():
            return
        if not self._may_read():
            self._budget.call_when_free(self)
            return
        self._is_paused = False
        if self._frame_started is not None:  # the peer could not go on meanwhile
            self._frame_started = self._loop.time()
        self._transport.resume_reading()

    def _watch(self) -> None:
        """Close a connection that idles, or that takes too long over one frame."""
        now = self._loop.time()
        if self._transport.is_closing():
            return
        frame_seconds = self._settings.frame_timeout_ms / 1000
        idle_seconds = self._settings.connections_max_idle_ms / 1000
        if self._frame_started is not None and not self._is_paused and now - self._frame_started > frame_seconds:
            self._close_malformed(f"a frame was not complete after {frame_seconds:g} s")
            return
        is_stuck = not self._may_write.is_set()  # the peer takes nothing, so nothing can be answered
        if (self._unanswered == 0 or is_stuck) and now - self._last_active > idle_seconds:
            log.debug("idle connection closed", peer=self.peer)
            self._transport.abort()
            return
        self._watchdog = self._loop.call_later(min(frame_seconds, idle_seconds) / 4, self._watch)

    # --- the end ------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Take no more requests, answer those that came, then close; returns when the peer has the answers."""
        self._is_draining = True
        if not self._transport.is_closing() and not self._is_paused:
            self._transport.pause_reading()
        await self._is_quiet.wait()
        self._transport.close()
        await self._is_lost.wait()

    def abort(self) -> None:
        self._transport.abort()

    def _close_malformed(self, reason: str) -> None:
        MALFORMED.inc()
        log.warning("connection closed: not a request", peer=self.peer, reason=reason)
        self._transport.abort()

    def _close_unexpected(self, error: Exception) -> None:
        UNEXPECTED.inc()
        log.error("connection closed: a request failed", peer=self.peer, exc_info=error)
        self._transport.abort()
