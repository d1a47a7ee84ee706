"""Throughput and latency of the gateway, and the price of its promises: `python -m benchmarks`."""
