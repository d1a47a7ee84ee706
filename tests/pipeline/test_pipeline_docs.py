"""The walk-through of docs/pipeline.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
ADDRESS = 'bootstrap = "127.0.0.1:9092"'


def test_the_walk_through_holds(
    spark: SparkSession, bootstrap: str, pipeline_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", pipeline_database_url)
    walk = PAGE[PAGE.index("## Walk-through") :]
    examples = re.findall(r"^```python\n(.*?)^```$", walk, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 5
    assert ADDRESS in examples[0]
    known: dict[str, Any] = {}
    for example in examples:
        exec(compile(example.replace(ADDRESS, f'bootstrap = "{bootstrap}"'), "docs/pipeline.md", "exec"), known)
    known["database"].close()
