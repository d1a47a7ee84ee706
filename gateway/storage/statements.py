"""The statements of sql/, read once and named `<area>/<verb>_<noun>`."""

from __future__ import annotations

from functools import cache
from typing import LiteralString

from gateway.resources import sql_dir

__all__ = ["statement", "statement_names"]


@cache
def statement(name: str) -> LiteralString:
    """The text of sql/<name>.sql without its comments. It is ours, hence as good as a literal."""
    lines = (sql_dir() / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def statement_names() -> list[str]:
    """Every request-path statement; sql/views and sql/schema.sql are for people."""
    root = sql_dir()
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.glob("*/*.sql"))
