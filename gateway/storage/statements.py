"""The statements of sql/, read once and named `<area>/<verb>_<noun>`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import LiteralString

from gateway.resources import sql_dir

__all__ = ["integers", "statement", "statement_names"]


@cache
def statement(name: str) -> LiteralString:
    """The text of sql/<name>.sql without its comments. It is ours, hence as good as a literal."""
    lines = (sql_dir() / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def statement_names() -> list[str]:
    """Every request-path statement; sql/views and sql/schema.sql are for people."""
    root = sql_dir()
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.glob("*/*.sql"))


def integers(numbers: Iterable[int]) -> str:
    """For a list in a commit's string, where integers are the only literals, or in a parameter."""
    numbers = tuple(numbers)
    return _places(len(numbers)) % numbers  # twice as fast as joining their texts


@lru_cache(maxsize=1024)
def _places(count: int) -> str:
    return ",".join(["%d"] * count)
