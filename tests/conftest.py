"""A PostgreSQL for the whole session, and a fresh migrated database for each test that asks.

The server is TABLEWIRE_TEST_DATABASE_URL's (PostgreSQL 15 to 18; its role needs CREATEDB), else a container
where a Docker engine answers, else the embedded one. Tests connect as an ordinary role, never as superuser.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import psycopg
import pytest
from psycopg import sql

from gateway.storage import embedded
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.schema import migrate

# Several files are tested at a time on shared cores: how long an example takes says nothing. A run that decides
# whether a change lands tries the same examples as the run before; elsewhere new ones are tried each time.
UNTIMED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("local", **UNTIMED)
hypothesis.settings.register_profile("ci", **UNTIMED, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

# Gateways have ports of their own (`free_port`): a server that is down for a moment finds its port free again.
embedded.PORTS = range(15_432, 20_000)

SLOWEST_FIRST = ("faults", "clients", "pipeline", "worker", "wire", "storage")
"""Directories whose files take longest: begun first, they do not keep one process busy while the other has no more."""

CONTAINER_IMAGE = "postgres:17-alpine"
TEST_ROLE = "tablewire_test"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    directories = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        directory = item.path.relative_to(directories).parts[0]
        return SLOWEST_FIRST.index(directory) if directory in SLOWEST_FIRST else len(SLOWEST_FIRST)

    items.sort(key=place)


@pytest.fixture(scope="session")
def superuser_url() -> Iterator[str | None]:
    """The session's server as its superuser, for tests about roles; None on a server that is not ours."""
    if os.environ.get("TABLEWIRE_TEST_DATABASE_URL"):
        yield None
        return
    with _container() if _docker_answers() else _embedded() as url:
        yield url


@pytest.fixture(scope="session")
def server_url(superuser_url: str | None) -> str:
    """A database of the session's server, as a role that may create databases."""
    return os.environ["TABLEWIRE_TEST_DATABASE_URL"] if superuser_url is None else _ordinary_role(superuser_url)


@pytest.fixture(scope="session")
def template_database(server_url: str) -> Iterator[str]:
    """The name of a migrated database that is only ever copied."""
    with _scratch_database(server_url) as url:
        migrate(url)
        yield _database_of(url)


@pytest.fixture(scope="session")
def clients_database_url(server_url: str, template_database: str) -> Iterator[str]:
    """One migrated database for all client tests: each of them uses topics of its own."""
    with _scratch_database(server_url, template_database) as url:
        yield url


@pytest.fixture(scope="session")
def wire_database_url(server_url: str, template_database: str) -> Iterator[str]:
    """One migrated database for all wire tests, whose gateway is the only one on it."""
    with _scratch_database(server_url, template_database) as url:
        yield url


@pytest.fixture(scope="session")
def cold_database_url(server_url: str, template_database: str) -> Iterator[str]:
    """A migrated database for the gateway that keeps nothing in memory."""
    with _scratch_database(server_url, template_database) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(server_url: str, template_database: str) -> Iterator[str]:
    """A migrated database for one file of tests, whose gateway is the only one on it."""
    with _scratch_database(server_url, template_database) as url:
        yield url


@pytest.fixture
def database_url(server_url: str, template_database: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    with _scratch_database(server_url, template_database) as url:
        yield url


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database of this test's own that was never migrated."""
    with _scratch_database(server_url) as url:
        yield url


@contextmanager
def _scratch_database(server_url: str, template: str = "template1") -> Iterator[str]:
    name = f"tablewire_test_{secrets.token_hex(6)}"
    database = sql.Identifier(name)
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(database, sql.Identifier(template)))
        try:
            yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
        finally:
            _drop(connection, database)


def _drop(connection: psycopg.Connection[Any], database: sql.Identifier) -> None:
    """Autovacuum may be at work there, and an ordinary role cannot end it: then it is tried again."""
    for _ in range(100):
        try:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectInUse):
            time.sleep(0.2)
        else:
            return
    raise AssertionError("the database stays in use")


def _database_of(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


def _ordinary_role(superuser_url: str) -> str:
    password = secrets.token_hex(12)
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN CREATEDB PASSWORD {}").format(
                sql.Identifier(TEST_ROLE), sql.Literal(password)
            )
        )
    address = urlsplit(superuser_url)
    return urlunsplit(address._replace(netloc=f"{TEST_ROLE}:{password}@{address.hostname}:{address.port}"))


@contextmanager
def _embedded() -> Iterator[str]:
    # Not pytest's directory, which root's PostgreSQL user could not enter.
    directory = Path(tempfile.mkdtemp(prefix="tablewire-tests-"))
    try:
        with EmbeddedPostgres(directory) as server:
            yield server.superuser_url
    finally:
        shutil.rmtree(directory)


def _docker_answers() -> bool:
    """A quick look for the engine's socket before the client library is asked, which may wait."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if host.startswith("unix://"):
        try:
            with socket.socket(socket.AF_UNIX) as engine:
                engine.settimeout(2)
                engine.connect(host.removeprefix("unix://"))
        except OSError:
            return False
    import docker

    try:
        docker.from_env(timeout=3).ping()
    except Exception:  # noqa: BLE001 - whatever the reason, no engine answers
        return False
    return True


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.postgres import PostgresContainer

    with PostgresContainer(CONTAINER_IMAGE, driver=None) as container:
        yield container.get_connection_url()
