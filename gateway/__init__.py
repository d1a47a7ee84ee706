"""Tablewire: a Kafka protocol gateway whose storage is PostgreSQL."""

from __future__ import annotations

import sys
from typing import Any

__all__: list[str] = []


def _import_kio_without_hypothesis() -> None:
    """Where kio finds hypothesis, which only tests need, it makes strategies of its types when it is imported: seconds
    of each start, and a directory `.hypothesis` wherever that was."""
    modules: dict[str, Any] = sys.modules
    if "hypothesis" in modules:
        return
    modules["hypothesis"] = None
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del modules["hypothesis"]


_import_kio_without_hypothesis()
