"""Where the files beside the code are: at the top of a checkout, inside the package in a wheel."""

from __future__ import annotations

from pathlib import Path

__all__ = ["migrations_dir", "sql_dir"]

_PACKAGE = Path(__file__).resolve().parent


def _beside_or_inside(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def sql_dir() -> Path:
    """The statements of the request path: `<area>/<verb>_<noun>.sql`."""
    return _beside_or_inside("sql")


def migrations_dir() -> Path:
    """Alembic's script directory."""
    return _beside_or_inside("migrations")
