"""A gateway as a separate process: start it, wait until it answers, kill it, stop it, read its log.

The process is the real command on a real port, so that clients and fault tests meet what users run.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"

# What the installed `tablewire` script does, in the interpreter that runs the tests.
COMMAND = "from gateway.cli import main; main()"

# Tests may run several gateways on one database, each with an id of its own.
NODE_IDS = itertools.count(1)

# Words that a log holds only when something was not expected.
UNEXPECTED = ("traceback", "unhandled", "was never retrieved", "was never awaited")


class GatewayFailed(AssertionError):
    """The gateway did not start, or did not stop as it should; the message ends with its log."""


def _own_ports() -> Iterator[int]:
    """Ports for this process of the test run, each once per round, below those that the kernel gives to clients.

    A gateway that is restarted on its port must not find it taken by an outgoing connection; and what is free now and
    bound a moment later must not be given to a test in another process meanwhile, so each has a share of its own.
    """
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    size = 12_000 // shares
    # Every second one: who needs a port and the next, as workers do, is not given what another has.
    ports = list(range(20_000 + share * size, 20_000 + (share + 1) * size - 1, 2))
    # Two runs on one machine begin in different places.
    start = random.SystemRandom().randrange(len(ports))
    return itertools.cycle(ports[start:] + ports[:start])


_PORTS = _own_ports()


def free_port() -> int:
    """A port nobody listens on, and that nobody else is given."""
    for port in itertools.islice(_PORTS, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise GatewayFailed("no free port between 20000 and 32000")


def answers_api_versions(host: str, port: int, *, timeout_s: float = 2.0) -> bool:
    """Whether an ApiVersions request (v0, the one every broker must answer) gets error 0."""
    client_id = b"readiness"
    body = struct.pack(">hhih", 18, 0, 7, len(client_id)) + client_id
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                head = stream.read(10)
    except OSError:
        return False
    if len(head) < 10:
        return False
    _, correlation_id, error_code = struct.unpack(">iih", head)
    return bool(correlation_id == 7 and error_code == 0)


class GatewayProcess:
    """One gateway on one database, with a node id and ports that stay the same over restarts."""

    def __init__(
        self,
        database_url: str,
        *,
        directory: Path,
        name: str = "gateway",
        settings: dict[str, str] | None = None,
        prelude: str = "",
    ) -> None:
        """`prelude` is Python that the process runs first."""
        self.database_url = database_url
        self.port = free_port()
        self.http_port = free_port()
        self.node_id = next(NODE_IDS)
        self.settings = settings or {}
        self._prelude = prelude
        self.log_path = directory / f"{name}.log"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the gateway was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self, *, wait: bool = True) -> Self:
        assert not self.is_running, "the gateway runs already"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{self._prelude}\n{COMMAND}", "serve"],
                # Not the repository: a tablewire.toml there is the user's, not the test's.
                cwd=self._directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, *, timeout_s: float = 60.0) -> None:
        """Return when ApiVersions is answered; fail at once when the process has ended."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self._process is not None
            if (code := self._process.poll()) is not None:
                raise GatewayFailed(f"the gateway ended with {code} before it was ready\n{self.log_text()}")
            if answers_api_versions(HOST, self.port):
                return
            time.sleep(0.05)
        raise GatewayFailed(f"the gateway was not ready after {timeout_s} s\n{self.log_text()}")

    def kill9(self) -> None:
        """End the process as a crash would: nothing is drained, flushed or said."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self, *, timeout_s: float = 30.0) -> int:
        """SIGTERM, wait for the drain, and return the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise GatewayFailed(
                f"the gateway did not stop within {timeout_s} s of SIGTERM\n{self.log_text()}"
            ) from None

    def stop_cleanly(self, *, timeout_s: float = 30.0) -> None:
        """SIGTERM, then require exit code 0 and a log in which nothing unexpected happened."""
        code = self.terminate(timeout_s=timeout_s)
        if code != 0:
            raise GatewayFailed(f"the gateway ended with {code} after SIGTERM\n{self.log_text()}")
        self.require_clean_log()

    def require_clean_log(self) -> None:
        lines = self.log_text().splitlines()
        for number, line in enumerate(lines):
            if any(word in line.lower() for word in UNEXPECTED):
                excerpt = "\n".join(lines[max(0, number - 3) : number + 40])
                raise GatewayFailed(f"the gateway's log has an unexpected error:\n{excerpt}")

    def restart(self) -> None:
        """Start again on the same ports; the process must have ended."""
        self.start()

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_running:
            return
        if exc_type is None:
            self.stop_cleanly()
        else:
            self.kill9()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TABLEWIRE_")}
        path = os.pathsep.join(filter(None, [str(REPOSITORY), inherited.get("PYTHONPATH")]))
        return {
            **inherited,
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "TABLEWIRE_DATABASE_URL": self.database_url,
            "TABLEWIRE_LISTEN": self.bootstrap,
            "TABLEWIRE_HTTP_LISTEN": f"{HOST}:{self.http_port}",
            "TABLEWIRE_NODE_ID": str(self.node_id),
            **self.settings,
        }
