"""How long heartbeats take on a gateway with many groups, while somebody produces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from benchmarks.bench import Bench
from benchmarks.clients import ClientFailed, Librdkafka, Percentiles
from benchmarks.group_members import time_heartbeats
from benchmarks.results import Timing
from benchmarks.workload import Part

__all__ = ["ACKNOWLEDGEMENT", "HEARTBEAT", "measure_groups"]

HEARTBEAT = "heartbeat"
ACKNOWLEDGEMENT = "produce, acks=all, meanwhile"
START_TIMEOUT_S = 60.0


def measure_groups(bench: Bench) -> None:
    stack, workload, client = bench.stack, bench.workload, Librdkafka()
    shape, load = workload.latency_shape, workload.group_load
    producing: list[Future[Percentiles]] = []
    with bench.topic(shape.partitions) as topic, ThreadPoolExecutor(1) as background:

        def begin() -> Callable[[], bool]:
            produce = background.submit(
                client.latency, stack.bootstrap, topic.name, shape, rate=workload.latency_rate, seconds=load.seconds
            )
            producing.append(produce)
            deadline = time.monotonic() + START_TIMEOUT_S
            while not produce.done() and not stack.count_rows(topic):
                if time.monotonic() > deadline:
                    raise ClientFailed(f"no record came in {START_TIMEOUT_S:.0f} s")
                time.sleep(0.05)
            return produce.done

        times_ms = asyncio.run(time_heartbeats(stack.bootstrap, topic.name, shape.partitions, load, begin=begin))
        acknowledged = producing[0].result()
    for name, measured in ((HEARTBEAT, Percentiles.of(times_ms)), (ACKNOWLEDGEMENT, acknowledged)):
        bench.results.timings[Timing(Part.GROUPS, name)].append(measured)
        bench.say(f"{name} p50 {measured.p50_ms:.1f} ms, p99 {measured.p99_ms:.1f} ms")
