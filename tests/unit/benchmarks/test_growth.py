"""What the growth benchmark counts, judges and draws."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.clients import Guarantee
from benchmarks.fetch_client import _count_records
from benchmarks.growth import Disk, Point, build_section, plot
from benchmarks.results import Run, growth_of
from benchmarks.workload import Shape
from tests.support.handmade import make_batch

SVG = "{http://www.w3.org/2000/svg}"


def point(activity: str, size: int, cost: float, *, peak_mb: float = 100.0) -> Point:
    return Point(activity, size, Run(1000.0, cost / 4, cost * 3 / 4), peak_mb)


def test_records_are_counted_by_the_heads_of_their_batches() -> None:
    batches = make_batch([b"a"] * 3) + make_batch([b"bc"] * 40)
    assert _count_records(batches) == 43
    assert _count_records(b"") == 0
    assert _count_records(None) == 0


def test_growth_after_a_fall_is_growth() -> None:
    assert growth_of([8.0, 2.0, 3.0]) == 1.5
    assert growth_of([8.0, 4.0, 2.0]) == 0.5


@pytest.mark.parametrize(("cost", "verdict"), [(3.1, "missed"), (2.9, "met")])
def test_cost_is_the_median_of_the_repetitions_and_judged(cost: float, verdict: str) -> None:
    measured = [point("rows", 0, each) for each in (2.0, 1.0, 9.0)]
    measured += [point("rows", 5_000_000, each, peak_mb=321.0) for each in (cost, 1.0, 9.0)]
    section = build_section(measured, [Disk(Shape(100, 6), Guarantee.NONE, 160.0, 30.0, 221.0)], "Facts.")
    judged, memory, facts = section.sentences
    assert judged.endswith(f"{cost / 2:.2f} times what it does at a smaller size, target 1.5: {verdict}.")
    assert "321 MB" in memory
    assert facts == "Facts."
    rows, disk = (rows for _, rows in section.tables)
    assert [row[:2] for row in rows] == [("rows", "0"), ("rows", "5,000,000")]
    assert disk == [("100 B × 6", "plain", "190", "160", "30", "221")]


def test_a_plot_has_a_line_through_every_size_and_stays_inside_its_frame(tmp_path: Path) -> None:
    sizes = (0, 1_000_000, 5_000_000)
    measured = [point(name, size, 1.0 + size) for size in sizes for name in ("rows", "fetch, earliest", "fetch, end")]
    [path] = plot(measured, tmp_path / "plots")
    picture = ET.parse(path).getroot()
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    lines = [line.attrib["points"].split() for line in picture.iter(f"{SVG}polyline")]
    # Records/s, two of CPU, memory; of the three places to fetch from, one was not measured.
    assert [len(line) for line in lines] == [3, 3, 3, 3, 3, 0, 3]
    for place in (place for line in lines for place in line):
        x, y = map(float, place.split(","))
        assert 0 < x < width
        assert 0 < y < height
    assert {"0", "1 M", "5 M", "PostgreSQL"} <= {text.text for text in picture.iter(f"{SVG}text")}
