"""What fault tests stand on: gateways that may die, a PostgreSQL that may die, and what must be left afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.schema import migrate
from tests.support.auditor import require_nothing_left
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import HandmadeProducer

PARTITIONS = 4

QUICK_RETURN = {"TABLEWIRE_BROKER_HEARTBEAT_INTERVAL_MS": "500", "TABLEWIRE_BROKER_SESSION_TIMEOUT_MS": "2000"}
"""A gateway that was killed gets its node id back when its old self has been silent for this long."""


class CrashingServer:
    """A PostgreSQL of the test's own, on a port that stays the same."""

    def __init__(self, directory: Path) -> None:
        self._postgres = EmbeddedPostgres(directory)
        self._postgres.start()
        self.url = self._postgres.url
        self.superuser_url = self._postgres.superuser_url

    def kill9(self) -> None:
        """End every process of the server at once, as a power cut would."""
        assert self._postgres.pid is not None
        for pid in (self._postgres.pid, *children_of(self._postgres.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No process of the server does anything, though the kernel still acknowledges what is sent to it."""
        assert self._postgres.pid is not None
        pids = (self._postgres.pid, *children_of(self._postgres.pid))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def kill9_session(self, pid: int) -> None:
        """End one session's process, which must be ours."""
        assert self._postgres.pid is not None
        if pid in children_of(self._postgres.pid):
            os.kill(pid, signal.SIGKILL)

    def shut_down(self, *, immediate: bool = False) -> None:
        """`pg_ctl stop -m fast` or `-m immediate`: a signal to the postmaster."""
        assert self._postgres.pid is not None
        os.kill(self._postgres.pid, signal.SIGQUIT if immediate else signal.SIGINT)

    def start_again(self) -> None:
        """Wait for the end of the old processes, then start on the same port."""
        self._postgres.stop()
        self._postgres.start()
        assert self._postgres.url == self.url

    def stop(self) -> None:
        self._postgres.stop()


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


@pytest.fixture(scope="session")
def crashing_server() -> Iterator[CrashingServer]:
    directory = Path(tempfile.mkdtemp(prefix="tablewire-faults-"))
    server = CrashingServer(directory)
    try:
        migrate(server.url)
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Start gateways on a database; at the end they must stop in order, with a clean log, and leave nothing."""
    started: list[GatewayProcess] = []
    with ExitStack() as stack:

        def start(database_url: str, *, port: int | None = None, **settings: object) -> GatewayProcess:
            variables = {f"TABLEWIRE_{name.upper()}": str(value) for name, value in settings.items()}
            number = len(started) + 1
            gateway = GatewayProcess(
                database_url,
                directory=tmp_path,
                name=f"gateway-{number}",
                settings={"TABLEWIRE_NODE_ID": str(number), **QUICK_RETURN, **variables},
            )
            gateway.port = port or gateway.port
            started.append(gateway)
            return stack.enter_context(gateway)

        yield start
    for gateway in started:
        gateway.require_clean_log()
    for database_url in {gateway.database_url for gateway in started}:
        require_nothing_left(database_url)


@pytest.fixture
def new_topic() -> Callable[..., str]:
    def create(gateway: GatewayProcess, *, partitions: int = PARTITIONS) -> str:
        with HandmadeProducer(gateway.bootstrap) as connection:
            return connection.create_topic(f"faults.{uuid.uuid4().hex[:12]}", partitions=partitions)

    return create


def run_sql(database_url: str, query: str, *parameters: object) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        cursor = connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def execute() -> Callable[..., list[tuple[object, ...]]]:
    return run_sql
