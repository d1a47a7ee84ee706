"""The sink for another topic of the gateway: records that become readable with the batch's commit, or never.

A transactional producer writes them through the wire; its transaction is ended not by EndTxn but inside the batch's own
database transaction, which is where Kafka's and the pipeline's truth both are. So there is no moment in between: a
runner that dies leaves an open transaction, which the next one's producer, of the same transactional id, aborts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import sql

from gateway import failpoints
from gateway.config import load_settings
from gateway.errors import PipelineError
from gateway.pipeline.cuts import fix_cut
from gateway.pipeline.database import Connection
from gateway.pipeline.job import Batch, Run
from gateway.pipeline.staging import PART, ROW, Staged, settle, stage_rows
from gateway.storage.statements import statement

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer
    from pyspark.sql import DataFrame

__all__ = ["WriteTopic"]

TYPES = {"key": "bytea", "value": "bytea", "partition": "integer", "timestamp": "timestamptz", "headers": "jsonb"}
BYTES = ("key", "value")
FETCH_ROWS = 2_000
TRANSACTION_TIMEOUT_MS = 300_000
MAX_REQUEST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class WriteTopic:
    """Rows (value, and if wanted key, partition, timestamp, headers) become records of a topic, in one transaction.

    Key and value are bytes or text; headers are JSON as `kafka.committed_messages` shows them. Rows of one Spark
    partition are written in their order: sort within partitions where the order of records matters.
    """

    topic: str
    bootstrap: str | None = None
    """The gateway's address; None: the one in its settings."""
    producer_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further arguments of aiokafka's producer: security, compression_type, …"""

    def prepare(self, run: Run, output: str, connection: Connection) -> None:
        fix_cut(connection, self.topic, start="latest")

    def stage(self, batch: Batch, output: str, rows: DataFrame) -> tuple[str, Staged]:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        if "value" not in rows.columns or (unknown := [one for one in rows.columns if one not in TYPES]):
            wrong = "value is missing" if "value" not in rows.columns else f"{unknown[0]} is none of them"
            raise PipelineError(f"Rows for topic {self.topic} have the columns {', '.join(TYPES)}; {wrong}.")
        chosen = [F.col(one).cast("binary") if one in BYTES else F.col(one) for one in rows.columns]
        types = {name: TYPES[name] for name in rows.columns}
        return output, stage_rows(batch, output, rows.select(*chosen), types)

    def commit(self, batch: Batch, connection: Connection, staged: tuple[str, Staged]) -> int:
        output, rows = staged
        settle(connection, rows)
        if not rows.rows:
            return 0
        transactional_id = f"tablewire.pipeline.{batch.pipeline}.{output}"
        # A thread of its own: a notebook has an event loop at work in this one.
        with ThreadPoolExecutor(1) as thread:
            producer = thread.submit(asyncio.run, self._produce(connection, rows, transactional_id)).result()
        failpoints.reach(failpoints.PIPELINE_PRODUCED)
        parameters = {"transactional_id": transactional_id}
        found = connection.execute(statement("pipeline/lock_transaction"), parameters).fetchone()
        if found != (*producer, "Ongoing"):
            raise PipelineError(
                f"The transaction of {transactional_id} was ended by somebody else, by a time-out of "
                f"{TRANSACTION_TIMEOUT_MS} ms or another producer of that name: nothing of the batch was written."
            )
        ending = {"producer_id": producer[0], "producer_epoch": producer[1]}
        connection.execute(statement("pipeline/end_transaction"), ending)
        return rows.rows

    async def _produce(self, connection: Connection, rows: Staged, transactional_id: str) -> tuple[int, int]:
        """Write all rows; the transaction stays open. The producer's id and epoch."""
        async with self._producer(transactional_id) as producer:
            await producer.begin_transaction()
            found = connection.execute(
                statement("pipeline/find_transaction"), {"transactional_id": transactional_id}
            ).fetchone()
            assert found is not None
            columns = sql.SQL(", ").join(map(sql.Identifier, rows.columns))
            query = sql.SQL("SELECT {} FROM {} ORDER BY {}, {}").format(
                columns, rows.identifier, sql.Identifier(PART), sql.Identifier(ROW)
            )
            with connection.cursor(name="tablewire_rows") as cursor:
                cursor.execute(query)
                while batch := cursor.fetchmany(FETCH_ROWS):
                    sent = [
                        await producer.send(self.topic, **_record(dict(zip(rows.columns, row, strict=True))))
                        for row in batch
                    ]
                    await asyncio.gather(*sent)
            await producer.flush()
        return found[0], found[1]

    @asynccontextmanager
    async def _producer(self, transactional_id: str) -> AsyncIterator[AIOKafkaProducer]:
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        settings = load_settings()
        bootstrap = self.bootstrap or settings.advertised or settings.listen
        options = {"max_request_size": MAX_REQUEST_BYTES, **self.producer_options}
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **options,
        )
        try:
            # Aborts what a runner that died has left open, and fences that runner should it still live.
            await producer.start()
            yield producer
        except KafkaError as refused:
            raise PipelineError(
                f"Topic {self.topic} cannot be written through the gateway at {bootstrap}: {refused}. Start it with "
                "`tablewire serve`, or name its address as the sink's bootstrap."
            ) from refused
        finally:
            await producer.stop()


def _record(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments of send() for a row."""
    if row["value"] is None and row.get("key") is None:
        raise PipelineError("A row has neither key nor value: leave it out in the job, or give it an empty value.")
    record = {name: row[name] for name in ("key", "value", "partition") if row.get(name) is not None}
    if row.get("timestamp") is not None:
        record["timestamp_ms"] = int(row["timestamp"].timestamp() * 1000)
    if row.get("headers") is not None:
        headers = row["headers"] if isinstance(row["headers"], list) else json.loads(row["headers"])
        record["headers"] = [(one["name"], _unescape(one["value"])) for one in headers]
    return record


def _unescape(text: str | None) -> bytes | None:
    r"""What PostgreSQL's encode(…, 'escape') wrote: \\ and \ooo stand for bytes, anything else for itself."""
    if text is None:
        return None
    data, found, at = text.encode(), bytearray(), 0
    while at < len(data):
        if data[at] != 0x5C:
            found.append(data[at])
            at += 1
        elif data[at + 1] == 0x5C:
            found.append(0x5C)
            at += 2
        else:
            found.append(int(data[at + 1 : at + 4], 8))
            at += 4
    return bytes(found)
