"""Medians, spreads and ratios, and the tables made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.clients import ClientFailed, Percentiles, parse_producer_performance
from benchmarks.report import BEGIN, END, markdown, write_markdown
from benchmarks.results import RAW_COPY, Case, Results, Run
from benchmarks.stack import CpuSeconds
from benchmarks.workload import Shape

SHAPE = Shape(1024, 6)
ENVIRONMENT = {
    "cores": 2,
    "python": "3.11.7",
    "postgresql": "18.1",
    "clients": {"Java": "4.3.1"},
    "repetitions": 3,
    "records": {"1024": 1000},
    "latency": "1,000 records/s",
}


def _results() -> Results:
    results = Results(dict(ENVIRONMENT))
    for raw, produced in ((100_000, 50_000), (200_000, 20_000), (50_000, 20_000)):
        cpu = CpuSeconds(gateway=0.5, postgres=0.25)
        results.runs[Case(RAW_COPY, "", SHAPE)].append(Run.of(raw, cpu, records=100_000))
        results.runs[Case("produce", "Java", SHAPE)].append(Run.of(produced, cpu, records=100_000))
    results.latencies["Java"] += [Percentiles(3.0, 9.0), Percentiles(5.0, 30.0), Percentiles(4.0, 10.0)]
    return results


def test_a_ratio_is_to_the_raw_copy_of_its_own_repetition() -> None:
    summary = dict(_results().summaries())[Case("produce", "Java", SHAPE)]
    # Per repetition 0.5, 0.1 and 0.4; the ratio of the medians would be 0.2.
    assert (summary.ratio.low, summary.ratio.median, summary.ratio.high) == (0.1, 0.4, 0.5)


def test_rates_are_medians_with_their_extremes() -> None:
    summary = dict(_results().summaries())[Case("produce", "Java", SHAPE)]
    assert summary.records_per_s.median == 20_000
    assert (summary.records_per_s.low, summary.records_per_s.high) == (20_000, 50_000)
    assert summary.megabytes_per_s == pytest.approx(20.48)


def test_cpu_is_counted_per_million_records() -> None:
    summary = dict(_results().summaries())[Case("produce", "Java", SHAPE)]
    assert (summary.gateway_cpu_s_per_million, summary.postgres_cpu_s_per_million) == (5.0, 2.5)


def test_a_repetition_without_its_limit_is_an_error() -> None:
    results = _results()
    results.runs[Case(RAW_COPY, "", SHAPE)].pop()
    with pytest.raises(ValueError, match="shorter"):
        list(results.summaries())


def test_the_markdown_tables_hold_the_numbers() -> None:
    tables = markdown(_results())
    assert "| 1 KiB × 6 | produce | Java | 20,000 | 20,000–50,000 | 20.5 | 5.0 | 2.5 | 0.40 | 0.10–0.50 |" in tables
    assert "| Java | 4.0 | 3.0–5.0 | 10.0 | 9.0–30.0 |" in tables


def test_markdown_goes_between_the_marks_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"Before.\n\n{BEGIN}\nold numbers\n{END}\n\nAfter.\n")
    write_markdown(_results(), page)
    once = page.read_text()
    assert once.startswith(f"Before.\n\n{BEGIN}\n\nThroughput")
    assert once.endswith(f"{END}\n\nAfter.\n")
    assert "old numbers" not in once
    write_markdown(_results(), page)
    assert page.read_text() == once


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
