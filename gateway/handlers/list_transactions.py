"""ListTransactions: transactional ids by state, producer, age or pattern (KIP-664).

v0 flexible · v1 by duration (KIP-994) · v2 by pattern (KIP-1152)
"""

from __future__ import annotations

from gateway.domain.patterns import compile_pattern
from gateway.domain.transactions import State
from gateway.errors import ErrorCode, InvalidRegularExpression, KafkaError
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field
from gateway.storage import transactions as storage


@handles(ApiKey.LIST_TRANSACTIONS, versions=range(0, 3))
async def list_transactions(request: Request, context: RequestContext) -> Tree:
    known = [name for name in request.state_filters if name in set(State)]
    pattern = field(request, "transactional_id_pattern", None)
    answer = {
        "error_code": ErrorCode.none,
        "unknown_state_filters": [name for name in request.state_filters if name not in set(State)],
        "transaction_states": [],
    }
    try:
        matches = compile_pattern(pattern, field="TransactionalIdPattern").fullmatch if pattern else None
    except InvalidRegularExpression as error:
        return {**answer, "error_code": error.code}
    rows = await outcome(
        storage.list_all(
            context.broker.database,
            states=known if request.state_filters else None,
            producer_ids=list(request.producer_id_filters) or None,
            min_duration_ms=field(request, "duration_filter", -1),
        )
    )
    if isinstance(rows, KafkaError):
        return {**answer, "error_code": ErrorCode.coordinator_not_available}
    return {
        **answer,
        "transaction_states": [
            {"transactional_id": transactional_id, "producer_id": producer_id, "transaction_state": state}
            for transactional_id, producer_id, state in rows
            if matches is None or matches(transactional_id)
        ],
    }
