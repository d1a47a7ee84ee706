"""DescribeTransactions: everything about transactional ids (KIP-664).

v0 flexible
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from gateway.errors import ErrorCode, KafkaError
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree
from gateway.storage import transactions as storage


@handles(ApiKey.DESCRIBE_TRANSACTIONS, versions=range(0, 1))
async def describe_transactions(request: Request, context: RequestContext) -> Tree:
    found = await outcome(storage.describe(context.broker.database, request.transactional_ids))
    return {
        "transaction_states": [
            _refused(each, context.producer_error(found, fenced_since=0))
            if isinstance(found, KafkaError)
            else _described(found[each])
            if each in found
            else _refused(each, ErrorCode.transactional_id_not_found if each else ErrorCode.invalid_request)
            for each in request.transactional_ids
        ]
    }


def _described(row: Any) -> Tree:
    transactional_id, producer_id, epoch, state, timeout_ms, started_at_ms, topics, partitions = row
    pairs = zip(topics, partitions, strict=True)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": state,
        "transaction_timeout": timeout_ms,
        "transaction_start_time": -1 if started_at_ms is None else started_at_ms,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "topics": [
            {"topic": name, "partitions": [index for _, index in group]}
            for name, group in groupby(pairs, key=lambda pair: pair[0])
        ],
    }


def _refused(transactional_id: str, code: ErrorCode) -> Tree:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "topics": [],
    }
