"""Results for people: a section per part, the same on the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.groups import HEARTBEAT
from benchmarks.results import (
    COMPARISONS,
    CONSUME_ROWS,
    CONSUME_TAIL,
    EFFECTS,
    KAFKA,
    KEYS_OFF,
    KEYS_ON,
    PRODUCE,
    RAW_COPY,
    Case,
    Comparison,
    Results,
    Spread,
    Timing,
)
from benchmarks.targets import judge
from benchmarks.transactions import COMMIT
from benchmarks.workload import Part, Shape

__all__ = [
    "Section",
    "begin_mark",
    "markdown",
    "print_section",
    "print_sections",
    "section_mark",
    "write_markdown",
    "write_section",
]

END_MARK = "<!-- end of results -->"

PRODUCE_TARGET = 0.25
PRODUCE_TARGET_SHAPE = Shape(1024, 6)
HEARTBEAT_TARGET_MS = 50.0
FLAT = 1.5
"""EndTxn of the longest transaction may take so many times that of the shortest: more is growth, less is noise."""

THROUGHPUT = (
    "records × partitions",
    "activity",
    "client",
    "records/s",
    "(min–max)",
    "MB/s",
    "gateway CPU s/M",
    "PostgreSQL CPU s/M",
    "of raw COPY",
    "(min–max)",
)
COMPARED = (
    "records × partitions",
    "activity",
    "client",
    "records/s",
    "against records/s",
    "gateway CPU s/M",
    "PostgreSQL CPU s/M",
    "ratio",
    "(min–max)",
    "target",
    "result",
)
BROKERS = (
    "records × partitions",
    "activity",
    "broker",
    "records/s",
    "(min–max)",
    "MB/s",
    "broker CPU s/M",
    "PostgreSQL CPU s/M",
    "client CPU s/M",
)
JUDGED = ("what", "against", "figure", "(min–max)", "ceiling", "target", "result")
TIMED = ("p50 ms", "(min–max)", "p99 ms", "(min–max)")
TEXT_COLUMNS = {
    "records × partitions",
    "activity",
    "client",
    "what",
    "records",
    "broker",
    "against",
    "broker, client",
    "result",
    "producer",
}

Row = tuple[str, ...]


@dataclass
class Section:
    """Sentences, then tables, each with its heads."""

    sentences: list[str] = field(default_factory=list)
    tables: list[tuple[Row, list[Row]]] = field(default_factory=list)


def print_sections(results: Results, console: Console) -> None:
    for part, section in _sections(results):
        print_section(part, section, console)


def print_section(name: str, section: Section, console: Console) -> None:
    console.print(f"\n{name.capitalize()}. {' '.join(section.sentences)}", highlight=False, markup=False)
    for heads, rows in section.tables:
        table = RichTable()
        for head in heads:
            table.add_column(head, justify="left" if head in TEXT_COLUMNS else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table, highlight=False)


def markdown(results: Results) -> dict[Part, str]:
    """The text of each part that was measured."""
    return {part: _section_markdown(section) for part, section in _sections(results)}


def write_markdown(results: Results, path: Path) -> None:
    """Between each part's marks, where `path` has them; otherwise the sections are the whole file."""
    sections = markdown(results)
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    if END_MARK not in page:
        path.write_text("\n".join(f"## {part.capitalize()}\n\n{text}" for part, text in sections.items()), "utf-8")
        return
    for part, text in sections.items():
        page = _between_marks(page, begin_mark(part), text)
    path.write_text(page, encoding="utf-8")


def write_section(name: str, section: Section, path: Path) -> None:
    """A section of a program of its own: between its marks in `path`, or, where there is no such file, all of it."""
    text = _section_markdown(section)
    if path.exists():
        text = _between_marks(path.read_text(encoding="utf-8"), section_mark(name), text)
    path.write_text(text, encoding="utf-8")


def section_mark(name: str) -> str:
    return f"<!-- results of {name}: written by python -m benchmarks.{name} --markdown -->"


def _between_marks(page: str, begin: str, text: str) -> str:
    before, mark, rest = page.partition(begin)
    _, end, after = rest.partition(END_MARK)
    if not mark or not end:
        raise ValueError(f"the page needs the marks {begin} and {END_MARK}")
    return f"{before}{mark}\n\n{text}\n{end}{after}"


def begin_mark(part: Part) -> str:
    return f"<!-- results of {part}: written by python -m benchmarks --markdown -->"


def _sections(results: Results) -> Iterator[tuple[Part, Section]]:
    for part, build in BUILDERS.items():
        section = build(results)
        if any(rows for _, rows in section.tables):
            counted = COUNTED.get(part, "records")
            section.sentences.append(_facts(results, results.environment[counted]))
            yield part, section


def _produce(results: Results) -> Section:
    cases = list(results.cases(PRODUCE))
    aimed = [case for case in cases if case.shape == PRODUCE_TARGET_SHAPE]
    section = Section()
    if aimed:
        ratios = [(case.client, results.of_raw_copy(case).median) for case in aimed]
        said = ", ".join(f"{client} {ratio:.2f} ({_verdict(ratio >= PRODUCE_TARGET)})" for client, ratio in ratios)
        section.sentences.append(
            f"Target: at least {PRODUCE_TARGET} of raw COPY for {PRODUCE_TARGET_SHAPE}. Result: {said}."
        )
    if cases:
        section.tables.append((THROUGHPUT, _throughput_rows(results, RAW_COPY, PRODUCE)))
    return section


def _consume(results: Results) -> Section:
    section = Section()
    if rows := _throughput_rows(results, CONSUME_TAIL, CONSUME_ROWS):
        section.sentences.append("No target yet.")
        section.tables.append((THROUGHPUT, rows))
    return section


def _latency(results: Results) -> Section:
    rows = [(client, *_percentiles(p50, p99)) for client, p50, p99 in results.timed(Part.LATENCY)]
    said = f"No target yet. acks=all at {results.environment['latency']}."
    return Section([said], [(("client", *TIMED), rows)])


def _kafka(results: Results) -> Section:
    section = Section()
    if judged := list(judge(results)):
        met = sum(one.is_met for one in judged)
        section.sentences.append(f"Targets: {met} of {len(judged)} met.")
        rows: list[Row] = [
            (
                one.what,
                one.against,
                f"{one.figure.median:.2f}",
                f"{one.figure.low:.2f}–{one.figure.high:.2f}",
                "" if one.ceiling is None else f"{one.ceiling.median:.2f}",
                one.target,
                _verdict(one.is_met),
            )
            for one in judged
        ]
        section.tables.append((JUDGED, rows))
        section.sentences.append(f"Latency at {results.environment['kafka_latency']}.")
    if cases := results.side_by_side():
        section.tables.append((BROKERS, [_broker_cells(results, case) for case in cases]))
    if timed := list(results.timed(Part.KAFKA)):
        section.tables.append((("broker, client", *TIMED), [(name, *_percentiles(*times)) for name, *times in timed]))
    return section


def _broker_cells(results: Results, case: Case) -> Row:
    summary = results.summary(case)
    rate = summary.records_per_s
    return (
        str(case.shape),
        case.activity,
        case.broker,
        f"{rate.median:,.0f}",
        f"{rate.low:,.0f}–{rate.high:,.0f}",
        f"{summary.megabytes_per_s:.1f}",
        f"{summary.gateway_cpu_s_per_million:.1f}",
        f"{summary.postgres_cpu_s_per_million:.1f}",
        "" if summary.client_cpu_s_per_million is None else f"{summary.client_cpu_s_per_million:.1f}",
    )


def _idempotence(results: Results) -> Section:
    section = _compared(results, Part.IDEMPOTENCE)
    (comparison,) = (one for one in COMPARISONS if one.part is Part.IDEMPOTENCE)
    beside = [_comparison_cells(results, *compared) for compared in results.compared(comparison, broker=KAFKA)]
    if beside:
        section.sentences.append("The second table: the same clients next to Apache Kafka, whose CPU is the broker's.")
        shown = [index for index, head in enumerate(COMPARED[:-2]) if head != "PostgreSQL CPU s/M"]
        heads = tuple(COMPARED[index].replace("gateway", "broker") for index in shown)
        section.tables.append((heads, [tuple(cells[index] for index in shown) for cells in beside]))
    return section


def _transactions(results: Results) -> Section:
    section = _compared(results, Part.TRANSACTIONS)
    timed = {name: (p50, p99) for name, p50, p99 in results.timed(Part.TRANSACTIONS)}
    if COMMIT in timed:
        rows = [(COMMIT, *_percentiles(*timed[COMMIT]))]
        section.sentences.append(f"Commits: {results.environment['commits']}; no target.")
        section.tables.append((("what", *TIMED), rows))
    ends = [Timing(Part.TRANSACTIONS, name) for name in timed if name != COMMIT]
    if ends:
        growth = results.p50_ratio(ends[-1], ends[0])
        section.sentences.append(
            f"Target: EndTxn does not grow with the records, at most {FLAT} times from the fewest to the most. "
            f"Result: {growth.median:.2f} ({growth.low:.2f}–{growth.high:.2f}), {_verdict(growth.median <= FLAT)}."
        )
        rows = [
            (end.name, *_milliseconds(timed[end.name][0]), f"{results.p50_ratio(end, ends[0]).median:.2f}")
            for end in ends
        ]
        section.tables.append((("what", "p50 ms", "(min–max)", "times the first"), rows))
    return section


def _keys(results: Results) -> Section:
    """The gate that lets the first record of each business key pass."""
    comparison = Comparison(Part.KEYS, KEYS_ON, KEYS_OFF, 0.0)
    rows = [_comparison_cells(results, *compared) for compared in results.compared(comparison)]
    said = "No target. Each record has a key of its own; the topic asks for keys, or does not."
    return Section([said], [(COMPARED[:-2], rows)])


def _worker(results: Results) -> Section:
    """Effects of one worker, each with its mark and offset in the same commit."""
    rows: list[Row] = []
    for case in results.cases(*EFFECTS.values()):
        summary = results.summary(case)
        rate = summary.records_per_s
        rows.append(
            (
                str(case.shape),
                case.activity,
                f"{rate.median:,.0f}",
                f"{rate.low:,.0f}–{rate.high:,.0f}",
                f"{summary.postgres_cpu_s_per_million:.1f}",
            )
        )
    said = "No target. One worker process; each effect is a row, with its key's mark and the offset in the same commit."
    heads = ("records × partitions", "activity", "effects/s", "(min–max)", "PostgreSQL CPU s/M")
    return Section([said], [(heads, rows)])


def _groups(results: Results) -> Section:
    section = Section()
    rows = []
    for name, p50, p99 in results.timed(Part.GROUPS):
        rows.append((name, *_percentiles(p50, p99)))
        if name == HEARTBEAT:
            section.sentences.append(
                f"Target: p99 of heartbeats below {HEARTBEAT_TARGET_MS:.0f} ms. "
                f"Result: {p99.median:.1f} ms, {_verdict(p99.median < HEARTBEAT_TARGET_MS)}. "
                f"{results.environment['groups']}."
            )
    section.tables.append((("what", *TIMED), rows))
    return section


BUILDERS: dict[Part, Callable[[Results], Section]] = {
    Part.PRODUCE: _produce,
    Part.CONSUME: _consume,
    Part.LATENCY: _latency,
    Part.KAFKA: _kafka,
    Part.IDEMPOTENCE: _idempotence,
    Part.TRANSACTIONS: _transactions,
    Part.KEYS: _keys,
    Part.WORKER: _worker,
    Part.GROUPS: _groups,
}


def _compared(results: Results, part: Part) -> Section:
    section = Section()
    rows = []
    for comparison in COMPARISONS:
        if comparison.part is not part:
            continue
        ratios = []
        for case, base, ratio in results.compared(comparison):
            is_met = ratio.median >= comparison.at_least
            ratios.append((ratio.median, is_met))
            rows.append((*_comparison_cells(results, case, base, ratio), f"≥ {comparison.at_least}", _verdict(is_met)))
        if ratios:
            met = sum(is_met for _, is_met in ratios)
            low, high = min(ratios)[0], max(ratios)[0]
            section.sentences.append(
                f"Target: {comparison.activity} at {comparison.at_least} or more of {comparison.base}. "
                f"Result: {low:.2f} to {high:.2f}, met in {met} of {len(ratios)}."
            )
    section.tables.append((COMPARED, rows))
    return section


def _comparison_cells(results: Results, case: Case, base: Case, ratio: Spread) -> Row:
    one, other = results.summary(case), results.summary(base)
    return (
        str(case.shape),
        case.activity,
        case.client,
        f"{one.records_per_s.median:,.0f}",
        f"{other.records_per_s.median:,.0f}",
        f"{one.gateway_cpu_s_per_million:.1f} / {other.gateway_cpu_s_per_million:.1f}",
        f"{one.postgres_cpu_s_per_million:.1f} / {other.postgres_cpu_s_per_million:.1f}",
        f"{ratio.median:.2f}",
        f"{ratio.low:.2f}–{ratio.high:.2f}",
    )


def _throughput_rows(results: Results, *activities: str) -> list[Row]:
    rows: list[Row] = []
    for case in results.cases(*activities):
        summary, ratio = results.summary(case), results.of_raw_copy(case)
        rate = summary.records_per_s
        rows.append(
            (
                str(case.shape),
                case.activity,
                case.client,
                f"{rate.median:,.0f}",
                f"{rate.low:,.0f}–{rate.high:,.0f}",
                f"{summary.megabytes_per_s:.1f}",
                f"{summary.gateway_cpu_s_per_million:.1f}",
                f"{summary.postgres_cpu_s_per_million:.1f}",
                f"{ratio.median:.2f}",
                f"{ratio.low:.2f}–{ratio.high:.2f}",
            )
        )
    return rows


COUNTED = {
    Part.KAFKA: "kafka_records",
    Part.IDEMPOTENCE: "turn_records",
    Part.TRANSACTIONS: "compared_records",
}
"""How many records a part's measurements have, where it is not the usual number."""


def _facts(results: Results, records: dict[str, int]) -> str:
    facts = results.environment
    clients = ", ".join(f"{name} {version}" for name, version in facts["clients"].items())
    counts = ", ".join(f"{count:,} of {size} B" for size, count in records.items())
    return (
        f"Medians of {facts['repetitions']} repetitions, records {counts}; {facts['cores']} cores, "
        f"PostgreSQL {facts['postgresql']}, Python {facts['python']}, {clients}."
    )


def _section_markdown(section: Section) -> str:
    tables = (
        "\n".join([_line(heads), _line("---" if head in TEXT_COLUMNS else "---:" for head in heads), *map(_line, rows)])
        for heads, rows in section.tables
    )
    return "\n\n".join(["\n".join(section.sentences), *tables]) + "\n"


def _percentiles(p50: Spread, p99: Spread) -> Row:
    return (*_milliseconds(p50), *_milliseconds(p99))


def _milliseconds(spread: Spread) -> Row:
    return f"{spread.median:.1f}", f"{spread.low:.1f}–{spread.high:.1f}"


def _verdict(is_met: bool) -> str:  # noqa: FBT001 - reads best with the condition inside
    return "met" if is_met else "missed"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
