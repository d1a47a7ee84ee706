"""Every statement of the request path is prepared against the migrated schema, and says what it locks and returns."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Any, LiteralString, cast

import psycopg
import pytest
from psycopg import sql
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from gateway.domain.sequences import ProducerState, Written
from gateway.resources import sql_dir
from gateway.storage.keys import ProducerKey
from gateway.storage.log import NOT_FOLLOWING
from gateway.storage.producers import remembered_rows
from gateway.storage.statements import statement, statement_names

NAMES = statement_names()
PRODUCER = remembered_rows([(ProducerKey(1, 1, 1), ProducerState(1, 1, 1, (Written(1, 1, 1, 1),)))])
ARRAYS = ("transactions", "locks", "advances", "advances_at", "extents", "in_partitions", "begins", "ends")
ARRAYS_OF_A_PRODUCER = ("last_sequences", "run_lengths", "windows")
PLACES = {
    **dict.fromkeys((*ARRAYS, *ARRAYS_OF_A_PRODUCER), "'{1}'"),
    "newest": "'{epoch}'",
    "epoch": "'1'",
    "producers": f"'{{{PRODUCER}}}'",
    "predicate": "true",
}
"""What stands where a single integer would not do."""
PARAMETER = re.compile(r"%\((\w+)\)s")


@pytest.fixture(scope="module")
def connection(server_url: str, template_database: str) -> Iterator[psycopg.Connection[Any]]:
    """The template itself: preparing changes nothing, and the transaction is never committed."""
    with psycopg.connect(server_url, dbname=template_database) as connected:
        yield connected
        connected.rollback()


class Integers(string.Formatter):
    """Puts integers, and arrays of them, where a statement has {…}, as the gateway does: they are the only literals in
    it, but for the predicate of a pipeline's read."""

    def __init__(self, rows: str) -> None:
        self._rows = rows

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> str:
        return self._rows if key == "rows" else PLACES.get(str(key), "1")


def with_integers(text: str) -> str:
    """A list of rows has a value for each column that the statement names for it."""
    if not re.search(r"\{\w+\}", text):
        return text
    if inserted := re.search(r"INSERT INTO \S+ \(([^)]*)\)\s+VALUES \{rows\}", text):
        values = ["NULL"] * len(inserted[1].split(","))  # which has whatever type the column has
    else:
        named = re.search(r"VALUES \{rows\}\)\s+AS \w+ \(([^)]*)\)", text)
        values = ["1::bigint"] * (len(named[1].split(",")) if named else 1)
    return Integers(f"({', '.join(values)})").vformat(text, (), {})


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_can_be_prepared(connection: psycopg.Connection[Any], name: str) -> None:
    text = with_integers(statement(name))
    if text.lstrip().upper().startswith("COPY"):
        require_copy_columns(connection, text)
        return
    if text.lstrip().upper().startswith("CALL"):
        with connection.transaction(force_rollback=True), pytest.raises(psycopg.Error) as refused:
            connection.execute(cast(LiteralString, text))
        # CALL cannot be prepared: it is run, with numbers that stand for nothing.
        assert refused.value.sqlstate == NOT_FOLLOWING[0]
        return
    numbers = {key: index for index, key in enumerate(dict.fromkeys(PARAMETER.findall(text)), start=1)}
    query = PARAMETER.sub(lambda found: f"${numbers[found[1]]}", text).replace("%%", "%")
    with connection.transaction(force_rollback=True):
        connection.execute(sql.SQL("PREPARE tried AS ") + sql.SQL(cast(LiteralString, query)))
        connection.execute("DEALLOCATE tried")


def require_copy_columns(connection: psycopg.Connection[Any], text: str) -> None:
    """COPY cannot be prepared: its table and columns are looked at instead."""
    found = re.search(r"COPY (\S+) \(([^)]*)\)", text)
    assert found is not None
    columns = sql.SQL(cast(LiteralString, f"SELECT {found[2]} FROM {found[1]} LIMIT 0"))
    connection.execute(columns)


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_says_what_it_does_locks_and_returns(name: str) -> None:
    lines = (sql_dir() / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("--").strip() for line in lines if line.startswith("--"))
    assert lines[0].startswith("-- "), "a sentence comes first"
    assert "Locks:" in comment
    assert "Returns:" in comment


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_one_statement(name: str) -> None:
    assert ";" not in statement(name), "the gateway puts statements together itself"


def test_a_placeholder_is_what_psycopg_understands() -> None:
    """A lone percent sign would fail at the first call only."""
    for name in NAMES:
        text = statement(name)
        if PARAMETER.search(text) or "%" in text:
            values = dict.fromkeys(PARAMETER.findall(text), 1)
            PostgresQuery(Transformer()).convert(text, values or None)
