"""Produce: append batches to partitions.

v3 oldest format served (0-2 are announced because librdkafka looks for them) · v9 flexible · v10 tells the leader
on error (KIP-951) · v12 adds partitions to the
transaction by itself (KIP-890) · v13 topics by id · zstd from v7 on
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from gateway import clock
from gateway.broker.appends import Append, Appended
from gateway.broker.catalog import Topic
from gateway.broker.key_gate import Keys
from gateway.broker.producers import readable
from gateway.domain.connections import RequestKind
from gateway.domain.idempotency import read_identities
from gateway.domain.producers import Producer
from gateway.errors import (
    ErrorCode,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    ProducerFenced,
    RecordsRefused,
    TransactionalIdRequired,
)
from gateway.handlers.registry import RequestContext, UnheardRefusal, handles, outcome
from gateway.protocol import transcoder
from gateway.protocol.batches import BatchLimits, ProducedBatch, decode_produced, find_headers, is_compressed
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage.keys import PartitionKey

FIRST_VERSION_WITH_IDS = 13
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_ABORTABLE = 11
FIRST_VERSION_THAT_ADDS = 12
"""KIP-890: a batch adds its partition to the transaction by itself."""
DECODE_IN_THREAD_BYTES = 64 * 1024
"""Batches from this size on are decoded off the event loop if they are compressed, or no compiled code reads them."""
EXPAND_IN_LOOP_BYTES = 512 * 1024
"""Smaller compressed batches are decoded off the event loop too when they expand to more than this."""

MAX_DECODED_BYTES = 64 * 1024 * 1024
"""When the batches of one request have expanded to more than this, the first ones are committed before the next are
decoded."""

Outcome = Appended | KafkaError


@handles(ApiKey.PRODUCE, versions=range(3, 14), announced_min=0)
async def produce(request: Request, context: RequestContext) -> Awaitable[Tree | None]:
    """Judge and queue every batch, in order; the answer follows when all of them are committed or refused."""
    names_topics_by_id = context.version >= FIRST_VERSION_WITH_IDS
    named = [topic.topic_id if names_topics_by_id else topic.name for topic in request.topic_data]
    topics = await context.find_topics(named, by_id=names_topics_by_id)
    begun = _Begun()
    for name, data in zip(named, request.topic_data, strict=True):
        for partition in data.partition_data:
            try:
                append: Append | KafkaError = await _begin(topics, name, partition, request, context)
            except KafkaError as error:
                append = error
            await begun.add(name, partition.index, append)
    context.memory.decoded_bytes = begun.decoded_bytes
    return _answer(begun, request, named_by_id=names_topics_by_id)


async def _begin(
    topics: dict[Any, Topic | KafkaError],
    name: Any,
    partition: Any,
    request: Request,
    context: RequestContext,
) -> Append:
    """Check one partition's batch and queue it."""
    if request.acks not in (-1, 0, 1):
        raise InvalidRequiredAcks(f"acks must be 0, 1 or all, not {request.acks}")
    topic = topics[name]
    if isinstance(topic, KafkaError):
        raise topic
    key = topic.partition(partition.index)
    if partition.records is None:
        raise InvalidRecord("there are no records")
    batch = await _decode(partition.records, topic, context)
    _check(batch, topic, request)
    if batch.is_transactional:
        await _join_transaction(batch, key, request, context)
    append = Append(
        key,
        batch,
        uses_log_append_time=topic.settings.log_append_time,
        knows_abortable=context.version >= FIRST_VERSION_WITH_ABORTABLE,
        keys=_keys(batch, topic),
    )
    context.broker.appends.submit(append)
    return append


async def _decode(records: bytes, topic: Topic, context: RequestContext) -> ProducedBatch:
    limits = BatchLimits(
        max_batch_bytes=topic.settings.max_message_bytes,
        # A topic may ask for less than the gateway allows, never for more.
        max_decompressed_bytes=min(
            topic.settings.max_decompressed_message_bytes, context.broker.settings.max_decompressed_message_bytes
        ),
        allow_zstd=context.version >= FIRST_VERSION_WITH_ZSTD,
    )
    if not is_compressed(records):
        if len(records) < DECODE_IN_THREAD_BYTES or transcoder.implementation.IS_COMPILED:
            return decode_produced(records, limits)
    elif len(records) < DECODE_IN_THREAD_BYTES:
        try:
            return decode_produced(
                records,
                replace(limits, max_decompressed_bytes=min(limits.max_decompressed_bytes, EXPAND_IN_LOOP_BYTES)),
            )
        except MessageTooLarge:
            pass  # for the event loop, or for the topic: the thread will tell
    return await asyncio.get_running_loop().run_in_executor(None, decode_produced, records, limits)


def _keys(batch: ProducedBatch, topic: Topic) -> Keys | None:
    """The business keys of the records, if the topic asks for them and there are any."""
    settings = topic.settings.idempotency_keys
    if settings is None:
        return None
    identities = read_identities(find_headers(batch, (settings.key_header, settings.tenant_header)), settings)
    return Keys(identities, settings.retention_ms) if any(identities) else None


async def _join_transaction(batch: ProducedBatch, key: PartitionKey, request: Request, context: RequestContext) -> None:
    """What must hold before a transactional batch is queued; the commit itself proves that its transaction is open."""
    is_classic = context.version < FIRST_VERSION_THAT_ADDS
    if is_classic:
        context.broker.connections.hear(
            RequestKind.PRODUCE, producer_id=batch.producer_id, connection=context.connection
        )
    transactions = context.broker.transactions
    joined = await outcome(
        transactions.require_name(request.transactional_id, batch.producer_id)
        if is_classic
        else transactions.add_implicitly(
            request.transactional_id,
            Producer(batch.producer_id, batch.producer_epoch),
            [key],
            client_id=readable(context.client_id),
        )
    )
    if isinstance(joined, ProducerFenced):
        # To a producer that writes, a newer instance is an epoch it may recover from (KIP-588).
        raise InvalidProducerEpoch(current=joined.current, received=batch.producer_epoch)
    if isinstance(joined, KafkaError):
        raise joined


def _check(batch: ProducedBatch, topic: Topic, request: Request) -> None:
    """What the topic's settings and the request say about a batch that is sound in itself."""
    if batch.is_transactional and request.transactional_id is None:
        raise TransactionalIdRequired("a transactional batch needs the request's transactional id")
    settings = topic.settings
    if not settings.log_append_time:
        now_ms = clock.now_ms()
        if batch.max_timestamp - now_ms > settings.timestamp_after_max_ms:
            raise InvalidTimestamp(
                f"timestamp {batch.max_timestamp} is more than message.timestamp.after.max.ms="
                f"{settings.timestamp_after_max_ms} ahead of now ({now_ms})"
            )
        oldest_ms = batch.min_timestamp
        if oldest_ms >= 0 and now_ms - oldest_ms > settings.timestamp_before_max_ms:
            raise InvalidTimestamp(
                f"timestamp {oldest_ms} is more than message.timestamp.before.max.ms="
                f"{settings.timestamp_before_max_ms} behind now ({now_ms})"
            )
    if "compact" in settings.cleanup_policy and batch.lacks_key:
        raise InvalidRecord(f"topic {topic.name} is compacted, so each record needs a key")


async def _answer(begun: _Begun, request: Request, *, named_by_id: bool) -> Tree | None:
    await begun.settle()
    if request.acks == 0:
        # The client hears of no error; as with Kafka, a closed connection is all it gets.
        if refused := [each for _, _, each in begun.settled if isinstance(each, KafkaError)]:
            raise UnheardRefusal(refused[0].message)
        return None
    responses: dict[Any, list[Tree]] = {}
    for name, index, result in begun.settled:
        responses.setdefault(name, []).append(_partition_response(index, result))
    label = "topic_id" if named_by_id else "name"
    return {"responses": [{label: name, "partition_responses": partitions} for name, partitions in responses.items()]}


class _Begun:
    """The batches of one request on their way. What is committed is let go, so that a request which expands to much
    more than it weighs takes its memory piece by piece."""

    def __init__(self) -> None:
        self.settled: list[tuple[Any, int, Outcome]] = []
        self.decoded_bytes = 0
        self._waiting: list[tuple[Any, int, Append | KafkaError]] = []

    async def add(self, name: Any, index: int, append: Append | KafkaError) -> None:
        self._waiting.append((name, index, append))
        if isinstance(append, Append):
            self.decoded_bytes += append.batch.payload_bytes
            if self.decoded_bytes > MAX_DECODED_BYTES:
                await self.settle()

    async def settle(self) -> None:
        """Wait until all of them are committed or refused."""
        # One commit answers many requests; those that need not wait here go out in one piece.
        pending = [each.done for _, _, each in self._waiting if isinstance(each, Append) and not each.done.done()]
        if pending:
            await asyncio.wait(pending)
        self.settled += [(name, index, _outcome(append)) for name, index, append in self._waiting]
        self._waiting.clear()
        self.decoded_bytes = 0


def _outcome(append: Append | KafkaError) -> Outcome:
    if isinstance(append, KafkaError):
        return append
    failure = append.done.exception()
    if failure is None:
        return append.done.result()
    if isinstance(failure, KafkaError):
        return failure
    raise failure


def _partition_response(index: int, result: Outcome) -> Tree:
    if isinstance(result, Appended):
        return {
            "index": index,
            "error_code": ErrorCode.none,
            "base_offset": result.base_offset,
            "log_append_time": result.log_append_time_ms,
            "log_start_offset": result.log_start_offset,
            "record_errors": [],
        }
    reasons = result.reasons if isinstance(result, RecordsRefused) else {}
    return {
        "index": index,
        "error_code": result.code,
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": -1,
        "record_errors": [
            {"batch_index": place, "batch_index_error_message": reason} for place, reason in reasons.items()
        ],
        "error_message": result.message,
    }
