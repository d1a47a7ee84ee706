"""What deduplication costs: the same client with idempotence on and off.

Numbering records also costs the clients, on the same cores; batches that were made beforehand show what it costs
gateway and database, and the same clients next to Apache Kafka what it costs there.
"""

from __future__ import annotations

from functools import partial

from benchmarks.apache_kafka import ApacheKafka
from benchmarks.bench import Bench, Leg
from benchmarks.clients import Client, Guarantee, Prepared
from benchmarks.results import IDEMPOTENCE_OFF, IDEMPOTENCE_ON, KAFKA, Run
from benchmarks.workload import Shape

__all__ = ["measure_idempotence", "produce_once"]


def measure_idempotence(bench: Bench) -> None:
    for shape in bench.workload.idempotence_shapes:
        for client in bench.clients:
            off = Leg(IDEMPOTENCE_OFF, partial(produce_once, bench, client, shape, Guarantee.NONE))
            on = Leg(IDEMPOTENCE_ON, partial(produce_once, bench, client, shape, Guarantee.IDEMPOTENT))
            bench.compare(client, shape, off, on, is_doubled=bench.workload.is_doubled)
            if bench.kafka is not None:
                off = Leg(IDEMPOTENCE_OFF, partial(produce_to_kafka, bench, bench.kafka, client, shape, Guarantee.NONE))
                on = Leg(
                    IDEMPOTENCE_ON, partial(produce_to_kafka, bench, bench.kafka, client, shape, Guarantee.IDEMPOTENT)
                )
                bench.compare(client, shape, off, on, is_doubled=bench.workload.is_doubled, broker=KAFKA)
        off = Leg(IDEMPOTENCE_OFF, partial(produce_prepared, bench, shape, Guarantee.NONE))
        on = Leg(IDEMPOTENCE_ON, partial(produce_prepared, bench, shape, Guarantee.IDEMPOTENT))
        bench.compare(Prepared(), shape, off, on, is_doubled=bench.workload.is_doubled)


def produce_prepared(bench: Bench, shape: Shape, guarantee: Guarantee) -> Run:
    records = bench.workload.compared_records[shape.record_bytes]
    with bench.topic(shape.partitions) as topic:
        before = bench.stack.cpu_seconds()
        done = Prepared().produce(bench.stack.bootstrap, topic.name, shape, records, guarantee)
        run = Run.of(done.records_per_s, bench.stack.cpu_seconds() - before, done.records)
        bench.require_rows(topic, done.records)
    return run


def produce_once(bench: Bench, client: Client, shape: Shape, guarantee: Guarantee) -> Run:
    """Into a topic of its own."""
    records = bench.workload.compared_records[shape.record_bytes]
    with bench.topic(shape.partitions) as topic:
        produce = partial(client.produce, bench.stack.bootstrap, topic.name, shape, records, guarantee)
        run = bench.run(produce, records=records)
        bench.require_rows(topic, records)
    return run


def produce_to_kafka(bench: Bench, kafka: ApacheKafka, client: Client, shape: Shape, guarantee: Guarantee) -> Run:
    """The same, into Apache Kafka."""
    records = bench.workload.compared_records[shape.record_bytes]
    with kafka.topic(shape.partitions) as topic:
        bench.stack.settle()
        kafka.settle()
        return kafka.run(partial(client.produce, kafka.bootstrap, topic, shape, records, guarantee), records=records)
