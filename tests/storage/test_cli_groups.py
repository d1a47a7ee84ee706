"""`tablewire groups` on a real database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from gateway.cli import app

Tablewire = Callable[..., Any]


@pytest.fixture
def tablewire(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tablewire:
    """Run `tablewire groups …`: JSON if asked for, else the text; the sentence on stderr when it refuses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", database_url)

    def run(*arguments: str, refused: bool = False) -> Any:
        done = CliRunner().invoke(app, ["groups", *arguments])
        assert done.exit_code == (1 if refused else 0), done.output
        if refused:
            return done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


@pytest.fixture
def rows(database_url: str) -> psycopg.Connection[Any]:
    """Topic t with two partitions of 100 records each, a second apart; group g at 30 of the first."""
    connection = psycopg.connect(database_url, autocommit=True)
    connection.execute("INSERT INTO kafka.topics (name, partition_count) VALUES ('t', 2)")
    connection.execute("SELECT kafka.create_topic_storage(topic_id) FROM kafka.topics")
    connection.execute(
        "INSERT INTO kafka.partitions (topic_id, partition, log_start_offset, last_stable_offset, next_offset)"
        " SELECT topic_id, generate_series(0, 1), 10, 90, 100 FROM kafka.topics"
    )
    connection.execute(
        'INSERT INTO kafka.messages ("offset", "timestamp", topic_id, partition, timestamp_type, is_transactional)'
        " SELECT n, timestamptz '2026-01-01 00:00Z' + n * interval '1 second', topic_id, p, 0, false"
        " FROM kafka.topics, generate_series(0, 99) n, generate_series(0, 1) p"
    )
    connection.execute("INSERT INTO kafka.groups (group_id, protocol_type, coordinator_id) VALUES ('g', 'consumer', 1)")
    connection.execute(
        "INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition, committed_offset)"
        " SELECT 'g', topic_id, 0, 30 FROM kafka.topics"
    )
    return connection


def committed(rows: psycopg.Connection[Any]) -> dict[int, int]:
    return dict(rows.execute("SELECT partition, committed_offset FROM kafka.consumer_offsets").fetchall())


def test_list_and_describe(tablewire: Tablewire, rows: psycopg.Connection[Any]) -> None:
    assert tablewire("list", "--json") == [
        {"group_id": "g", "group_type": "classic", "state": "Empty", "protocol_type": "consumer"}
    ]
    described = tablewire("describe", "g", "--json")
    assert described["offsets"] == [
        {"topic": "t", "partition": 0, "offset": 30, "end_offset": 100, "lag": 70, "stable_lag": 60}
    ]
    assert (described["state"], described["members"]) == ("Empty", [])
    assert "stable-lag" in tablewire("describe", "g")
    assert "There is no group h." in tablewire("describe", "h", refused=True)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (["--to-earliest"], {0: 10, 1: 10}),
        (["--to-latest"], {0: 100, 1: 100}),
        (["--to-offset", "50"], {0: 50, 1: 50}),
        (["--to-offset", "500"], {0: 100, 1: 100}),
        (["--shift-by", "-5"], {0: 25, 1: 10}),
        (["--to-datetime", "2026-01-01T00:01:00"], {0: 60, 1: 60}),
        (["--to-datetime", "2030-01-01"], {0: 100, 1: 100}),
    ],
)
def test_reset_offsets(
    mode: list[str], expected: dict[int, int], tablewire: Tablewire, rows: psycopg.Connection[Any]
) -> None:
    planned = tablewire("reset-offsets", "g", "--topic", "t", *mode, "--json")
    assert {one["partition"]: one["new_offset"] for one in planned} == expected
    assert committed(rows) == {0: 30}
    tablewire("reset-offsets", "g", "--topic", "t", *mode, "--execute", "--json")
    assert committed(rows) == expected


def test_reset_of_some_partitions_only(tablewire: Tablewire, rows: psycopg.Connection[Any]) -> None:
    tablewire("reset-offsets", "g", "--all-topics", "--to-latest", "--execute")
    assert committed(rows) == {0: 100}
    tablewire("reset-offsets", "g", "--topic", "t:1", "--to-earliest", "--execute")
    assert committed(rows) == {0: 100, 1: 10}


def test_what_cannot_be_reset_says_why(tablewire: Tablewire, rows: psycopg.Connection[Any]) -> None:
    reset = ("reset-offsets", "g", "--execute")
    assert "one of --to-earliest" in tablewire(*reset, "--topic", "t", refused=True)
    assert "Say which topics" in tablewire(*reset, "--to-latest", refused=True)
    assert "There is no topic u." in tablewire(*reset, "--to-latest", "--topic", "u", refused=True)
    assert "no partition 7" in tablewire(*reset, "--to-latest", "--topic", "t:7", refused=True)
    rows.execute("UPDATE kafka.groups SET state = 'Stable'")
    assert "stop them first" in tablewire(*reset, "--to-latest", "--topic", "t", refused=True)
    assert "stop them first" in tablewire("delete", "g", refused=True)
    assert committed(rows) == {0: 30}


def test_delete(tablewire: Tablewire, rows: psycopg.Connection[Any]) -> None:
    assert tablewire("delete", "g", "--json") == {"deleted": "g"}
    assert tablewire("list", "--json") == []
    assert committed(rows) == {}
    assert "There is no group g." in tablewire("delete", "g", refused=True)
