"""The sections of a run: numbers, targets and verdicts, and where they go in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.clients import Percentiles
from benchmarks.report import END_MARK, Section, begin_mark, markdown, section_mark, write_markdown, write_section
from benchmarks.results import (
    FLUSHED_KAFKA,
    IDEMPOTENCE_OFF,
    IDEMPOTENCE_ON,
    KAFKA,
    PRODUCE,
    RAW_COPY,
    TABLEWIRE,
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
    "kafka_records": {"1024": 2000},
    "compared_records": {"1024": 3000},
    "turn_records": {"1024": 4000},
    "kafka_latency": "1,000 records/s",
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


def test_what_idempotence_costs_next_to_kafka_has_a_table_of_its_own_and_no_verdict() -> None:
    results = _results()
    for broker, off, on in (("", 1000.0, 900.0), (KAFKA, 2000.0, 1500.0)):
        results.runs[Case(IDEMPOTENCE_OFF, "Java", SHAPE, broker)].append(Run(off, 3.0, 2.0))
        results.runs[Case(IDEMPOTENCE_ON, "Java", SHAPE, broker)].append(Run(on, 3.5, 2.5))
    sections = markdown(results)
    assert "Result: 0.90 to 0.90, met in 0 of 1." in sections[Part.IDEMPOTENCE]
    row = "| 1 KiB × 6 | produce, idempotence on | Java | 1,500 | 2,000 | 3.5 / 3.0 | 0.75 | 0.75–0.75 |"
    assert row in sections[Part.IDEMPOTENCE]
    assert Part.KAFKA not in sections


def test_next_to_kafka_every_measured_target_is_judged_and_every_broker_shown() -> None:
    results = Results(dict(ENVIRONMENT))
    for ours, theirs, flushed, raw in ((90, 100, 40, 150), (80, 100, 50, 100), (95, 100, 45, 400)):
        results.runs[Case(PRODUCE, "Java", SHAPE, TABLEWIRE)].append(Run(ours, 5.0, 2.5, 8_000.0))
        results.runs[Case(PRODUCE, "Java", SHAPE, KAFKA)].append(Run(theirs, 1.0, 0.0, 7_500.0))
        results.runs[Case(PRODUCE, "Java", SHAPE, FLUSHED_KAFKA)].append(Run(flushed, 1.0, 0.0))
        results.runs[Case(PRODUCE, "", SHAPE, RAW_COPY)].append(Run(raw, 0.0, 2_500.0))
    text = markdown(results)[Part.KAFKA]
    assert "Targets: 3 of 3 met." in text
    assert "| produce, 1 KiB × 6 | Apache Kafka | 0.90 | 0.80–0.95 | 2.00 | ≥ 0.9 | met |" in text
    assert "| produce, 1 KiB × 6 | Apache Kafka, flush.messages=1 | 2.11 | 1.60–2.25 | 4.44 | ≥ 2 | met |" in text
    assert "| produce, 1 KiB × 6 | raw COPY | 0.60 | 0.24–0.80 | 1.33 | ≥ 0.5 | met |" in text
    assert "| 1 KiB × 6 | produce | Tablewire | 90 | 80–95 | 0.1 | 5.0 | 2.5 | 8000.0 |" in text
    assert "Medians of 3 repetitions, records 2,000 of 1024 B" in text
    assert Part.PRODUCE not in markdown(results), "what was measured next to Kafka is in that part only"


@pytest.mark.parametrize(("ours", "verdict"), [(4.9, "met"), (5.1, "missed")])
def test_latency_is_judged_by_itself_and_next_to_kafka(ours: float, verdict: str) -> None:
    results = Results(dict(ENVIRONMENT))
    results.timings[Timing(Part.KAFKA, f"{TABLEWIRE}, Java")].append(Percentiles(ours, 24.0))
    results.timings[Timing(Part.KAFKA, f"{KAFKA}, Java")].append(Percentiles(5.0, 9.0))
    text = markdown(results)[Part.KAFKA]
    ratio = ours / 5
    assert f"| latency p50 ms, Java |  | {ours:.2f} | {ours:.2f}–{ours:.2f} |  | ≤ 5 | {verdict} |" in text
    assert "| latency p99 ms, Java |  | 24.00 | 24.00–24.00 |  | ≤ 25 | met |" in text
    assert f"| latency p50, Java | Apache Kafka | {ratio:.2f} | {ratio:.2f}–{ratio:.2f} |  | ≤ 1 | {verdict} |" in text


@pytest.mark.parametrize(("gateway", "verdict"), [(1.9, "met"), (2.1, "missed")])
def test_the_gateways_cpu_is_judged_by_postgresqls(gateway: float, verdict: str) -> None:
    results = Results(dict(ENVIRONMENT))
    results.runs[Case(PRODUCE, "Java", Shape(100, 1), TABLEWIRE)].append(Run(1000.0, gateway, 2.0))
    text = markdown(results)[Part.KAFKA]
    assert f"| gateway CPU, produce, 100 B × 1 | PostgreSQL's CPU | {gateway / 2:.2f} |" in text
    assert f"≤ 1 | {verdict} |" in text


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
    assert kept == [Part.CONSUME, Part.KAFKA, Part.IDEMPOTENCE, Part.TRANSACTIONS, Part.KEYS, Part.WORKER, Part.GROUPS]
    write_markdown(_results(), page)
    assert page.read_text() == once


def test_the_page_of_the_documentation_has_a_place_for_every_part() -> None:
    page = (REPOSITORY / "docs" / "performance.md").read_text()
    assert [part for part in Part if begin_mark(part) not in page] == []
    of_their_own_programs = ("growth", "pipeline")
    assert [name for name in of_their_own_programs if section_mark(name) not in page] == []
    assert page.count(END_MARK) == len(Part) + len(of_their_own_programs)


def test_a_section_of_its_own_program_replaces_what_is_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{section_mark('pipeline')}\nold\n{END_MARK}\nafter\n")
    write_section("pipeline", Section(["Read."], [(("what", "rows"), [("jdbc", "5")])]), page)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "Read.\n\n| what | rows |\n| --- | ---: |\n| jdbc | 5 |" in text
    (tmp_path / "empty.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="needs the marks"):
        write_section("pipeline", Section(), tmp_path / "empty.md")
