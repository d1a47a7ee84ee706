"""HTTP beside Kafka, from threads of its own: /metrics, /healthz (the process lives), /readyz (it can serve)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import REGISTRY, make_wsgi_app

from gateway.broker.broker import Broker
from gateway.broker.overview import Snapshot
from gateway.config import Address
from gateway.errors import StartupError
from gateway.server.exporter import Exporter
from gateway.storage.failures import DATABASE_ERRORS

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["HttpListener"]

log = structlog.get_logger()

ANSWER_SECONDS = 8.0
"""Below the ten seconds after which Prometheus gives up."""

T = TypeVar("T")


class HttpListener:
    """Answers until it is stopped; asks the broker on the event loop's thread."""

    def __init__(self, address: Address, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._exporter = Exporter(lambda: len(broker.cluster.nodes), self._load_snapshot)
        self._metrics: WSGIApplication = make_wsgi_app()
        try:
            self._server = _Server(address)
        except OSError as error:
            raise StartupError(
                f"Cannot listen on {address} for metrics: {error.strerror or error}."
                " Choose another address with TABLEWIRE_HTTP_LISTEN."
            ) from error
        self._server.set_app(self._answer)
        REGISTRY.register(self._exporter)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    async def stop(self) -> None:
        REGISTRY.unregister(self._exporter)
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return self._metrics(environ, start_response)
            case "/healthz":
                status, text = "200 OK", "ok"
            case "/readyz":
                reason = self._why_not_ready()
                status, text = ("200 OK", "ok") if reason is None else ("503 Service Unavailable", reason)
            case _:
                status, text = "404 Not Found", "There are /metrics, /healthz and /readyz."
        body = f"{text}\n".encode()
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    def _why_not_ready(self) -> str | None:
        try:
            return self._ask(self._broker.overview.why_not_ready())
        except TimeoutError:
            return "The gateway is too busy to answer."

    def _load_snapshot(self) -> Snapshot | None:
        try:
            return self._ask(self._broker.overview.load())
        except DATABASE_ERRORS as error:
            log.warning("metrics are told without what the database knows", error=str(error))
            return None

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return answer.result(ANSWER_SECONDS)
        except TimeoutError:
            answer.cancel()
            raise


class _RequestHandler(WSGIRequestHandler):
    timeout = 10  # for a peer that connects and says nothing

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
        """A scrape every few seconds is not worth a line."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: Address) -> None:
        self._address = address
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _RequestHandler)

    def server_bind(self) -> None:
        """As WSGIServer's, without asking the name service who we are."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self._address
        self.setup_environ()
