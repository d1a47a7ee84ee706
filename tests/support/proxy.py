"""A TCP proxy between Kafka clients and gateways that knows where requests and answers begin and end.

It cuts connections at the worst moments, on Produce requests only, in a fixed order: every `cut_every`-th of them.
Clients learn addresses from Metadata, so gateways must advertise the proxy's. With several gateways behind it, each
new connection goes to the next one, whatever broker the client thinks it talks to: a retry meets another gateway.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import struct
import threading
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.gateway_process import HOST, free_port

PRODUCE = 0
INIT_PRODUCER_ID = 22
END_TXN = 26
IO_ERRORS = (OSError, asyncio.IncompleteReadError)


class Fault(enum.Enum):
    """What happens to a request. All but DELAY cut the client's connection."""

    LOST_REPLY = "the gateway has answered, the client never hears it"
    TORN_REPLY = "the client gets half of the answer"
    TORN_REQUEST = "the gateway gets half of the request"
    CUT_IN_FLIGHT = "the client is cut off while the gateway works; its retry may come before the answer"
    HELD_BACK = "the client is cut off, and the request reaches the gateway later than the retries"
    DELAY = "the answer comes late"


CUTS = tuple(fault for fault in Fault if fault is not Fault.DELAY)


class Proxy:
    """Listens on a port of its own, in a thread of its own. `cuts` counts what was done to whom."""

    def __init__(
        self,
        *target_ports: int,
        cut_every: int = 0,
        faults: Sequence[Fault] = tuple(Fault),
        api_keys: Sequence[int] = (PRODUCE,),
        hold_s: float = 0.3,
        waits: bool = False,
        delay_s: float = 0.05,
    ) -> None:
        self.port = free_port()
        self._targets = itertools.cycle(target_ports)
        self.cut_every = cut_every
        self.counts: Counter[Fault] = Counter()
        self.requests = 0
        self._faults = faults
        self._api_keys = api_keys
        self._hold_s = hold_s
        self._may_go = asyncio.Event() if waits else None
        self.held = 0
        self._delay_s = delay_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_listening = threading.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def cuts(self) -> int:
        return sum(count for fault, count in self.counts.items() if fault in CUTS)

    def start(self) -> Self:
        self._thread.start()
        assert self._is_listening.wait(60), "the proxy does not listen"
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the proxy does not stop"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def next_fault(self, api_key: int) -> Fault | None:
        """What to do with the request that just came."""
        if api_key not in self._api_keys:
            return None
        self.requests += 1
        if self.cut_every == 0 or self.requests % self.cut_every != 0:
            return None
        fault = self._faults[self.requests // self.cut_every % len(self._faults)]
        self.counts[fault] += 1
        return fault

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, HOST, self.port, limit=1 << 20)
        self._is_listening.set()
        await self._stop.wait()
        server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            upstream_reader, upstream = await asyncio.open_connection(HOST, next(self._targets), limit=1 << 20)
            await _Relay(self, reader, writer, upstream_reader, upstream).run()
        except (*IO_ERRORS, asyncio.CancelledError):
            pass  # the proxy stops, the gateway is down, or either side went away: the client sees a closed connection
        finally:
            writer.close()
            self._connections.discard(task)

    def let_go(self) -> None:
        """With `waits`, requests are held back until now; `held` is 0 when the gateway has dealt with them."""
        assert self._may_go is not None
        self._loop.call_soon_threadsafe(self._may_go.set)

    async def hold(self) -> None:
        if self._may_go is not None:
            await self._may_go.wait()
        else:
            await asyncio.sleep(self._hold_s)

    async def delay(self) -> None:
        await asyncio.sleep(self._delay_s)


class _Relay:
    """One client's connection and its counterpart at the gateway. Answers come in the order of requests."""

    def __init__(
        self,
        proxy: Proxy,
        client_reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        gateway_reader: asyncio.StreamReader,
        gateway: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client_reader, self._client = client_reader, client
        self._gateway_reader, self._gateway = gateway_reader, gateway
        self._unanswered: deque[Fault | None] = deque()
        self._held = 0

    async def run(self) -> None:
        answers = asyncio.create_task(self._relay_answers())
        requests = asyncio.create_task(self._relay_requests())
        try:
            await asyncio.wait([answers, requests], return_when=asyncio.FIRST_COMPLETED)
            if (
                requests.done()
                and self._unanswered
                and self._unanswered[-1]
                in (
                    Fault.CUT_IN_FLIGHT,
                    Fault.HELD_BACK,
                )
            ):
                await asyncio.wait([answers])  # nobody hears it, but the gateway finishes its work
        finally:
            for task in (answers, requests):
                task.cancel()
            await asyncio.gather(answers, requests, return_exceptions=True)
            self._gateway.close()
            self._proxy.held -= self._held

    async def _relay_requests(self) -> None:
        with suppress(*IO_ERRORS):
            while True:
                frame = await _read_frame(self._client_reader)
                (api_key,) = struct.unpack_from(">h", frame, 4)
                fault = self._proxy.next_fault(api_key)
                if fault is Fault.TORN_REQUEST:
                    self._gateway.write(frame[: len(frame) // 2])
                    await self._gateway.drain()
                    self._cut_client()
                    return
                self._unanswered.append(fault)
                if fault is Fault.HELD_BACK:
                    self._held += 1
                    self._proxy.held += 1
                    self._cut_client()
                    await self._proxy.hold()
                self._gateway.write(frame)
                await self._gateway.drain()
                if fault is Fault.CUT_IN_FLIGHT:
                    self._cut_client()
                if fault in (Fault.CUT_IN_FLIGHT, Fault.HELD_BACK):
                    return

    async def _relay_answers(self) -> None:
        with suppress(*IO_ERRORS):
            while True:
                frame = await _read_frame(self._gateway_reader)
                fault = self._unanswered.popleft()
                if fault is Fault.DELAY:
                    await self._proxy.delay()
                if fault is Fault.TORN_REPLY:
                    self._client.write(frame[: len(frame) // 2])
                    await self._client.drain()
                if fault in CUTS:
                    self._cut_client()
                    return
                self._client.write(frame)
                await self._client.drain()

    def _cut_client(self) -> None:
        self._client.close()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    (size,) = struct.unpack(">i", head)
    return head + await reader.readexactly(size)
