"""Medians, spreads and ratios, what is compared in which order, and what the performance tools print."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.bench import Bench, Leg
from benchmarks.clients import (
    ClientFailed,
    Librdkafka,
    Percentiles,
    parse_consumer_performance,
    parse_producer_performance,
)
from benchmarks.results import RAW_COPY, Case, Results, Run, Timing
from benchmarks.stack import CpuSeconds
from benchmarks.workload import QUICK, Part, Shape

SHAPE = Shape(1024, 6)
PRODUCED = Case("produce", "Java", SHAPE)


def _results() -> Results:
    results = Results({})
    for raw, produced in ((100_000, 50_000), (200_000, 20_000), (50_000, 20_000)):
        cpu = CpuSeconds(gateway=0.5, postgres=0.25)
        results.runs[Case(RAW_COPY, "", SHAPE)].append(Run.of(raw, cpu, records=100_000))
        results.runs[PRODUCED].append(Run.of(produced, cpu, records=100_000))
    return results


def test_a_ratio_is_to_the_raw_copy_of_its_own_repetition() -> None:
    ratio = _results().of_raw_copy(PRODUCED)
    # Per repetition 0.5, 0.1 and 0.4; the ratio of the medians would be 0.2.
    assert (ratio.low, ratio.median, ratio.high) == (0.1, 0.4, 0.5)


def test_what_took_turns_is_compared_by_neighbouring_turns() -> None:
    results = _results()
    raw = Case(RAW_COPY, "", SHAPE)
    results.neighbours[PRODUCED, raw] += [0.9, 0.7, 0.8]
    ratio = results.ratio(PRODUCED, raw)
    assert (ratio.low, ratio.median, ratio.high) == (0.7, 0.8, 0.9)


def test_rates_are_medians_with_their_extremes() -> None:
    summary = _results().summary(PRODUCED)
    assert summary.records_per_s.median == 20_000
    assert (summary.records_per_s.low, summary.records_per_s.high) == (20_000, 50_000)
    assert summary.megabytes_per_s == pytest.approx(20.48)


def test_cpu_is_counted_per_million_records() -> None:
    summary = _results().summary(PRODUCED)
    assert (summary.gateway_cpu_s_per_million, summary.postgres_cpu_s_per_million) == (5.0, 2.5)


def test_a_repetition_without_its_limit_is_an_error() -> None:
    results = _results()
    results.runs[Case(RAW_COPY, "", SHAPE)].pop()
    with pytest.raises(ValueError, match="shorter"):
        results.of_raw_copy(PRODUCED)


def test_runs_are_joined_by_their_time_and_not_by_their_speed() -> None:
    # 100 records in 1 s and 100 in 4 s are 200 in 5 s.
    joined = Run.joined([Run(100.0, 2.0, 1.0), Run(25.0, 4.0, 2.0)])
    assert joined == Run(40.0, 3.0, 1.5)


def test_the_growth_of_a_time_is_that_of_each_repetition() -> None:
    results = Results({})
    short, long = Timing(Part.TRANSACTIONS, "short"), Timing(Part.TRANSACTIONS, "long")
    results.timings[short] += [Percentiles(1.0, 9.0), Percentiles(2.0, 9.0), Percentiles(4.0, 9.0)]
    results.timings[long] += [Percentiles(3.0, 9.0), Percentiles(2.0, 9.0), Percentiles(6.0, 9.0)]
    assert results.p50_ratio(long, short).median == 1.5


@pytest.mark.parametrize(
    ("repetition", "is_doubled", "order"), [(1, True, "abba"), (2, True, "baab"), (1, False, "ab"), (2, False, "ba")]
)
def test_both_sides_of_a_comparison_come_first_equally_often(repetition: int, is_doubled: bool, order: str) -> None:
    ran: list[str] = []

    def leg(activity: str) -> Leg:
        def run() -> Run:
            ran.append(activity)
            return Run(float(len(ran)), 0.0, 0.0)

        return Leg(activity, run)

    nowhere: Any = None
    bench = Bench(repetition, nowhere, [], QUICK, Results({}), [Part.IDEMPOTENCE], lambda text: None)
    bench.compare(Librdkafka(), SHAPE, leg("a"), leg("b"), is_doubled=is_doubled)
    assert "".join(ran) == order
    assert {case.activity: len(runs) for case, runs in bench.results.runs.items()} == {"a": 1, "b": 1}


def test_producer_performance_ends_with_the_steady_state() -> None:
    output = (
        "4000 records sent, 799.2 records/sec (0.78 MB/sec), 90.1 ms avg latency, 300.0 ms max latency.\n"
        "5000 records sent, 811.036 records/sec (0.79 MB/sec), 100.11 ms avg latency, 373.00 ms max latency, "
        "8 ms 50th, 300 ms 95th, 371 ms 99th, 373 ms 99.9th.\n"
        "4000 steady state records sent, 998.5 records/sec (0.98 MB/sec), 7.50 ms avg latency, "
        "29.00 ms max latency, 6 ms 50th, 14 ms 95th, 21 ms 99th, 29 ms 99.9th.\n"
    )
    assert parse_producer_performance(output) == (998.5, Percentiles(p50_ms=6.0, p99_ms=21.0))


def test_producer_performance_without_a_summary_is_a_failure() -> None:
    with pytest.raises(ClientFailed, match="no summary"):
        parse_producer_performance("org.apache.kafka.common.errors.TimeoutException\n")


CONSUMED = (
    "2026-11-16 18:14:50:800, 0, 0.0010, 0.1, 1, 0.2, 700, 100, 0.1, 0.2\n"
    "2026-11-16 18:14:50:900, 0, 9.7656, 97.6, 10000, 99990.0, 0, 100, 97.6, 99990.0\n"
    "2026-11-16 18:14:51:000, 0, 39.0625, 292.9, 40000, 300000.0, 0, 100, 292.9, 300000.0\n"
    "2026-11-16 18:14:51:150, 0, 48.8281, 65.1, 50000, 66666.6, 0, 150, 65.1, 66666.6\n"
)


def test_consumer_performance_is_timed_from_the_first_report_after_the_warm_up() -> None:
    # From 10,000 records at .900 to 50,000 at 1.150.
    assert parse_consumer_performance(CONSUMED, warmup=8_000) == pytest.approx(160_000)


def test_consumer_performance_that_gave_up_is_a_failure() -> None:
    said = "WARNING: Exiting before consuming the expected number of records: timeout (10000 ms) exceeded.\n"
    with pytest.raises(ClientFailed, match="did not get all"):
        parse_consumer_performance(CONSUMED + said, warmup=8_000)


def test_consumer_performance_with_one_report_says_nothing_of_speed() -> None:
    with pytest.raises(ClientFailed, match="too little"):
        parse_consumer_performance(CONSUMED, warmup=45_000)
