"""The command line's refusals: one sentence, the right exit code, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psycopg
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def tablewire(tmp_path: Path):
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TABLEWIRE_")}
        return subprocess.run(
            [sys.executable, "-c", "from gateway.cli import main; main()", *arguments],
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": str(REPOSITORY), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_version(tablewire) -> None:
    assert tablewire("--version").stdout == f"tablewire {metadata.version('tablewire')}\n"


def test_check_config_says_that_the_settings_can_be_used_and_starts_nothing(tablewire, tmp_path: Path) -> None:
    done = tablewire("serve", "--check-config", "--listen", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (0, "The settings can be used.\n")
    assert not any(path.name in (".tablewire", ".hypothesis") for path in tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [("serve", "--check-config"), ("serve",), ("migrate",)])
def test_a_bad_setting_is_one_sentence_and_exit_code_2(tablewire, arguments: tuple[str, ...]) -> None:
    done = tablewire(*arguments, TABLEWIRE_WRITER="2")
    assert done.returncode == 2
    assert done.stderr == "tablewire: Unknown variable TABLEWIRE_WRITER; did you mean TABLEWIRE_WRITERS?\n"


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_an_unreachable_database_is_one_sentence_and_exit_code_1(tablewire, command: str) -> None:
    done = tablewire(command, TABLEWIRE_DATABASE_URL="postgresql://u:hunter2@127.0.0.1:1/db")
    assert done.returncode == 1
    assert done.stderr.startswith("tablewire: The database at 127.0.0.1:1/db cannot be used: ")
    assert done.stderr.count("\n") == 1
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("variable", ["TABLEWIRE_LISTEN", "TABLEWIRE_HTTP_LISTEN"])
def test_a_busy_port_is_one_sentence_and_exit_code_1(tablewire, database_url: str, variable: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        free = {"TABLEWIRE_LISTEN": "127.0.0.1:0", "TABLEWIRE_HTTP_LISTEN": "127.0.0.1:0"}
        done = tablewire("serve", **{**free, variable: busy, "TABLEWIRE_DATABASE_URL": database_url})
    assert (done.returncode, done.stdout) == (1, "")
    said = [line for line in done.stderr.splitlines() if "the compiled transcoder was not built" not in line]
    assert len(said) == 1
    assert said[0].startswith(f"tablewire: Cannot listen on {busy}")
    assert "address already in use" in said[0].lower()
    assert variable in said[0]


@pytest.mark.parametrize(
    ("command", "version", "said"),
    [
        ("serve", "0001", "is behind (at 0001"),
        ("serve", "9999", "is ahead (at 9999"),
        ("migrate", "9999", "is ahead (at 9999"),
    ],
)
def test_a_schema_of_another_version_is_one_sentence_and_exit_code_1(
    tablewire, database_url: str, command: str, version: str, said: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE kafka.alembic_version SET version_num = %s", [version])
    done = tablewire(command, TABLEWIRE_DATABASE_URL=database_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"tablewire: The database's schema {said}")
    assert done.stderr.count("\n") == 1


def test_serve_refuses_a_database_that_was_not_migrated(tablewire, empty_database_url: str) -> None:
    done = tablewire("serve", TABLEWIRE_DATABASE_URL=empty_database_url)
    assert done.returncode == 1
    assert "run `tablewire migrate`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_migrate_prints_what_is_missing_then_applies_it(tablewire, empty_database_url: str) -> None:
    before = tablewire("migrate", "--sql", TABLEWIRE_DATABASE_URL=empty_database_url)
    assert "CREATE TABLE kafka.messages" in before.stdout
    assert before.stdout == tablewire("migrate", "--sql").stdout
    done = tablewire("migrate", TABLEWIRE_DATABASE_URL=empty_database_url)
    assert (done.returncode, done.stdout) == (0, "The schema is up to date.\n")
    after = tablewire("migrate", "--sql", TABLEWIRE_DATABASE_URL=empty_database_url)
    assert (after.returncode, after.stdout) == (0, "")
