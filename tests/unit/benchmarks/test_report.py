"""The sections of a run: numbers, targets and verdicts, and where they go in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.clients import Percentiles
from benchmarks.report import END_MARK, begin_mark, markdown, write_markdown
from benchmarks.results import (
    IDEMPOTENCE_OFF,
    IDEMPOTENCE_ON,
    PRODUCE,
    RAW_COPY,
    Case,
    Results,
    Run,
    Timing,
)
from benchmarks.workload import Part, Shape
from tests.support.gateway_process import REPOSITORY

SHAPE = Shape(1024, 6)
ENVIRONMENT = {
    "cores": 2,
    "python": "3.11.7",
    "postgresql": "18.1",
    "clients": {"Java": "4.3.1"},
    "repetitions": 3,
    "records": {"1024": 1000},
    "latency": "1,000 records/s",
    "commits": "300 transactions",
    "groups": "1,000 groups",
}


def _results() -> Results:
    results = Results(dict(ENVIRONMENT))
    for raw, produced in ((100_000, 50_000), (200_000, 20_000), (50_000, 20_000)):
        results.runs[Case(RAW_COPY, "", SHAPE)].append(Run(raw, 0.0, 2.5))
        results.runs[Case(PRODUCE, "Java", SHAPE)].append(Run(produced, 5.0, 2.5))
    results.timings[Timing(Part.LATENCY, "Java")] += [Percentiles(3, 9), Percentiles(5, 30), Percentiles(4, 10)]
    return results


def test_produce_and_latency_have_their_tables() -> None:
    sections = markdown(_results())
    assert set(sections) == {Part.PRODUCE, Part.LATENCY}
    row = "| 1 KiB × 6 | produce | Java | 20,000 | 20,000–50,000 | 20.5 | 5.0 | 2.5 | 0.40 | 0.10–0.50 |"
    assert row in sections[Part.PRODUCE]
    assert "Target: at least 0.25 of raw COPY for 1 KiB × 6. Result: Java 0.40 (met)." in sections[Part.PRODUCE]
    assert "| Java | 4.0 | 3.0–5.0 | 10.0 | 9.0–30.0 |" in sections[Part.LATENCY]


@pytest.mark.parametrize(("on", "verdict", "met"), [(960.0, "met", 1), (940.0, "missed", 0)])
def test_a_comparison_is_judged_by_its_target(on: float, verdict: str, met: int) -> None:
    results = Results(dict(ENVIRONMENT))
    results.runs[Case(IDEMPOTENCE_OFF, "Java", SHAPE)].append(Run(1000.0, 3.0, 2.0))
    results.runs[Case(IDEMPOTENCE_ON, "Java", SHAPE)].append(Run(on, 3.5, 2.5))
    text = markdown(results)[Part.IDEMPOTENCE]
    row = f"| Java | {on:.0f} | 1,000 | 3.5 / 3.0 | 2.5 / 2.0 | {on / 1000:.2f} | {on / 1000:.2f}–{on / 1000:.2f} |"
    assert f"{row} ≥ 0.95 | {verdict} |" in text
    assert f"met in {met} of 1." in text


@pytest.mark.parametrize(("longest", "verdict"), [(2.9, "met"), (3.1, "missed")])
def test_end_txn_is_judged_by_its_growth(longest: float, verdict: str) -> None:
    results = Results(dict(ENVIRONMENT))
    results.timings[Timing(Part.TRANSACTIONS, "commit_transaction()")].append(Percentiles(5.0, 9.0))
    results.timings[Timing(Part.TRANSACTIONS, "EndTxn of 10 records")].append(Percentiles(2.0, 9.0))
    results.timings[Timing(Part.TRANSACTIONS, "EndTxn of 100,000 records")].append(Percentiles(longest, 9.0))
    text = markdown(results)[Part.TRANSACTIONS]
    assert "| commit_transaction() | 5.0 | 5.0–5.0 | 9.0 | 9.0–9.0 |" in text
    assert f"({longest / 2:.2f}–{longest / 2:.2f}), {verdict}." in text


@pytest.mark.parametrize(("p99", "verdict"), [(49.0, "met"), (51.0, "missed")])
def test_heartbeats_are_judged_by_their_p99(p99: float, verdict: str) -> None:
    results = Results(dict(ENVIRONMENT))
    results.timings[Timing(Part.GROUPS, "heartbeat")].append(Percentiles(1.0, p99))
    assert f"Result: {p99} ms, {verdict}." in markdown(results)[Part.GROUPS]


def test_markdown_goes_between_the_marks_of_its_parts_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    marks = {part: f"{begin_mark(part)}\nold {part}\n{END_MARK}" for part in Part}
    page.write_text("Before.\n\n" + "\n\nBetween.\n\n".join(marks.values()) + "\n\nAfter.\n")
    write_markdown(_results(), page)
    once = page.read_text()
    assert once.startswith(f"Before.\n\n{begin_mark(Part.PRODUCE)}\n\nTarget")
    assert once.endswith("\n\nAfter.\n")
    kept = [part for part in Part if f"old {part}" in once]
    assert kept == [Part.CONSUME, Part.IDEMPOTENCE, Part.TRANSACTIONS, Part.GROUPS]
    write_markdown(_results(), page)
    assert page.read_text() == once


def test_the_page_of_the_documentation_has_a_place_for_every_part() -> None:
    page = (REPOSITORY / "docs" / "performance.md").read_text()
    assert [part for part in Part if begin_mark(part) not in page] == []
    assert page.count(END_MARK) == len(Part)
