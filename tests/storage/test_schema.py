"""Migrations: applied once, printed, and checked before a gateway serves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from gateway.errors import StartupError
from gateway.storage.schema import check_schema, migrate, migration_sql, schema_differences


def test_a_migrated_database_passes_the_check_and_needs_no_sql(database_url: str) -> None:
    check_schema(database_url)
    assert migration_sql(database_url) == ""
    migrate(database_url)
    check_schema(database_url)


def test_a_database_without_the_schema_is_refused(empty_database_url: str) -> None:
    with pytest.raises(StartupError, match="holds no Tablewire schema yet: run `tablewire migrate`"):
        check_schema(empty_database_url)


def test_gateways_that_migrate_at_once_do_not_collide(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(migrate, [empty_database_url] * 4))
    check_schema(empty_database_url)


def test_the_printed_sql_makes_the_same_schema(empty_database_url: str) -> None:
    printed = migration_sql(empty_database_url)
    assert printed == migration_sql()
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(printed.encode())
    check_schema(empty_database_url)
    assert schema_differences(empty_database_url) == []


def test_the_tables_in_python_are_those_of_the_migrations(database_url: str) -> None:
    assert schema_differences(database_url) == []


def test_a_schema_of_a_newer_version_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE kafka.alembic_version SET version_num = '9999'")
    for refused in (check_schema, migrate, migration_sql):
        with pytest.raises(StartupError, match="is ahead \\(at 9999"):
            refused(database_url)


def test_the_short_form_of_the_url_scheme_is_accepted(database_url: str) -> None:
    check_schema(urlunsplit(urlsplit(database_url)._replace(scheme="postgres")))


def test_an_unreachable_database_is_one_sentence_without_the_password() -> None:
    with pytest.raises(
        StartupError, match=r"127\.0\.0\.1:1/db cannot be used: .*Connection refused"
    ) as refused:
        check_schema("postgresql://user:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
