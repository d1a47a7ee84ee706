"""Dead letters as operators see them: listed, shown, written back to their topics, forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from gateway.domain.deliveries import Headers, headers_of, redriven_headers
from gateway.storage.database import Database, Transaction
from gateway.worker.model import NewRecord
from gateway.worker.script import Ask, Script, append_records

__all__ = ["DeadLetter", "Filter", "Payload", "find", "purge", "read", "redrive"]

T = TypeVar("T")

PAGE = 500


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters; what is None does not matter."""

    ids: Sequence[int] | None = None
    topic: str | None = None
    group_id: str | None = None
    tenant: str | None = None
    key: str | None = None
    error: str | None = None
    state: str | None = None
    before_ms: int | None = None


class DeadLetter(NamedTuple):
    id: int
    topic: str
    partition: int
    offset: int
    group_id: str
    tenant: str
    key: str | None
    attempts: int
    copies: int
    last_error: str
    state: str
    dlq_topic: str
    dlq_partition: int | None
    dlq_offset: int | None
    redriven_offset: int | None
    first_delivered_at_ms: int | None
    last_delivered_at_ms: int | None
    died_at_ms: int
    redriven_at_ms: int | None


class Payload(NamedTuple):
    """The record of a dead letter."""

    key: bytes | None
    value: bytes | None
    headers: Headers


async def find(database: Database, wanted: Filter, *, limit: int | None = None) -> AsyncIterator[DeadLetter]:
    """Dead letters, oldest first."""
    after_id = left = 0
    left = limit if limit is not None else -1
    while left:
        size = PAGE if left < 0 else min(PAGE, left)
        rows = await database.rows(
            "worker/list_dead_letters",
            ids=None if wanted.ids is None else list(wanted.ids),
            topic=wanted.topic,
            group_id=wanted.group_id,
            tenant=wanted.tenant,
            key=wanted.key,
            error=wanted.error,
            state=wanted.state,
            before_ms=wanted.before_ms,
            after_id=after_id,
            limit=size,
        )
        for row in rows:
            yield DeadLetter(*row)
        if len(rows) < size:
            return
        after_id = rows[-1][0]
        left = max(left - len(rows), -1) if left > 0 else left


async def read(source: Database | Transaction, ids: Sequence[int]) -> dict[int, Payload]:
    """The records themselves; one that was deleted is left out."""
    rows = await source.rows("worker/read_dead_letters", ids=list(ids))
    return {row[0]: Payload(row[1], row[2], headers_of(row[3], row[4])) for row in rows}


async def redrive(database: Database, ids: Sequence[int]) -> tuple[int, list[int]]:
    """Write dead letters back to their topics, all in one transaction, each once however often it is asked for.

    Returns how many went, and which cannot: their topic or their record is gone.
    """
    async with database.transaction() as transaction:
        held = await transaction.rows("worker/lock_dead_letters", ids=list(ids))
        payloads = await read(transaction, [row[0] for row in held])
        going: list[int] = []
        stuck: list[int] = []
        records: list[NewRecord] = []
        for dead_letter_id, topic, partition, group_id in held:
            payload = payloads.get(dead_letter_id)
            if payload is None or partition is None:
                stuck.append(dead_letter_id)
                continue
            headers = redriven_headers(payload.headers, group_id=group_id)
            records.append(NewRecord(topic, payload.value, payload.key, headers, partition))
            going.append(dead_letter_id)
        if going:
            places = await _carry_out(transaction, append_records(records, {}))
            await transaction.rows("worker/mark_redriven", ids=going, offsets=[offset for _, _, offset in places])
            await transaction.rows(
                "worker/count_outcomes", retried=0, timed_out=0, dead_lettered=0, redriven=len(going)
            )
    return len(going), stuck


async def purge(database: Database, ids: Sequence[int]) -> int:
    """Forget dead letters; their topics' logs then begin with the oldest that remains."""
    ((count,),) = await database.rows("worker/delete_dead_letters", ids=list(ids))
    return int(count)


async def _carry_out(transaction: Transaction, script: Script[T]) -> T:
    """Run a script that only asks."""
    value: Any = None
    while True:
        try:
            command = script.send(value)
        except StopIteration as done:
            result: T = done.value
            return result
        assert isinstance(command, Ask)
        value = await transaction.rows(command.name, **command.parameters)
