"""What transactions cost: to produce in them, to end them, and to read only what they committed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.bench import Bench, Leg
from benchmarks.clients import Client, Guarantee, Isolation, Librdkafka
from benchmarks.results import (
    COMMITTED_ROWS,
    COMMITTED_TAIL,
    NOT_TRANSACTIONAL,
    TRANSACTIONAL,
    UNCOMMITTED_ROWS,
    UNCOMMITTED_TAIL,
    Run,
    Timing,
)
from benchmarks.stack import Topic
from benchmarks.workload import Part, Shape

__all__ = ["COMMIT", "END_TXN", "measure_transactions"]

COMMIT = "commit_transaction()"
END_TXN = "EndTxn of {records:,} records"


def measure_transactions(bench: Bench) -> None:
    _measure_producing(bench)
    _measure_isolation(bench)
    _measure_commits(bench)


def _measure_producing(bench: Bench) -> None:
    for shape in bench.workload.transaction_shapes:
        for client in bench.clients:
            plain = Leg(NOT_TRANSACTIONAL, partial(_produce, bench, client, shape, Guarantee.IDEMPOTENT))
            transactional = Leg(TRANSACTIONAL, partial(_produce, bench, client, shape, Guarantee.TRANSACTIONAL))
            bench.compare(client, shape, plain, transactional, is_doubled=bench.workload.is_doubled)


def _produce(bench: Bench, client: Client, shape: Shape, guarantee: Guarantee) -> Run:
    """Into a topic of its own."""
    records = bench.workload.compared_records[shape.record_bytes]
    with bench.topic(shape.partitions) as topic:
        produce = partial(client.produce, bench.stack.bootstrap, topic.name, shape, records, guarantee)
        run = bench.run(produce, records=records)
        bench.require_rows(topic, records)
    return run


def _measure_isolation(bench: Bench) -> None:
    """Both levels read the same topic, whose records are in transactions, from memory and from rows."""
    stack, shape = bench.stack, bench.workload.isolation_shape
    records = bench.workload.compared_records[shape.record_bytes]

    def consume(client: Client, topic: Topic, isolation: Isolation) -> Run:
        read = partial(client.consume, stack.bootstrap, topic.name, shape, records, isolation)
        return bench.run(read, records=records)

    def compare(client: Client, topic: Topic, base: str, other: str) -> None:
        uncommitted = Leg(base, partial(consume, client, topic, Isolation.UNCOMMITTED))
        committed = Leg(other, partial(consume, client, topic, Isolation.COMMITTED))
        bench.compare(client, shape, uncommitted, committed)

    with ExitStack() as topics:
        places = [(client, topics.enter_context(bench.topic(shape.partitions))) for client in bench.clients]
        for client, topic in places:
            client.produce(stack.bootstrap, topic.name, shape, records, Guarantee.TRANSACTIONAL)
            bench.require_rows(topic, records)
            stack.settle()
            compare(client, topic, UNCOMMITTED_TAIL, COMMITTED_TAIL)
        stack.restart_gateway()
        # A gateway that has just started pays for much that is no part of the comparison.
        consume(*places[0], Isolation.COMMITTED)
        for client, topic in places:
            compare(client, topic, UNCOMMITTED_ROWS, COMMITTED_ROWS)


def _measure_commits(bench: Bench) -> None:
    client, shape, workload = Librdkafka(), bench.workload.commit_shape, bench.workload

    def record(name: str, records: int, *, transactions: int, is_flushed_first: bool) -> None:
        with bench.topic(shape.partitions) as topic:
            measured = client.commit_latency(
                bench.stack.bootstrap, topic.name, shape, records,
                transactions=transactions, is_flushed_first=is_flushed_first,
            )  # fmt: skip
        bench.results.timings[Timing(Part.TRANSACTIONS, name)].append(measured)
        bench.say(f"{name} p50 {measured.p50_ms:.1f} ms, p99 {measured.p99_ms:.1f} ms")

    record(COMMIT, workload.commit_records, transactions=workload.commits, is_flushed_first=False)
    for records, transactions in workload.end_commits.items():
        name = END_TXN.format(records=records)
        record(name, records, transactions=transactions, is_flushed_first=True)
