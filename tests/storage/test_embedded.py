"""The embedded PostgreSQL: starts, stops, keeps its data, and survives what kills it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.errors import StartupError
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.embedded_home import find_home
from tests.support.waiting import wait_for


@pytest.fixture
def data_dir() -> Iterator[Path]:
    # Not pytest's tmp_path: nobody but its owner may enter that, and root's server is another user.
    top = Path(tempfile.mkdtemp(prefix="tablewire-test-"))
    top.chmod(0o711)
    try:
        yield top / "data"
    finally:
        shutil.rmtree(top)


def write_row(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")


def read_row(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT answer FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def test_data_port_and_password_outlive_a_restart(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        first_url = server.url
        write_row(first_url)
    assert server.pid is None
    with EmbeddedPostgres(data_dir) as server:
        assert server.url == first_url
        assert read_row(server.url) == 42


def test_the_gateway_gets_an_ordinary_role_behind_a_password_only_we_can_read(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server, psycopg.connect(server.url) as connection:
        role = connection.execute(
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert role == (False, False, False, False)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url, password="wrong")
    for name in ("password", "superuser-password"):
        assert stat.S_IMODE((data_dir / name).stat().st_mode) == 0o600


def test_the_cluster_is_durable_and_reached_by_loopback_only(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server, psycopg.connect(server.superuser_url) as connection:
        for name, expected in {
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "data_checksums": "on",
            "password_encryption": "scram-sha-256",
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "server_encoding": "UTF8",
        }.items():
            assert connection.execute("SELECT current_setting(%s)", [name]).fetchone() == (expected,), name


def test_a_killed_postmaster_leaves_nothing_that_stops_the_next_start(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.start()
    try:
        write_row(server.url)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
    finally:
        server.stop()
    with EmbeddedPostgres(data_dir) as restarted:
        assert read_row(restarted.url) == 42


def test_a_server_that_ends_by_itself_is_started_again_with_its_data_and_port(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        write_row(server.url)
        url, pid = server.url, server.pid
        assert not server.revive(), "it runs"
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(server.revive, wanted=True)
        assert server.url == url
        assert read_row(server.url) == 42


def test_the_url_is_saved_for_other_programs(data_dir: Path) -> None:
    with pytest.raises(StartupError, match="no database"):
        EmbeddedPostgres(data_dir).saved_url()
    with EmbeddedPostgres(data_dir) as server:
        assert EmbeddedPostgres(data_dir).saved_url() == server.url


def test_an_orphan_of_a_killed_gateway_is_shut_down_and_replaced(data_dir: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from gateway.storage.embedded import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(sys.argv[1])\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    owner = subprocess.run([sys.executable, "-c", script, str(data_dir)], stdout=subprocess.PIPE, check=False)
    assert owner.returncode == -signal.SIGKILL
    orphan = int(owner.stdout)
    with EmbeddedPostgres(data_dir) as server:
        assert server.pid != orphan
        write_row(server.url)
        assert read_row(server.url) == 42
    log = (data_dir / "postgres.log").read_text()
    assert "received fast shutdown request" in log
    assert "was not properly shut down" not in log


def test_a_stale_pid_file_that_names_another_live_process_does_not_stop_the_start(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        write_row(server.url)
        pid_file = server.cluster / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{server.cluster}\n")
    with EmbeddedPostgres(data_dir) as server:
        assert read_row(server.url) == 42


def test_a_taken_port_is_given_up_for_another_and_the_new_one_kept(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        first_port = server.port
        write_row(server.url)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", first_port))
        squatter.listen()
        with EmbeddedPostgres(data_dir) as server:
            second_port = server.port
            assert second_port != first_port
            assert read_row(server.url) == 42
    with EmbeddedPostgres(data_dir) as server:
        assert server.port == second_port


def test_a_second_start_on_the_same_directory_is_refused_in_one_sentence(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir):
        with pytest.raises(StartupError, match=f"in use by another gateway \\(process {os.getpid()}\\)"):
            EmbeddedPostgres(data_dir).start()
        # The refused one must not have released the lock of the first.
        with pytest.raises(StartupError, match="in use by another gateway"):
            EmbeddedPostgres(data_dir).start()


def test_stopping_twice_and_stopping_before_the_start_do_nothing(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_a_missing_password_file_is_one_sentence(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir):
        pass
    (data_dir / "superuser-password").unlink()
    with pytest.raises(StartupError, match="superuser-password is missing"):
        EmbeddedPostgres(data_dir).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_root_keeps_the_cluster_elsewhere_when_the_directory_is_closed_to_its_server(data_dir: Path) -> None:
    data_dir.parent.chmod(0o700)
    server = EmbeddedPostgres(data_dir)
    try:
        with server:
            assert server.home != data_dir
            assert server.cluster.stat().st_uid != 0
            write_row(server.url)
        with EmbeddedPostgres(data_dir) as again:
            assert again.home == server.home == find_home(data_dir)
            assert read_row(again.url) == 42
    finally:
        if server.home != data_dir:
            shutil.rmtree(server.home)
