"""The examples of docs/state.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
STATEMENT = re.compile(r"^(?P<query>SELECT .*);\s+-- (?P<answer>.*)$", re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_python_examples_hold(module_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        (topic_id,) = connection.execute(
            "INSERT INTO kafka.topics (name, partition_count) VALUES ('sales', 1) RETURNING topic_id"
        ).fetchone() or (None,)
        known: dict[str, Any] = {"connection": connection, "topic_id": topic_id}
        examples = blocks("python")
        assert len(examples) == 5
        for example in examples:
            exec(compile(example, "docs/state.md", "exec"), known)


def test_the_sql_examples_answer_as_shown(module_database_url: str) -> None:
    (example,) = blocks("sql")
    found = list(STATEMENT.finditer(example))
    assert len(found) == len(example.splitlines())
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        for one in found:
            (row,) = connection.execute(cast(LiteralString, one["query"])).fetchall()
            answer = {True: "t", False: "f"}.get(row[0], row[0]) if isinstance(row[0], bool) else row[0]
            assert (one["query"], str(answer)) == (one["query"], one["answer"])
