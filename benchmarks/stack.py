"""What is measured against: a PostgreSQL of its own, a gateway process, and topics, all gone afterwards."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import LiteralString, Self

import psycopg

from benchmarks.cpu import resident_peak_mb, tree_cpu_seconds
from gateway.storage import schema
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.statements import statement
from tests.support.gateway_process import GatewayProcess

__all__ = ["REBALANCE_DELAY_MS", "CpuSeconds", "Stack", "StackFailed", "Topic"]

DROP_TIMEOUT_S = 120.0

# Kafka's three seconds before a group's first generation would make most of a Java consumer's run.
REBALANCE_DELAY_MS = 500
SETTINGS = {"TABLEWIRE_GROUP_INITIAL_REBALANCE_DELAY_MS": str(REBALANCE_DELAY_MS)}


class StackFailed(Exception):
    """A topic of a measurement did not go away."""


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
    """PostgreSQL as `make run` starts it, the schema, and one gateway with default settings but one."""

    def __init__(self, *, workers: int = 1, settings: dict[str, str] | None = None) -> None:
        self._settings = {**SETTINGS, "TABLEWIRE_WORKERS": str(workers), **(settings or {})}
        self._cleanup = ExitStack()
        self._topics = 0

    def __enter__(self) -> Self:
        with self._cleanup:
            self.directory = Path(tempfile.mkdtemp(prefix="tablewire-bench-"))
            self._cleanup.callback(shutil.rmtree, self.directory)
            self._postgres = EmbeddedPostgres(self.directory)
            self._cleanup.callback(self._remove_cluster)
            self._cleanup.enter_context(self._postgres)
            schema.migrate(self._postgres.url)
            self.database_url = self._postgres.url
            self._database = self._cleanup.enter_context(psycopg.connect(self.database_url, autocommit=True))
            self._superuser = self._cleanup.enter_context(
                psycopg.connect(self._postgres.superuser_url, autocommit=True)
            )
            self._gateway = self._cleanup.enter_context(
                GatewayProcess(self.database_url, directory=self.directory, settings=self._settings)
            )
            self._cleanup = self._cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.__exit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        return self._gateway.bootstrap

    @property
    def postgres_version(self) -> str:
        return str(self._database.info.parameter_status("server_version"))

    def cpu_seconds(self) -> CpuSeconds:
        """What gateway and PostgreSQL have used so far; a restart of the gateway starts its count anew."""
        assert self._postgres.pid is not None
        return CpuSeconds(tree_cpu_seconds(self._gateway.pid), tree_cpu_seconds(self._postgres.pid))

    def gateway_peak_mb(self) -> float:
        """The most memory that the gateway has had resident since it was started."""
        return resident_peak_mb(self._gateway.pid)

    def wal_position(self) -> int:
        """Bytes of write-ahead log since the cluster was made."""
        return self._number("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")

    def settle(self) -> None:
        """Write dirty pages now, so that nobody pays for what was measured before."""
        self._superuser.execute("CHECKPOINT")

    # --- topics ------------------------------------------------------------------------------

    def create_topic(self, partitions: int, **configs: str) -> Topic:
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
            for key, value in configs.items():
                self._database.execute(
                    "INSERT INTO kafka.topic_configs (topic_id, name, value) VALUES (%s, %s, %s)",
                    [topic.topic_id, key.replace("_", "."), value],
                )
        return topic

    def count_rows(self, topic: Topic) -> int:
        """Of records; the markers of transactions do not count."""
        return self._number(
            "SELECT count(*) FROM kafka.messages WHERE topic_id = %s AND control_type IS NULL", topic.topic_id
        )

    def storage_bytes(self, topic: Topic) -> tuple[int, int]:
        """Of the topic's table, and of its indexes."""
        table = f"kafka.messages_{topic.topic_id}"
        return self._number("SELECT pg_table_size(%s)", table), self._number("SELECT pg_indexes_size(%s)", table)

    def take_in(self, topic: Topic, next_offset: int) -> None:
        """Rows up to here were copied into each partition past the gateway: they are part of the log, and what
        PostgreSQL does for new rows in the background is done."""
        self._database.execute(
            "UPDATE kafka.partitions SET next_offset = %s, last_stable_offset = %s WHERE topic_id = %s",
            [next_offset, next_offset, topic.topic_id],
        )
        self._database.execute(f"VACUUM (ANALYZE) kafka.messages_{topic.topic_id}".encode())

    def drop_topic(self, topic: Topic) -> None:
        parameters = {"topic_id": topic.topic_id}
        self._database.execute(statement("topics/delete_topic"), parameters)
        deadline = time.monotonic() + DROP_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._database.execute(statement("housekeeping/drop_storage"), parameters).fetchone() == (True,):
                return
        raise StackFailed(f"The storage of {topic.name} could not be dropped in {DROP_TIMEOUT_S:.0f} s.")

    def restart_gateway(self) -> None:
        """A gateway that remembers nothing: it reads rows where the last one had the batches in memory."""
        self._gateway.stop_cleanly()
        self._gateway.start()

    def _number(self, query: LiteralString, *parameters: object) -> int:
        row = self._database.execute(query, parameters).fetchone()
        assert row is not None
        return int(row[0])

    def _remove_cluster(self) -> None:
        """Root's cluster is elsewhere if PostgreSQL's user cannot reach the directory."""
        if self._postgres.home != self.directory:
            shutil.rmtree(self._postgres.home, ignore_errors=True)
