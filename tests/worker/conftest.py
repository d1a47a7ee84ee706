"""Topics made of rows, and workers on connections of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from gateway.storage.statements import statement
from gateway.worker import Worker

Connection = psycopg.Connection[Any]


class Desk:
    """A database with topics, and whoever works on them."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self._stack = stack
        self.connection = self.connect(autocommit=True)

    def connect(self, *, autocommit: bool = False) -> Connection:
        return self._stack.enter_context(psycopg.connect(self.url, autocommit=autocommit))

    def topic(self, name: str = "orders", *, partitions: int = 1, **configs: object) -> str:
        """Settings with underscores for dots: delivery_max_attempts=3."""
        with self.connection.transaction():
            rows = self.connection.execute(
                statement("topics/insert_topic"), {"name": name, "partition_count": partitions}
            )
            row = rows.fetchone()
            assert row is not None
            topic_id = row[0]
            self.connection.execute(
                statement("topics/insert_partitions"), {"topic_id": topic_id, "first": 0, "last": partitions}
            )
            self.connection.execute(statement("topics/create_storage"), {"topic_id": topic_id})
            for key, value in configs.items():
                self.configure(name, key, value)
        return name

    def configure(self, topic: str, key: str, value: object) -> None:
        self.connection.execute(
            "INSERT INTO kafka.topic_configs (topic_id, name, value) SELECT topic_id, %s, %s FROM kafka.topics"
            " WHERE name = %s ON CONFLICT (topic_id, name) DO UPDATE SET value = excluded.value",
            [key.replace("_", "."), str(value), topic],
        )

    def append(
        self,
        *values: bytes,
        topic: str = "orders",
        partition: int = 0,
        key: str | None = None,
        tenant: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        named = [*headers]
        if key is not None:
            named.append(("idempotency-key", key.encode()))
        if tenant is not None:
            named.append(("tenant-id", tenant.encode()))
        for value in values:
            self.connection.execute(
                "SELECT kafka.append_record(%s, %s, NULL, %s, %s, %s)",
                [topic, partition, value, [name for name, _ in named], [text for _, text in named]],
            )

    def worker(self, topic: str = "orders", group_id: str = "desk", **options: Any) -> Worker:
        return Worker(self.connect(), topic, group_id, **options)

    def rows(self, query: str, *parameters: object) -> list[Any]:
        cursor = self.connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def deliveries(self) -> list[Any]:
        """Offset, state, attempts and last error, by partition and offset."""
        return self.rows(
            'SELECT "offset", state, attempts, last_error FROM kafka.deliveries ORDER BY partition, "offset"'
        )

    def committed(self, group_id: str = "desk") -> dict[int, int]:
        return dict(
            self.rows("SELECT partition, committed_offset FROM kafka.consumer_offsets WHERE group_id = %s", group_id)
        )

    def expire(self) -> None:
        """Let the leases of all deliveries run out."""
        self.connection.execute(
            "UPDATE kafka.deliveries SET leased_until = now() - interval '1 second' WHERE state = 'acquired'"
        )

    def make_due(self) -> None:
        """Let the pauses before all retries be over."""
        self.connection.execute("UPDATE kafka.deliveries SET available_at = now() - interval '1 second'")


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(database_url, stack)


@pytest.fixture
def payments(desk: Desk) -> Callable[[], list[int]]:
    """A table without any constraint, so that a duplicate would be seen."""
    desk.connection.execute("CREATE TABLE payments (number integer, attempts integer)")
    return lambda: [number for (number,) in desk.rows("SELECT number FROM payments ORDER BY number")]
