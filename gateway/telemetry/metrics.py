"""What is counted. Names start with `tablewire_`; scraped from the HTTP listener."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

__all__ = ["CONNECTIONS", "MALFORMED", "PRODUCED_BYTES", "PRODUCED_RECORDS", "REQUESTS", "UNEXPECTED"]

REQUESTS = Counter("tablewire_requests", "Requests begun.", ["api", "version"])
CONNECTIONS = Gauge("tablewire_connections", "Client connections open now.")
MALFORMED = Counter("tablewire_malformed", "Connections closed because the peer sent something that is no request.")
UNEXPECTED = Counter("tablewire_unexpected_errors", "Requests that failed for a reason nobody foresaw.")
PRODUCED_RECORDS = Counter("tablewire_produced_records", "Records written.")
PRODUCED_BYTES = Counter("tablewire_produced_bytes", "Bytes of batches written, as they arrived.")
