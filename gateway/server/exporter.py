"""Prometheus metrics under kafka_exporter's names, so that dashboards made for it work.

Every gateway tells the whole cluster's: a dashboard chooses one instance and must not sum over several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.broker.overview import Snapshot

__all__ = ["Exporter"]


class Exporter(Collector):
    """Asks for a snapshot at each scrape; when there is none, tells what it knows without the database."""

    def __init__(self, count_brokers: Callable[[], int], load: Callable[[], Snapshot | None]) -> None:
        self._count_brokers = count_brokers
        self._load = load

    def describe(self) -> list[GaugeMetricFamily]:
        return []  # or registering would mean collecting

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("kafka_brokers", "Live gateways.", value=self._count_brokers())
        if (snapshot := self._load()) is not None:
            yield from _of_partitions(snapshot)
            yield from _of_groups(snapshot)
            yield from _of_workers(snapshot)


def _of_partitions(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    counts = GaugeMetricFamily("kafka_topic_partitions", "Partitions of the topic.", labels=["topic"])
    place = ["topic", "partition"]
    ends = GaugeMetricFamily("kafka_topic_partition_current_offset", "The next offset to be written.", labels=place)
    starts = GaugeMetricFamily("kafka_topic_partition_oldest_offset", "The first offset there is.", labels=place)
    for one in snapshot.partitions:
        ends.add_metric([one.topic, str(one.partition)], one.next_offset)
        starts.add_metric([one.topic, str(one.partition)], one.log_start_offset)
    for topic, count in Counter(one.topic for one in snapshot.partitions).items():
        counts.add_metric([topic], count)
    yield from (counts, ends, starts)


def _of_groups(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    place = ["consumergroup", "topic", "partition"]
    offsets = GaugeMetricFamily("kafka_consumergroup_current_offset", "The next offset to be read.", labels=place)
    lags = GaugeMetricFamily("kafka_consumergroup_lag", "Offsets the group is behind.", labels=place)
    sums = GaugeMetricFamily("kafka_consumergroup_lag_sum", "The same in all partitions.", labels=place[:2])
    members = GaugeMetricFamily("kafka_consumergroup_members", "Members of the group.", labels=place[:1])
    for (group, topic), places in groupby(snapshot.lags, key=lambda one: (one.group, one.topic)):
        lag_sum = 0
        for one in places:
            offsets.add_metric([group, topic, str(one.partition)], one.committed_offset)
            lags.add_metric([group, topic, str(one.partition)], one.lag)
            lag_sum += one.lag
        sums.add_metric([group, topic], lag_sum)
    for group, count in snapshot.members.items():
        members.add_metric([group], count)
    yield from (offsets, lags, sums, members)


def _of_workers(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ["consumergroup", "topic"]
    in_flight = GaugeMetricFamily("tablewire_deliveries_in_flight", "Records that workers have now.", labels=labels)
    waiting = GaugeMetricFamily("tablewire_deliveries_waiting", "Records that wait for a delivery.", labels=labels)
    dead = GaugeMetricFamily("tablewire_dead_letters", "Dead letters that were not redriven.", labels=labels)
    for one in snapshot.workers:
        in_flight.add_metric([one.group, one.topic], one.in_flight)
        waiting.add_metric([one.group, one.topic], one.waiting)
        dead.add_metric([one.group, one.topic], one.dead_letters)
    yield from (in_flight, waiting, dead)
    totals = snapshot.deliveries
    for name, text, value in (
        ("retries", "Deliveries that failed and were to be repeated.", totals.retried),
        ("timeouts", "Deliveries that nobody answered in time.", totals.timed_out),
        ("dead_lettered", "Records given up.", totals.dead_lettered),
        ("redriven", "Dead letters written back to their topics.", totals.redriven),
    ):
        yield CounterMetricFamily(f"tablewire_delivery_{name}", text, value=value)
