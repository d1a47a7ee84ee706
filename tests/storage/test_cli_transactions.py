"""`tablewire transactions` on a real database."""

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
    """Run `tablewire transactions …`: JSON if asked for, else the text; the sentence on stderr when it refuses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO kafka.topics (name, partition_count) VALUES ('t', 1)")
        connection.execute("SELECT kafka.create_topic_storage(topic_id) FROM kafka.topics")
        connection.execute(
            "INSERT INTO kafka.partitions (topic_id, partition, next_offset) SELECT topic_id, 0, 5 FROM kafka.topics"
        )
        connection.execute(
            "INSERT INTO kafka.transactions (transactional_id, producer_id, producer_epoch, transaction_timeout_ms,"
            " state, started_at) VALUES ('open', 7, 3, 60000, 'Ongoing', now() - interval '1 hour'),"
            " ('idle', 8, 0, 60000, 'CompleteCommit', NULL)"
        )
        connection.execute(
            "INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition, first_offset, last_offset)"
            " SELECT 7, topic_id, 0, 0, 4 FROM kafka.topics"
        )

    def run(*arguments: str, refused: bool = False) -> Any:
        done = CliRunner().invoke(app, ["transactions", *arguments])
        assert done.exit_code == (1 if refused else 0), done.output
        if refused:
            return done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


def test_transactions_are_listed_by_state_and_age(tablewire: Tablewire) -> None:
    everything = tablewire("list", "--json")
    assert [one["transactional_id"] for one in everything] == ["idle", "open"]
    assert tablewire("list", "--state", "Ongoing", "--json") == [
        {"transactional_id": "open", "producer_id": 7, "state": "Ongoing"}
    ]
    assert [one["transactional_id"] for one in tablewire("find-hanging", "--json")] == ["open"]
    assert tablewire("find-hanging", "--older-than-seconds", "7200", "--json") == []
    assert "CompleteCommit" in tablewire("list")


def test_a_transaction_is_described(tablewire: Tablewire) -> None:
    described = tablewire("describe", "open", "--json")
    assert (described["producer_epoch"], described["state"], described["partitions"]) == (3, "Ongoing", ["t-0"])
    assert "t-0" in tablewire("describe", "open")
    assert "no transactional id" in tablewire("describe", "nobody", refused=True)


def test_an_aborted_transaction_leaves_a_marker_and_fences_its_producer(
    tablewire: Tablewire, database_url: str
) -> None:
    assert "aborted, in 1 partitions" in tablewire("abort", "open")
    assert tablewire("describe", "open", "--json")["state"] == "CompleteAbort"
    with psycopg.connect(database_url) as connection:
        assert connection.execute('SELECT "offset", control_type, producer_epoch FROM kafka.messages').fetchall() == [
            (5, 0, 4)
        ]
        assert connection.execute("SELECT first_offset, last_offset FROM kafka.aborted_transactions").fetchall() == [
            (0, 5)
        ]
    assert "no open transaction" in tablewire("abort", "idle")
    assert "no transactional id" in tablewire("abort", "nobody", refused=True)
