"""What is counted. Names start with `tablewire_`; scraped from the HTTP listener."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = [
    "ACTIVE_PRODUCERS",
    "CONNECTIONS",
    "DUPLICATES",
    "IDEMPOTENCY_KEYS",
    "IDEMPOTENCY_KEYS_FAILING",
    "IDEMPOTENCY_KEYS_IN_FLIGHT",
    "MALFORMED",
    "OLDEST_OPEN_TRANSACTION_SECONDS",
    "OPEN_TRANSACTIONS",
    "PRODUCED_BYTES",
    "PRODUCED_RECORDS",
    "PRODUCERS_FENCED",
    "REQUESTS",
    "SEQUENCE_REFUSALS",
    "TRANSACTIONS",
    "TRANSACTION_END_SECONDS",
    "TRANSACTION_SECONDS",
    "UNEXPECTED",
]

REQUESTS = Counter("tablewire_requests", "Requests begun.", ["api", "version"])
CONNECTIONS = Gauge("tablewire_connections", "Client connections open now.")
MALFORMED = Counter("tablewire_malformed", "Connections closed because the peer sent something that is no request.")
UNEXPECTED = Counter("tablewire_unexpected_errors", "Requests that failed for a reason nobody foresaw.")
PRODUCED_RECORDS = Counter("tablewire_produced_records", "Records written.")
PRODUCED_BYTES = Counter("tablewire_produced_bytes", "Bytes of batches written, as they arrived.")
DUPLICATES = Counter("tablewire_duplicate_batches", "Retried batches answered with the offset of their first write.")
SEQUENCE_REFUSALS = Counter(
    "tablewire_sequence_refusals", "Batches refused for their sequence or their producer's epoch.", ["error"]
)
IDEMPOTENCY_KEYS = Counter(
    "tablewire_idempotency_keys",
    "Business keys of produced records: begun; committed or failed, at once or with a transaction that ended here;"
    " duplicate records that were not enqueued; records refused because somebody holds their key.",
    ["outcome"],
)
WORKER_KEYS = Counter(
    "tablewire_worker_keys",
    "Business keys of records that workers of this process had: begun, committed, failed; duplicate: done before;"
    " held by somebody else at that moment.",
    ["outcome"],
)
IDEMPOTENCY_KEYS_IN_FLIGHT = Gauge(
    "tablewire_idempotency_keys_in_flight", "Business keys begun and not done, those of workers included."
)
IDEMPOTENCY_KEYS_FAILING = Gauge(
    "tablewire_idempotency_keys_failing", "Business keys whose last attempt failed, those of workers included."
)
PRODUCERS_FENCED = Counter("tablewire_producers_fenced", "InitProducerId requests and batches with a fenced epoch.")
ACTIVE_PRODUCERS = Gauge("tablewire_active_producers", "Idempotent producers that wrote in the last five minutes.")
TRANSACTIONS = Gauge("tablewire_transactions", "Transactions of all gateways since the schema was made.", ["outcome"])
OPEN_TRANSACTIONS = Gauge("tablewire_open_transactions", "Transactions that are open now.")
OLDEST_OPEN_TRANSACTION_SECONDS = Gauge("tablewire_oldest_open_transaction_seconds", "Age of the oldest open one.")
TRANSACTION_END_SECONDS = Histogram("tablewire_transaction_end_seconds", "How long EndTxn took.")
TRANSACTION_SECONDS = Histogram(
    "tablewire_transaction_seconds",
    "How long transactions that ended here had been open.",
    ["outcome"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900),
)
