"""`tablewire dlq` on a real database, with dead letters that real workers left."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.storage.database import Database
from gateway.worker import Reject, Work
from gateway.worker.dead_letters import redrive
from tests.worker.conftest import Desk

Tablewire = Callable[..., Any]


def refuse(work: Work[Any]) -> None:
    raise Reject(f"{work.delivery.value!r} is poison")


@pytest.fixture
def tablewire(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tablewire:
    """Run `tablewire dlq …` where five orders and one invoice are dead."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", desk.url)
    for topic in ("orders", "invoices"):
        desk.topic(topic, partitions=2)
    for number in range(4):
        desk.append(b"%d" % number, key=f"k{number}", tenant="acme", partition=number % 2, headers=[("x", b"y")])
    desk.append(b"no key")
    desk.append(b"\xff\x00", topic="invoices")
    desk.worker().run(refuse, until_idle=True)
    desk.worker("invoices", group_id="clerks").run(refuse, until_idle=True)

    def run(*arguments: str, refused: bool = False) -> Any:
        done = CliRunner().invoke(app, ["dlq", *arguments])
        assert done.exit_code == (1 if refused else 0), done.output
        if refused:
            return done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


def test_dead_letters_are_listed_by_every_filter(tablewire: Tablewire) -> None:
    def count(*arguments: str) -> int:
        return len(tablewire("list", *arguments, "--json"))

    assert count() == 6
    assert count("--topic", "orders") == 5
    assert count("--group", "clerks") == 1
    assert count("--tenant", "acme", "--limit", "3") == 3
    assert count("--key", "k2") == 1
    assert count("--error", "b'3' is") == 1
    assert count("--state", "redriven") == 0
    assert count("--before", "2020-01-01") == 0
    (one,) = tablewire("list", "--key", "k1", "--json")
    assert (one["topic"], one["partition"], one["offset"], one["attempts"]) == ("orders", 1, 0, 1)
    assert (one["dlq_topic"], one["tenant"], one["state"]) == ("dlq.orders", "acme", "dead")
    assert "k1" in tablewire("list")
    assert "is no state" in tablewire("list", "--state", "gone", refused=True)
    assert "is no time" in tablewire("list", "--before", "soon", refused=True)


def test_a_dead_letter_is_shown_with_its_record(tablewire: Tablewire) -> None:
    (one,) = tablewire("list", "--key", "k1", "--json")
    shown = tablewire("show", str(one["id"]), "--json")
    assert shown["record"]["value"] == "1"
    assert ["x", "y"] in shown["record"]["headers"]
    assert ["tablewire.dlq.error", "b'1' is poison"] in shown["record"]["headers"]
    assert "header tablewire.dlq.topic: orders" in tablewire("show", str(one["id"]))
    (binary,) = tablewire("list", "--topic", "invoices", "--json")
    assert tablewire("show", str(binary["id"]), "--json")["record"]["value"] == "\\xff\x00"
    assert "no dead letter 99" in tablewire("show", "99", refused=True)


def test_a_redriven_record_is_worked_on_again_under_its_own_key(tablewire: Tablewire, desk: Desk) -> None:
    assert tablewire("redrive", "--topic", "orders", "--dry-run", "--json")[0]["state"] == "dead"
    assert tablewire("redrive", "--topic", "orders", "--json") == {"redriven": 5, "impossible": []}
    assert tablewire("redrive", "--topic", "orders", "--json") == {"redriven": 0, "impossible": []}
    seen: list[Any] = []
    desk.worker(group_id="others").run(lambda work: seen.append(work.delivery.value), until_idle=True)
    assert len(seen) == 5, "another group had them before, and does not get them again"
    seen.clear()

    def see(work: Work[Any]) -> None:
        delivery = work.delivery
        seen.append((delivery.partition, delivery.value, delivery.identity, delivery.header("x"), delivery.attempts))
        assert not [name for name, _ in delivery.headers if name.startswith("tablewire.dlq.")]

    desk.worker().run(see, until_idle=True)
    assert sorted(value for _, value, *_ in seen) == [b"0", b"1", b"2", b"3", b"no key"]
    assert (1, b"3", ("acme", "k3"), b"y", 1) in seen
    assert desk.rows("SELECT DISTINCT status FROM kafka.idempotency_keys WHERE group_id = 'desk'") == [("COMMITTED",)]
    assert {one["state"] for one in tablewire("list", "--state", "all", "--topic", "orders", "--json")} == {"redriven"}


def test_key_value_and_headers_survive_death_and_redriving(tablewire: Tablewire, desk: Desk) -> None:
    headers = ["a", "a", "idempotency-key"], [b"\xff\x00", None, b"whole"]
    desk.rows("SELECT kafka.append_record('orders', 1, %s, NULL, %s, %s)", b"\x00account", *headers)
    newest = (
        "SELECT m.partition, m.key, m.value, m.header_names, m.header_values FROM kafka.messages m"
        " JOIN kafka.topics t USING (topic_id) WHERE t.name = %s AND m.partition = 1"
        ' ORDER BY m."offset" DESC LIMIT 1'
    )
    record = (1, b"\x00account", None, *headers)
    assert desk.rows(newest, "orders") == [record]
    desk.worker().run(refuse, until_idle=True)
    ((*told, names, values),) = desk.rows(newest, "dlq.orders")
    assert (*told, names[:3], values[:3]) == record
    assert all(name.startswith("tablewire.dlq.") for name in names[3:])
    assert tablewire("redrive", "--key", "whole", "--json") == {"redriven": 1, "impossible": []}
    ((*told, names, values),) = desk.rows(newest, "orders")
    assert (*told, names[:3], values[:3]) == record
    assert (names[3:], values[3:]) == (["tablewire.redriven-for"], [b"desk"])


def test_what_fails_again_is_a_new_dead_letter(tablewire: Tablewire, desk: Desk) -> None:
    tablewire("redrive", "--key", "k1")
    desk.worker().run(refuse, until_idle=True)
    found = tablewire("list", "--state", "all", "--key", "k1", "--json")
    assert [one["state"] for one in found] == ["redriven", "dead"]
    assert found[1]["offset"] == found[0]["redriven_offset"]


def test_those_who_redrive_at_once_write_each_record_once(tablewire: Tablewire, desk: Desk) -> None:
    ids = [one["id"] for one in tablewire("list", "--topic", "orders", "--json")]

    async def redrive_at_once() -> list[tuple[int, list[int]]]:
        database = Database(desk.url, connections=4, timeout_ms=20_000, prepared_statements=True)
        await database.open()
        try:
            return await asyncio.gather(*(redrive(database, ids) for _ in range(4)))
        finally:
            await database.close()

    assert sum(count for count, _ in asyncio.run(redrive_at_once())) == 5
    assert desk.rows("SELECT count(*) FROM kafka.committed_messages WHERE topic = 'orders'") == [(10,)]


def test_a_redrive_that_is_cut_off_has_done_whole_steps_or_nothing(
    tablewire: Tablewire, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three steps dies before its commit, as by kill -9: its session is ended by the server."""
    monkeypatch.setattr(sys.modules["gateway.cli.dlq"], "STEP", 2)
    desk.connection.execute(
        """
        CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.dead_letter_id = 3 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
            RETURN NEW;
        END $$
        """
    )
    desk.connection.execute(
        "CREATE TRIGGER die BEFORE UPDATE ON kafka.dead_letters FOR EACH ROW EXECUTE FUNCTION die()"
    )
    assert "cannot be used" in tablewire("redrive", "--topic", "orders", refused=True)
    assert desk.rows("SELECT count(*) FROM kafka.committed_messages WHERE topic = 'orders'") == [(7,)]
    assert desk.rows("SELECT count(*) FROM kafka.dead_letters WHERE state = 'redriven'") == [(2,)]
    desk.connection.execute("DROP TRIGGER die ON kafka.dead_letters")
    assert tablewire("redrive", "--topic", "orders", "--json") == {"redriven": 3, "impossible": []}
    assert desk.rows("SELECT count(*) FROM kafka.committed_messages WHERE topic = 'orders'") == [(10,)]


def test_what_has_no_place_to_go_back_to_stays(tablewire: Tablewire, desk: Desk) -> None:
    desk.connection.execute("DELETE FROM kafka.topics WHERE name = 'invoices'")
    answer = tablewire("redrive", "--all", "--json")
    assert answer["redriven"] == 5
    assert len(answer["impossible"]) == 1
    assert len(tablewire("list", "--json")) == 1


def test_purged_dead_letters_are_gone_from_the_topic_too(tablewire: Tablewire, desk: Desk) -> None:
    def left() -> list[Any]:
        return desk.rows(
            "SELECT partition, \"offset\" FROM kafka.committed_messages WHERE topic = 'dlq.orders' ORDER BY 1, 2"
        )

    assert len(left()) == 5
    assert "Say which" in tablewire("purge", refused=True)
    assert tablewire("purge", "--all", "--json") == {"purged": 0, "impossible": []}, "only what was redriven"
    tablewire("redrive", "--key", "k0")
    assert len(tablewire("purge", "--topic", "orders", "--dry-run", "--json")) == 1
    assert tablewire("purge", "--topic", "orders", "--json") == {"purged": 1, "impossible": []}
    assert len(left()) == 4
    assert tablewire("purge", "--topic", "orders", "--state", "all", "--json") == {"purged": 4, "impossible": []}
    assert left() == []
    assert len(tablewire("list", "--json")) == 1
    desk.append(b"later", topic="dlq.orders")
    assert len(left()) == 1
