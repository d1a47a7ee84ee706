"""Produce: append batches to partitions.

v3 oldest format served (0-2 are announced because librdkafka looks for them) · v9 flexible · v10 tells the leader
on error (KIP-951) · v12 adds partitions to the
transaction by itself (KIP-890) · v13 topics by id · zstd from v7 on
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import structlog

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
from gateway.protocol.framing import frame
from gateway.protocol.messages import ApiKey, Request, RequestHeader, Tree, encode_response
from gateway.protocol.produce_answers import WrittenBatch, encode_written
from gateway.protocol.produce_requests import FIRST_VERSION_WITH_IDS
from gateway.storage.keys import PartitionKey
from gateway.telemetry.metrics import PRODUCERS_FENCED, SEQUENCE_REFUSALS

log = structlog.get_logger()

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
async def produce(request: Request, context: RequestContext) -> Awaitable[Tree | bytes | None]:
    """Judge and queue every batch, in order; the answer follows when all of them are committed or refused."""
    names_topics_by_id = context.version >= FIRST_VERSION_WITH_IDS
    named = [topic.topic_id if names_topics_by_id else topic.name for topic in request.topic_data]
    topics = await context.find_topics(named, by_id=names_topics_by_id)
    if request.acks not in (-1, 0, 1):
        topics = dict.fromkeys(named, InvalidRequiredAcks(f"acks must be 0, 1 or all, not {request.acks}"))
    begun = _Begun()
    for name, data in zip(named, request.topic_data, strict=True):
        topic = topics[name]
        if isinstance(topic, KafkaError):
            for partition in data.partition_data:
                begun.refuse(name, partition.index, topic)
            continue
        limits = _limits(topic, context)
        for partition in data.partition_data:
            batch = None
            try:
                key = topic.partition(partition.index)
                records = partition.records
                if records is None:
                    raise InvalidRecord("there are no records")
                batch = _decode_here(records, limits)
                if batch is None:
                    batch = await asyncio.get_running_loop().run_in_executor(None, decode_produced, records, limits)
                _check(batch, topic, request)
                if batch.is_transactional:
                    find_others = partial(_partitions, request, named, topics)
                    await _join_transaction(batch, key, find_others, request, context)
                append = begun.add(name, partition.index, key, batch, topic, context)
            except KafkaError as error:
                _tell_refusal(error, topic.name, partition.index, batch, context)
                begun.refuse(name, partition.index, error)
            else:
                context.broker.appends.submit(append)
            if begun.decoded_bytes > MAX_DECODED_BYTES:
                await begun.settle()
    context.memory.decoded_bytes = begun.decoded_bytes
    return _answer(begun, request, version=context.version)


def _tell_refusal(
    error: KafkaError, topic: str, partition: int, batch: ProducedBatch | None, context: RequestContext
) -> None:
    """Of a batch that never comes to a writer, which tells of its own; None: it could not be read."""
    if isinstance(error, InvalidProducerEpoch):
        PRODUCERS_FENCED.inc()
        SEQUENCE_REFUSALS.labels(error.code.name).inc()
    log.warning(
        "batch refused",
        topic=topic,
        partition=partition,
        client_id=readable(context.client_id),
        producer_id=None if batch is None else batch.producer_id,
        producer_epoch=None if batch is None else batch.producer_epoch,
        error=error.code.name,
        reason=error.message,
    )


def _limits(topic: Topic, context: RequestContext) -> BatchLimits:
    return BatchLimits(
        max_batch_bytes=topic.settings.max_message_bytes,
        # A topic may ask for less than the gateway allows, never for more.
        max_decompressed_bytes=min(
            topic.settings.max_decompressed_message_bytes, context.broker.settings.max_decompressed_message_bytes
        ),
        allow_zstd=context.version >= FIRST_VERSION_WITH_ZSTD,
    )


def _decode_here(records: bytes, limits: BatchLimits) -> ProducedBatch | None:
    """The batch, if reading it keeps the event loop for a moment only."""
    if not is_compressed(records):
        if len(records) < DECODE_IN_THREAD_BYTES or transcoder.implementation.IS_COMPILED:
            return decode_produced(records, limits)
    elif len(records) < DECODE_IN_THREAD_BYTES:
        few_bytes = min(limits.max_decompressed_bytes, EXPAND_IN_LOOP_BYTES)
        try:
            return decode_produced(records, replace(limits, max_decompressed_bytes=few_bytes))
        except MessageTooLarge:
            pass  # for the event loop, or for the topic: the thread will tell
    return None


def _keys(batch: ProducedBatch, topic: Topic) -> Keys | None:
    """The business keys of the records, if the topic asks for them and there are any."""
    settings = topic.settings.idempotency_keys
    if settings is None:
        return None
    identities = read_identities(find_headers(batch, (settings.key_header, settings.tenant_header)), settings)
    return Keys(identities, settings.retention_ms) if any(identities) else None


def _partitions(request: Request, named: Sequence[Any], topics: Mapping[Any, Topic | KafkaError]) -> list[PartitionKey]:
    """All that the request writes to, as far as they are there."""
    found = []
    for name, data in zip(named, request.topic_data, strict=True):
        topic = topics[name]
        if not isinstance(topic, KafkaError):
            for partition in data.partition_data:
                with suppress(KafkaError):
                    found.append(topic.partition(partition.index))
    return found


async def _join_transaction(
    batch: ProducedBatch,
    key: PartitionKey,
    find_others: Callable[[], list[PartitionKey]],
    request: Request,
    context: RequestContext,
) -> None:
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
            key,
            find_others,
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


async def _answer(begun: _Begun, request: Request, *, version: int) -> Tree | bytes | None:
    await begun.settle()
    if request.acks == 0:
        # The client hears of no error; as with Kafka, a closed connection is all it gets.
        if refused := [each for _, _, each in begun.settled if isinstance(each, KafkaError)]:
            raise UnheardRefusal(refused[0].message)
        return None
    if begun.is_all_written:
        written: dict[Any, list[WrittenBatch]] = {}
        for name, index, result in begun.settled:
            assert isinstance(result, Appended)
            written.setdefault(name, []).append(WrittenBatch(index, *result))
        return encode_written(written.items(), version=version)
    return _response(begun.settled, version=version)


def encode_outcomes(header: RequestHeader, outcomes: Sequence[tuple[str | UUID, int, Outcome]]) -> bytes:
    """The response frame that tells of each batch, given by topic and partition, what became of it."""
    return frame(encode_response(header, _response(outcomes, version=header.version)))


def _response(outcomes: Sequence[tuple[Any, int, Outcome]], *, version: int) -> Tree:
    responses: dict[Any, list[Tree]] = {}
    for name, index, result in outcomes:
        responses.setdefault(name, []).append(_partition_response(index, result))
    label = "topic_id" if version >= FIRST_VERSION_WITH_IDS else "name"
    return {"responses": [{label: name, "partition_responses": partitions} for name, partitions in responses.items()]}


class _Begun:
    """The batches of one request on their way. What is committed is let go, so that a request which expands to much
    more than it weighs takes its memory piece by piece."""

    def __init__(self) -> None:
        self.settled: list[tuple[Any, int, Outcome]] = []
        self.is_all_written = True
        """As far as batches are settled."""
        self.decoded_bytes = 0
        self._waiting: list[tuple[Any, int, Append | KafkaError]] = []
        self._unsettled = 0
        self._waiter: asyncio.Future[None] | None = None

    def add(
        self, name: Any, index: int, key: PartitionKey, batch: ProducedBatch, topic: Topic, context: RequestContext
    ) -> Append:
        """A batch to be submitted next."""
        append = Append(
            key,
            batch,
            on_done=self._count_down,
            uses_log_append_time=topic.settings.log_append_time,
            knows_abortable=context.version >= FIRST_VERSION_WITH_ABORTABLE,
            keys=_keys(batch, topic),
        )
        self._waiting.append((name, index, append))
        self._unsettled += 1
        self.decoded_bytes += batch.payload_bytes
        return append

    def refuse(self, name: Any, index: int, error: KafkaError) -> None:
        self._waiting.append((name, index, error))

    def _count_down(self) -> None:
        self._unsettled -= 1
        if self._unsettled == 0 and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def settle(self) -> None:
        """Wait until all of them are committed or refused."""
        # One commit answers many requests; those that need not wait here go out in one piece.
        if self._unsettled:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        for name, index, append in self._waiting:
            result = append.outcome if isinstance(append, Append) else append
            if isinstance(result, KafkaError):
                self.is_all_written = False
            elif not isinstance(result, Appended):
                assert result is not None, "everything is settled"
                raise result
            self.settled.append((name, index, result))
        self._waiting.clear()
        self.decoded_bytes = 0


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
