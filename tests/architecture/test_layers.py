"""Imports point down only, as pyproject.toml's layers say; and the pure layers stay pure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

REPOSITORY = Path(__file__).resolve().parents[2]
GATEWAY = REPOSITORY / "gateway"
PURE = ("protocol", "domain", "security")
NOT_PURE = {
    "asyncio",
    "os",
    "psycopg",
    "random",
    "secrets",
    "socket",
    "sqlalchemy",
    "subprocess",
    "threading",
    "time",
}


def test_imports_point_down_only(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(REPOSITORY / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_every_package_has_a_layer() -> None:
    """A directory that is in no layer would be checked by nobody."""
    layers = (REPOSITORY / "pyproject.toml").read_text().split("[[tool.importlinter.contracts]]")[1]
    packages = {path.parent.name for path in GATEWAY.glob("*/__init__.py")}
    modules = {path.stem for path in GATEWAY.glob("*.py")} - {"__init__", "__main__"}
    assert {name for name in packages | modules if f"({name})" not in layers} == set()


@pytest.mark.parametrize("layer", PURE)
def test_a_pure_layer_has_no_io_no_clock_no_asyncio(layer: str) -> None:
    found = {
        f"{path.relative_to(GATEWAY)} imports {name}"
        for path in (GATEWAY / layer).rglob("*.py")
        for name in _imports(path)
        if name.split(".")[0] in NOT_PURE
    }
    assert found == set()


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names
