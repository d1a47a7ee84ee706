"""Throughput and latency of the gateway, next to raw COPY of the same rows: `python -m benchmarks`."""
