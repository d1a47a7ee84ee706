"""What business keys cost: the same records, each with a key of its own, into a topic that asks for keys and one that
does not."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench, Leg
from benchmarks.clients import Librdkafka
from benchmarks.results import KEYS_OFF, KEYS_ON, Run
from benchmarks.workload import Shape

__all__ = ["measure_keys"]


def measure_keys(bench: Bench) -> None:
    client = Librdkafka()
    for shape in bench.workload.keys_shapes:
        off = Leg(KEYS_OFF, partial(_produce, bench, client, shape, asks_for_keys=False))
        on = Leg(KEYS_ON, partial(_produce, bench, client, shape, asks_for_keys=True))
        bench.compare(client, shape, off, on, is_doubled=bench.workload.is_doubled)


def _produce(bench: Bench, client: Librdkafka, shape: Shape, *, asks_for_keys: bool) -> Run:
    """Into a topic of its own, half of what other measurements send: there may be two of each."""
    records = bench.workload.records[shape.record_bytes] // 2
    with bench.topic(shape.partitions, idempotency_keys_enable=str(asks_for_keys).lower()) as topic:
        produce = partial(client.produce_with_keys, bench.stack.bootstrap, topic.name, shape, records)
        run = bench.run(produce, records=records)
        bench.require_rows(topic, records)
    return run
