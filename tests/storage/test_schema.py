"""Migrations: applied once, printed, and checked before a gateway serves; what the schema says of itself; roles."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from alembic.script import ScriptDirectory
from psycopg import errors, sql

from gateway.errors import StartupError
from gateway.pipeline.cuts import fix_cut
from gateway.pipeline.reading import TABLE, range_predicate
from gateway.resources import migrations_dir
from gateway.storage.migrations import schema_differences
from gateway.storage.schema import check_schema, head_version, migrate, migration_sql
from gateway.worker import Reject, Work, Worker
from tests.support.attack import Target
from tests.support.gateway_process import GatewayProcess
from tests.support.schema_dump import DUMPED_MAJOR, SCHEMA_FILE, dump_schema
from tests.support.waiting import wait_for

ROLES = ("tablewire_gateway", "tablewire_reader")
REFUSED_TO_READERS: tuple[LiteralString, ...] = (
    "SELECT * FROM kafka.messages",
    "SELECT * FROM kafka.producer_ids",
    "DELETE FROM kafka.topics",
    "UPDATE kafka.partitions SET next_offset = 0",
    "INSERT INTO kafka.cluster DEFAULT VALUES",
    "SELECT kafka.create_topic_storage(99)",
    "SELECT kafka.drop_topic_storage(99)",
    "SELECT kafka.state_put('read', 'k', 'v', 2)",
    "SELECT kafka.pipeline_begin('read')",
    "DELETE FROM kafka.state",
)


def test_a_migrated_database_passes_the_check_and_needs_no_sql(database_url: str) -> None:
    check_schema(database_url)
    assert migration_sql(database_url) == ""
    migrate(database_url)
    check_schema(database_url)


def test_the_last_file_is_alembics_head() -> None:
    assert ScriptDirectory(str(migrations_dir())).get_current_head() == head_version()


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


def test_what_producers_wrote_is_remembered_through_0014(empty_database_url: str) -> None:
    before, _, _ = migration_sql().partition("-- Running upgrade 0013 -> 0014")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"{before}COMMIT".encode())
        connection.execute(
            "INSERT INTO kafka.topics (topic_id, name, partition_count) OVERRIDING SYSTEM VALUE VALUES (1, 't', 2)"
        )
        connection.execute(
            "INSERT INTO kafka.producer_sequences (producer_id, run_length, topic_id, partition_id, last_sequence,"
            " producer_epoch, first_sequences, last_sequences, base_offsets, timestamps_ms) VALUES"
            " (7, 9, 1, 0, 8, 2, '{0,5}', '{4,8}', '{100,105}', '{1000,-1}'),"
            " (8, 0, 1, 1, -1, 0, '{}', '{}', '{}', '{}')"
        )
        migrate(empty_database_url)
        rows = connection.execute("SELECT batches FROM kafka.producer_sequences ORDER BY producer_id").fetchall()
        (shown,) = connection.execute("SELECT batches FROM kafka.producer_state WHERE producer_id = 7").fetchone() or ()
    assert rows == [("100:5:1000 105:4:-1",), ("",)]
    assert [(one["first_sequence"], one["last_sequence"], one["base_offset"]) for one in shown] == [
        (0, 4, 100),
        (5, 8, 105),
    ]
    assert schema_differences(empty_database_url) == []


def test_what_producers_wrote_is_remembered_through_0019(empty_database_url: str) -> None:
    before, _, _ = migration_sql().partition("-- Running upgrade 0018 -> 0019")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"{before}COMMIT".encode())
        connection.execute(
            "INSERT INTO kafka.topics (topic_id, name, partition_count) OVERRIDING SYSTEM VALUE VALUES (1, 't', 2)"
        )
        connection.execute(
            "INSERT INTO kafka.producer_sequences (producer_id, run_length, topic_id, partition_id, last_sequence,"
            " producer_epoch, batches) VALUES (7, 30, 1, 0, 9, 2,"
            " '{2147483640,2147483645,100,1000,2147483646,1,106,1001,2,9,120,-1}')"
        )
        (before_shown,) = connection.execute("SELECT batches FROM kafka.producer_state").fetchone() or ()
        migrate(empty_database_url)
        stored = connection.execute("SELECT batches FROM kafka.producer_sequences").fetchall()
        (shown,) = connection.execute("SELECT batches FROM kafka.producer_state").fetchone() or ()
    assert stored == [("100:6:1000 106:4:1001 120:8:-1",)]
    assert [one["last_sequence"] for one in shown] == [2147483645, 1, 9]
    assert shown == before_shown
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
    with pytest.raises(StartupError, match=r"127\.0\.0\.1:1/db cannot be used: .*Connection refused") as refused:
        check_schema("postgresql://user:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


def major_version(url: str) -> int:
    with psycopg.connect(url) as connection:
        return connection.info.server_version // 10_000


def test_the_schema_file_is_the_migrated_schema(database_url: str) -> None:
    if major_version(database_url) != DUMPED_MAJOR:
        pytest.skip(
            f"needs PostgreSQL {DUMPED_MAJOR}, of which sql/schema.sql is a dump; this server is another version"
        )
    assert SCHEMA_FILE.read_text(encoding="utf-8") == dump_schema(database_url), "run `make schema`"


def test_everything_in_the_schema_has_a_comment(database_url: str) -> None:
    """psql's \\d+ is the documentation."""
    with psycopg.connect(database_url) as connection:
        silent = connection.execute(
            """
            SELECT c.relname || '.' || a.attname
              FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             WHERE c.relnamespace = 'kafka'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
               AND col_description(c.oid, a.attnum) IS NULL
            UNION ALL
            SELECT c.relname FROM pg_class c
             WHERE c.relnamespace = 'kafka'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
               AND obj_description(c.oid, 'pg_class') IS NULL
            UNION ALL
            SELECT p.oid::regprocedure::text FROM pg_proc p
             WHERE p.pronamespace = 'kafka'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
            UNION ALL
            SELECT 'schema kafka' WHERE obj_description('kafka'::regnamespace, 'pg_namespace') IS NULL
            ORDER BY 1
            """
        ).fetchall()
    assert silent == []


def test_a_topics_table_carries_the_comments_too(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        add_topic(connection, "commented")
        silent = connection.execute(
            "SELECT a.attname FROM pg_inherits i JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum > 0"
            " WHERE i.inhparent = 'kafka.messages'::regclass AND col_description(a.attrelid, a.attnum) IS NULL"
        ).fetchall()
    assert silent == []


def add_topic(connection: psycopg.Connection[Any], name: str, *, records: int = 0) -> int:
    """A topic of two partitions with as many records in each."""
    ((topic_id,),) = connection.execute(
        "INSERT INTO kafka.topics (name, partition_count) VALUES (%s, 2) RETURNING topic_id", [name]
    ).fetchall()
    connection.execute("SELECT kafka.create_topic_storage(%s)", [topic_id])
    for partition in range(2):
        connection.execute(
            "INSERT INTO kafka.partitions (topic_id, partition, next_offset, last_stable_offset)"
            " VALUES (%s, %s, %s, %s)",
            [topic_id, partition, records, records],
        )
        connection.execute(
            'INSERT INTO kafka.messages ("offset", "timestamp", topic_id, partition, timestamp_type,'
            " is_transactional, value) SELECT n, now(), %s, %s, 0, false, 'v' FROM generate_series(0, %s - 1) AS n",
            [topic_id, partition, records],
        )
    return int(topic_id)


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a plan that read a topic's table."""
    if str(plan.get("Relation Name", "")).startswith("messages_"):
        yield plan
    for child in plan.get("Plans", []):
        yield from scans(child)


@pytest.mark.parametrize("condition", ['"offset" >= 4000 AND "offset" < 4010', '"offset" = 4000'])
def test_a_filter_on_topic_partition_and_offset_reaches_the_primary_key(database_url: str, condition: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        topic_id = add_topic(connection, "wanted", records=5000)
        add_topic(connection, "other", records=5000)
        connection.execute("ANALYZE")
        query = (
            "EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) SELECT * FROM kafka.committed_messages"
            f" WHERE topic = 'wanted' AND partition = 1 AND {condition}"
        )
        (((found,),),) = connection.execute(query.encode()).fetchall()
    read = [node for node in scans(found["Plan"]) if node["Actual Loops"]]
    assert {node["Relation Name"] for node in read} == {f"messages_{topic_id}"}
    for node in read:
        assert node["Node Type"] in ("Index Scan", "Index Only Scan")
        assert node["Index Name"] == f"messages_{topic_id}_pkey"
        assert '"offset"' in node["Index Cond"]
        assert "partition" in node["Index Cond"]
        assert node["Actual Rows"] * node["Actual Loops"] <= 10
        assert node.get("Rows Removed by Filter", 0) == 0


# --- roles ----------------------------------------------------------------------------------


@contextmanager
def migrated_by(superuser_url: str | None, attributes: LiteralString) -> Iterator[tuple[str, Callable[[str], str]]]:
    """A database migrated by a role with these attributes; gives its URL and one for a new member of a role."""
    if superuser_url is None:
        pytest.skip("needs a superuser to make roles; TABLEWIRE_TEST_DATABASE_URL is an ordinary role's")
    password, suffix = secrets.token_hex(8), secrets.token_hex(4)
    made: list[str] = []
    address = urlsplit(superuser_url)

    def url_of(role: str) -> str:
        netloc = f"{role}:{password}@{address.hostname}:{address.port}"
        return urlunsplit(address._replace(netloc=netloc, path=f"/roles_{suffix}"))

    with psycopg.connect(superuser_url, autocommit=True) as superuser:

        def make_role(name: str, options: LiteralString, *, member_of: str | None = None) -> str:
            superuser.execute(
                sql.SQL("CREATE ROLE {} LOGIN {} PASSWORD {}").format(
                    sql.Identifier(name), sql.SQL(options), sql.Literal(password)
                )
            )
            made.append(name)
            if member_of is not None:
                superuser.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(member_of), sql.Identifier(name)))
            return url_of(name)

        try:
            owner = make_role(f"owner_{suffix}", attributes)
            superuser.execute(
                sql.SQL("CREATE DATABASE {} OWNER {}").format(
                    sql.Identifier(f"roles_{suffix}"), sql.Identifier(f"owner_{suffix}")
                )
            )
            migrate(owner)
            yield owner, lambda role: make_role(f"member_{role}_{suffix}", "", member_of=role)
        finally:
            superuser.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(f"roles_{suffix}"))
            )
            for name in (*reversed(made), *ROLES):
                superuser.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


def existing_roles(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s) ORDER BY 1", [list(ROLES)])
        return [name for (name,) in found.fetchall()]


def test_a_role_that_may_not_create_roles_migrates_all_the_same(superuser_url: str | None) -> None:
    with migrated_by(superuser_url, "NOCREATEROLE NOCREATEDB NOSUPERUSER") as (owner, _):
        check_schema(owner)
        assert existing_roles(owner) == []


def test_a_gateway_serves_as_a_member_of_tablewire_gateway(superuser_url: str | None, tmp_path: Path) -> None:
    """It owns nothing and may not change the schema, and yet creates, writes, reads and deletes topics."""
    with migrated_by(superuser_url, "CREATEROLE NOSUPERUSER") as (owner, member_of):
        assert existing_roles(owner) == sorted(ROLES)
        as_gateway = member_of("tablewire_gateway")
        with pytest.raises(errors.InsufficientPrivilege), psycopg.connect(as_gateway) as connection:
            connection.execute("CREATE TABLE kafka.mine ()")
        with pytest.raises(errors.InsufficientPrivilege), psycopg.connect(as_gateway) as connection:
            connection.execute("DROP TABLE kafka.messages")
        with psycopg.connect(as_gateway) as connection:
            connection.execute("SELECT kafka.state_create('mine', 'sealed', 'pipeline')")
            connection.execute("SELECT kafka.state_put('mine', 'k', 'v', 1), kafka.state_seal('mine', 1)")
            connection.execute("SELECT kafka.pipeline_commit('pipeline', 1, '{}', '{}', '{}')")
            connection.execute("SELECT kafka.pipeline_go_back('pipeline', 0)")
            connection.execute("CREATE TABLE kafka_staging.mine ()")
            connection.execute("DROP TABLE kafka_staging.mine")
        with GatewayProcess(as_gateway, directory=tmp_path) as process:
            target = Target(process)
            target.require_service()
            with target.connect() as connection:
                answer = connection.call("DeleteTopics", 5, topic_names=[target.topic], timeout_ms=20_000)
            assert answer["responses"][0]["error_code"] == 0
            wait_for(lambda: target.rows("SELECT to_regclass('kafka.messages_1')")[0][0], None)


def test_a_worker_works_as_a_member_of_tablewire_gateway(superuser_url: str | None) -> None:
    """Also when it has to make the topic for dead letters."""

    def refuse(work: Work[Any]) -> None:
        work.produce("out", work.delivery.value)
        if work.delivery.partition == 1:
            raise Reject("never")

    with migrated_by(superuser_url, "CREATEROLE NOSUPERUSER") as (owner, member_of):
        with psycopg.connect(owner) as connection:
            add_topic(connection, "in", records=1)
            add_topic(connection, "out")
        with psycopg.connect(member_of("tablewire_gateway")) as connection:
            Worker(connection, "in", "group").run(refuse, until_idle=True)
        with psycopg.connect(owner) as connection:
            count: LiteralString = "SELECT topic, count(*)::int FROM kafka.committed_messages GROUP BY 1 ORDER BY 1"
            assert connection.execute(count).fetchall() == [("dlq.in", 1), ("in", 2), ("out", 1)]


def test_a_reader_sees_committed_records_and_changes_nothing(superuser_url: str | None) -> None:
    with migrated_by(superuser_url, "CREATEROLE NOSUPERUSER") as (owner, member_of):
        with psycopg.connect(owner) as connection:
            add_topic(connection, "read", records=3)
            connection.execute("SELECT kafka.state_create('read'), kafka.state_put('read', 'k', '[1]', 1)")
        as_reader = member_of("tablewire_reader")
        with psycopg.connect(as_reader, autocommit=True) as reader:
            assert reader.execute("SELECT count(*) FROM kafka.committed_messages").fetchall() == [(6,)]
            cut = fix_cut(reader, "read")
            assert cut.size == 6
            (counted,) = reader.execute(
                f"SELECT count(*) FROM {TABLE} WHERE {range_predicate(cut.ranges[0])}".encode()
            ).fetchall()
            assert counted == (3,), "what a task of Spark asks for"
            assert reader.execute("SELECT * FROM kafka.find_torn('{1}', '{0}', '{0}', '{2}')").fetchall() == []
            for view in ("partition_offsets", "topic_sizes"):
                assert reader.execute(sql.SQL("SELECT * FROM kafka.{}").format(sql.Identifier(view))).fetchall()
            (value,) = reader.execute("SELECT kafka.state_json(kafka.state_get('read', 'k'))").fetchall()
            assert value == ([1],)
            for refused in REFUSED_TO_READERS:
                with pytest.raises(errors.InsufficientPrivilege):
                    reader.execute(refused)
