"""`python -m gateway.handlers` writes docs/protocol-coverage.md from the table of handlers."""

from __future__ import annotations

from pathlib import Path

from gateway.handlers import HANDLERS
from gateway.handlers.registry import Handler

FILE = Path(__file__).resolve().parents[2] / "docs" / "protocol-coverage.md"

HEAD = """\
# Protocol coverage

The Kafka APIs that the gateway serves. `make docs` writes this page from the table that also decides dispatch
and the answer to ApiVersions, and a test keeps it up to date.

| API | Key | Versions | What it does |
|---|---|---|---|
"""


def coverage() -> str:
    """The whole page."""
    handlers = sorted(HANDLERS.values(), key=lambda handler: handler.api_key)
    return HEAD + "".join(map(_row, handlers))


def _row(handler: Handler) -> str:
    name = handler.api_key.name.title().replace("_", "")
    first, last = handler.versions[0], handler.versions[-1]
    versions = str(first) if first == last else f"{first}–{last}"
    if handler.announced_min != first:
        versions += f" (announced from {handler.announced_min})"
    return f"| {name} | {handler.api_key.value} | {versions} | {handler.summary} |\n"


if __name__ == "__main__":
    FILE.write_text(coverage(), encoding="utf-8")
    print(f"wrote {FILE.name}: {len(HANDLERS)} APIs")
