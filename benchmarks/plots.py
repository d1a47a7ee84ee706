"""Lines as a picture: panels side by side in one SVG file, each with its own scale from zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from pathlib import Path

__all__ = ["Panel", "draw"]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 360, 280, 62, 46, 60
COLOURS = ("#1f5fa8", "#c4532c", "#3b8a4b", "#7a4fa3")
STEPS = 4


@dataclass(frozen=True)
class Panel:
    """Lines over the same places, which stand at equal distances: growth by factors looks as such."""

    title: str
    below: str
    places: Sequence[str]
    lines: Mapping[str, Sequence[float | None]]


def draw(panels: Sequence[Panel], path: Path) -> None:
    width = WIDTH * len(panels)
    drawn = "".join(_panel(panel, WIDTH * number) for number, panel in enumerate(panels))
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{drawn}</svg>\n',
        encoding="utf-8",
    )


def _panel(panel: Panel, left: int) -> str:
    top = STEPS * _round_up(max(value for line in panel.lines.values() for value in line if value is not None) / STEPS)
    right, ground = left + WIDTH - 20, HEIGHT - BOTTOM
    step = (right - left - LEFT) / max(1, len(panel.places) - 1)
    parts = [_text(left + WIDTH / 2, 20, panel.title, size=13), _text(left + WIDTH / 2, HEIGHT - 28, panel.below)]
    for number in range(STEPS + 1):
        y = ground - (ground - TOP) * number / STEPS
        parts.append(f'<path d="M{left + LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(_text(left + LEFT - 6, y + 4, f"{top * number / STEPS:,g}", anchor="end"))
    parts += [_text(left + LEFT + step * at, ground + 15, place) for at, place in enumerate(panel.places)]
    for number, (name, line) in enumerate(panel.lines.items()):
        points = [
            (left + LEFT + step * at, ground - (ground - TOP) * value / top)
            for at, value in enumerate(line)
            if value is not None
        ]
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{shape}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(_text(left + LEFT + 4 + 85 * number, HEIGHT - 10, name, anchor="start", colour=colour))
    return "".join(parts)


def _round_up(value: float) -> float:
    """To a number that is easily read on a scale."""
    unit = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next(unit * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15) if unit * factor >= value * 1.02)


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "middle", colour: str = "#333") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"
