"""What is measured against: a PostgreSQL of its own, a gateway process, and topics, all gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from benchmarks.cpu import tree_cpu_seconds
from gateway.storage import schema
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.statements import statement
from tests.support.gateway_process import HOST, REPOSITORY, answers_api_versions, free_port

__all__ = ["CpuSeconds", "Stack", "StackFailed", "Topic"]

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
DROP_TIMEOUT_S = 30.0


class StackFailed(Exception):
    """The gateway did not start or did not stop, or a topic did not go away; the message says which."""


@dataclass(frozen=True, slots=True)
class Topic:
    topic_id: int
    name: str


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    gateway: float
    postgres: float

    def __sub__(self, earlier: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.gateway - earlier.gateway, self.postgres - earlier.postgres)


class Stack:
    """PostgreSQL as `make run` starts it, the schema, and one gateway with default settings."""

    def __init__(self) -> None:
        self._cleanup = ExitStack()
        self._gateway: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self._http_port = free_port()
        self._topics = 0

    def __enter__(self) -> Self:
        with self._cleanup:
            self.directory = Path(tempfile.mkdtemp(prefix="tablewire-bench-"))
            self._cleanup.callback(shutil.rmtree, self.directory)
            self._postgres = EmbeddedPostgres(self.directory / "data")
            self._cleanup.callback(self._remove_cluster)
            self._cleanup.enter_context(self._postgres)
            schema.migrate(self._postgres.url)
            self.database_url = self._postgres.url
            self._database = self._cleanup.enter_context(psycopg.connect(self.database_url, autocommit=True))
            self._superuser = self._cleanup.enter_context(
                psycopg.connect(self._postgres.superuser_url, autocommit=True)
            )
            self._cleanup.callback(self._stop_gateway)
            self._start_gateway()
            self._cleanup = self._cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def gateway_pid(self) -> int:
        assert self._gateway is not None
        return self._gateway.pid

    @property
    def postgres_version(self) -> str:
        return str(self._database.info.parameter_status("server_version"))

    def cpu_seconds(self) -> CpuSeconds:
        """What gateway and PostgreSQL have used so far; a restart of the gateway starts its count anew."""
        assert self._postgres.pid is not None
        return CpuSeconds(tree_cpu_seconds(self.gateway_pid), tree_cpu_seconds(self._postgres.pid))

    def settle(self) -> None:
        """Write dirty pages now, so that nobody pays for what was measured before."""
        self._superuser.execute("CHECKPOINT")

    # --- topics ------------------------------------------------------------------------------

    def create_topic(self, partitions: int) -> Topic:
        self._topics += 1
        name = f"bench-{self._topics}"
        with self._database.transaction():
            row = self._database.execute(
                statement("topics/insert_topic"), {"name": name, "partition_count": partitions}
            ).fetchone()
            assert row is not None
            topic = Topic(row[0], name)
            self._database.execute(
                statement("topics/insert_partitions"),
                {"topic_id": topic.topic_id, "first": 0, "last": partitions},
            )
            self._database.execute(statement("topics/create_storage"), {"topic_id": topic.topic_id})
        return topic

    def count_rows(self, topic: Topic) -> int:
        row = self._database.execute(
            "SELECT count(*) FROM kafka.messages WHERE topic_id = %s", [topic.topic_id]
        ).fetchone()
        assert row is not None
        return int(row[0])

    def drop_topic(self, topic: Topic) -> None:
        parameters = {"topic_id": topic.topic_id}
        self._database.execute(statement("topics/delete_topic"), parameters)
        deadline = time.monotonic() + DROP_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._database.execute(statement("housekeeping/drop_storage"), parameters).fetchone() == (True,):
                return
        raise StackFailed(f"The storage of {topic.name} could not be dropped in {DROP_TIMEOUT_S:.0f} s.")

    # --- the gateway -------------------------------------------------------------------------

    def restart_gateway(self) -> None:
        """A gateway that remembers nothing: it reads rows where the last one had the batches in memory."""
        self._stop_gateway()
        self._start_gateway()

    def _start_gateway(self) -> None:
        log_path = self.directory / "gateway.log"
        with log_path.open("ab") as log:
            self._gateway = subprocess.Popen(
                [sys.executable, "-c", "from gateway.cli import main; main()", "serve"],
                # Not the repository: a tablewire.toml there is the user's.
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the benchmark, which stops the gateway itself.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers_api_versions(HOST, self._port):
            if self._gateway.poll() is not None or time.monotonic() > deadline:
                said = log_path.read_text(errors="replace")[-2000:]
                raise StackFailed(f"The gateway did not start:\n{said}")
            time.sleep(0.05)

    def _stop_gateway(self) -> None:
        if self._gateway is None:
            return
        self._gateway.terminate()
        try:
            self._gateway.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._gateway.kill()
            self._gateway.wait()
            raise StackFailed(f"The gateway did not stop in {STOP_TIMEOUT_S:.0f} s and was killed.") from None
        finally:
            self._gateway = None

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TABLEWIRE_")}
        path = os.pathsep.join(filter(None, [str(REPOSITORY), inherited.get("PYTHONPATH")]))
        return {
            **inherited,
            "PYTHONPATH": path,
            "TABLEWIRE_DATABASE_URL": self.database_url,
            "TABLEWIRE_LISTEN": self.bootstrap,
            "TABLEWIRE_HTTP_LISTEN": f"{HOST}:{self._http_port}",
        }

    def _remove_cluster(self) -> None:
        """As root the cluster may have been put outside the directory."""
        if self._postgres.home != self.directory / "data":
            shutil.rmtree(self._postgres.home, ignore_errors=True)
