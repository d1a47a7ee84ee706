"""The PostgreSQL that comes along: a server of our own when no database is given.

It owns one cluster under the data directory and one `postgres` child. It never deletes data, and never shares
the cluster: a lock file holds off a second gateway, and an orphan of a killed one is shut down first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from gateway.errors import StartupError
from gateway.storage.embedded_home import (
    ServerUser,
    find_home,
    find_programs,
    packaged_programs,
    server_user,
)

__all__ = ["EmbeddedPostgres"]

HOST = "127.0.0.1"
SUPERUSER = "postgres"
NAME = "tablewire"
"""Of the ordinary role the gateway uses, and of its database."""

PORTS = range(15432, 32000)
"""Below the range the kernel hands to outgoing connections, so that a port once chosen stays free."""


def _shared_buffers_mb() -> int:
    """A quarter of the machine's memory, as PostgreSQL's manual has it, within bounds: with less than what is written
    between two checkpoints, sessions that append write out older pages first."""
    memory_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    return max(128, min(1024, memory_mb // 4))


CLUSTER_SETTINGS = {
    # Written once into postgresql.conf, where an operator may change them.
    "shared_buffers": f"{_shared_buffers_mb()}MB",
    # With checksums, who reads rows first after a checkpoint logs their pages. Compressing those by PostgreSQL's own
    # method, the only one in this build, takes longer than reading the rows, and saves a third of that log.
    "wal_compression": "off",
    # Segments that were used are used again; a new one is written twice, first with zeros. So few that they stay in the
    # page cache: memory that was never used, or long ago, cost ten times as much to write to where we measured it.
    "max_wal_size": "1GB",
    "min_wal_size": "512MB",
    # Who writes much so has a checkpoint every few seconds, and is not to be warned of it: rows are only ever added, so
    # their pages are written once, however many checkpoints there are.
    "checkpoint_warning": "0",
    "checkpoint_timeout": "15min",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "fsync": "on",
    "log_line_prefix": "%m [%p] %q%a ",
}

MEMORY_SETTINGS = {
    # Of glibc, where it is used. A commit's rows are some hundred kilobytes, which it would give back to the kernel
    # after each one and fetch again, page by page, for the next: 3 to 9 % of the CPU of a session that appends.
    "MALLOC_TRIM_THRESHOLD_": str(32 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TOP_PAD_": str(2**20),
}

START_TIMEOUT_S = 300.0
"""Long, because recovery after a crash replays up to max_wal_size."""
STOP_TIMEOUT_S = 30.0
START_ATTEMPTS = 10


class EmbeddedPostgres:
    """`start()` makes the cluster when there is none; `url` and `superuser_url` hold while it runs."""

    def __init__(self, data_dir: Path | str) -> None:
        self._data_dir = Path(data_dir).absolute()
        self._home = self._data_dir
        self._lock: IO[str] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """For the ordinary role, which owns its database and nothing else."""
        return self._url(NAME, self._password("password"), NAME)

    def saved_url(self) -> str:
        """The URL for others to use while the server runs in another process."""
        if not (self._data_dir / "port").exists():
            raise StartupError(f"There is no database in {self._data_dir} yet: start it with `tablewire serve`.")
        self._port = self._saved_port()
        return self.url

    @property
    def superuser_url(self) -> str:
        return self._url(SUPERUSER, self._password("superuser-password"), SUPERUSER)

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int | None:
        """Of the postmaster, while this object runs one."""
        return None if self._server is None else self._server.pid

    @property
    def home(self) -> Path:
        """Holds the cluster: the data directory, unless the server's user cannot reach that."""
        return self._home

    @property
    def cluster(self) -> Path:
        return self._home / "postgres"

    @property
    def psql(self) -> Path:
        return packaged_programs() / "psql"

    def start(self) -> None:
        """Return once the server answers; StartupError says in one sentence why it does not."""
        if self._server is not None:
            raise RuntimeError("already started")
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            self._home = find_home(self._data_dir)
            user = server_user(self.cluster)
            programs = find_programs(user)
            self._stop_orphan()
            if not self.cluster.exists():
                self._create_cluster(programs, user)
            if not user.can_enter(self.cluster):
                raise StartupError(f"User {user.name}, who owns {self.cluster}, can no longer reach it.")
            self._run(programs / "postgres", user)
            self._create_database()
        except OSError as refused:
            self.stop()
            raise StartupError(f"The embedded PostgreSQL cannot be started: {refused}.") from refused
        except BaseException:
            self.stop()
            raise

    def revive(self) -> bool:
        """Start the server again, on the port it had, if it ended by itself; whether it had."""
        if self._server is None or self._server.poll() is None:
            return False
        user = server_user(self.cluster)
        said = ""
        for _ in range(START_ATTEMPTS):
            said = self._spawn(find_programs(user) / "postgres", user)
            if not said:
                return True
            time.sleep(0.5)
        raise StartupError(f"PostgreSQL ended and does not start again: {_reason(said)} (see {self._log}).")

    def stop(self) -> None:
        """Fast shutdown: sessions are ended, everything committed is on disk. May be called twice."""
        if self._server is not None:
            _end(self._server)
            self._server = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- one gateway at a time ---------------------------------------------------------------

    def _take_lock(self) -> None:
        lock = (self._data_dir / "lock").open("a+", encoding="utf-8")
        try:
            # The kernel drops it with its owner, however that one ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise StartupError(
                f"The data directory {self._data_dir} is in use by another gateway (process {owner})."
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _stop_orphan(self) -> None:
        """End the server a killed gateway left behind; we hold the lock, so it has no owner."""
        pid_file = self.cluster / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        for wanted in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if not _is_postmaster(pid, self.cluster):
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, wanted)
            _wait_until(lambda: not _is_postmaster(pid, self.cluster), STOP_TIMEOUT_S)
        if _is_alive(pid):
            # Another program has that id now, or nobody has reaped the dead one: PostgreSQL cannot tell.
            pid_file.unlink(missing_ok=True)

    # --- the cluster -------------------------------------------------------------------------

    def _create_cluster(self, programs: Path, user: ServerUser) -> None:
        """Made beside its place and renamed, so that an interrupted initdb leaves nothing to trip over."""
        fresh = self._home / f"postgres.new-{secrets.token_hex(4)}"
        fresh.mkdir(mode=0o700)
        user.take(fresh)
        password_file = self._home / f"{fresh.name}.password"
        for name in ("password", "superuser-password"):
            _write_private(self._data_dir / name, secrets.token_urlsafe(24))
        _write_private(password_file, self._password("superuser-password"))
        user.take(password_file)
        command = [str(programs / "initdb"), "--pgdata", str(fresh), "--username", SUPERUSER]
        command += ["--pwfile", str(password_file), "--auth", "scram-sha-256", "--encoding", "UTF8"]
        command += ["--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"]
        command += ["--data-checksums", "--no-instructions"]
        for name, value in CLUSTER_SETTINGS.items():
            command += ["--set", f"{name}={value}"]
        try:
            done = subprocess.run(
                command, cwd="/", env=_environment(), capture_output=True, check=False, **user.popen_arguments
            )
        finally:
            password_file.unlink()
        if done.returncode != 0:
            raise StartupError(f"initdb failed in {self._home}: {_last_line(done.stderr)}.")
        fresh.rename(self.cluster)

    def _run(self, postgres: Path, user: ServerUser) -> None:
        """Start until it answers: another port if ours is taken, a pause if leftovers still hold memory."""
        self._port = self._saved_port()
        said = ""
        for _ in range(START_ATTEMPTS):
            if not _can_bind(self._port):
                self._port = _free_port()
            said = self._spawn(postgres, user)
            if not said:
                (self._data_dir / "port").write_text(f"{self._port}\n", encoding="utf-8")
                return
            if "Address already in use" in said:
                self._port = _free_port()
            elif "still in use" in said or "postmaster.pid" in said:
                time.sleep(0.5)
            else:
                break
        raise StartupError(f"PostgreSQL did not start: {_reason(said)} (see {self._log}).")

    def _spawn(self, postgres: Path, user: ServerUser) -> str:
        """Empty once it answers, else what it wrote before it ended."""
        command = [str(postgres), "-D", str(self.cluster), "-p", str(self._port)]
        command += ["-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="]
        with self._log.open("ab") as log:
            said_from = log.tell()
            self._server = subprocess.Popen(
                command,
                cwd="/",
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A session of its own: Ctrl-C in the terminal is for the gateway, which drains first.
                start_new_session=True,
                umask=0o077,
                **user.popen_arguments,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._server.poll() is None:
            if self._answers():
                return ""
            if time.monotonic() > deadline:
                raise StartupError(f"PostgreSQL did not answer in {START_TIMEOUT_S:.0f} s (see {self._log}).")
            time.sleep(0.05)
        self._server = None
        with self._log.open("rb") as log:
            log.seek(said_from)
            return log.read(65536).decode(errors="replace") or "it ended without a word"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.superuser_url, connect_timeout=5).close()
        except psycopg.OperationalError as refused:
            if "password authentication failed" in str(refused):
                raise StartupError(
                    f"The password in {self._data_dir} is not the one this database was made with."
                ) from None
            return False
        return True

    def _create_database(self) -> None:
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            role, password = sql.Identifier(NAME), sql.Literal(self._password("password"))
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [NAME]).fetchone() is None:
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, password))
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [NAME]).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))

    # --- small files -------------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self._data_dir / "postgres.log"

    def _password(self, name: str) -> str:
        path = self._data_dir / name
        try:
            return path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise StartupError(f"{path} is missing, and with it the way into the database.") from None

    def _saved_port(self) -> int:
        try:
            return int((self._data_dir / "port").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return _free_port()

    def _url(self, role: str, password: str, database: str) -> str:
        return f"postgresql://{role}:{quote(password, safe='')}@{HOST}:{self._port}/{database}"


def _end(server: subprocess.Popen[bytes]) -> None:
    for wanted in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        server.send_signal(wanted)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_TIMEOUT_S)
            return


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_postmaster(pid: int, cluster: Path) -> bool:
    """Whether `pid` is a running server of this very cluster: process ids are used again."""
    process = Path(f"/proc/{pid}")
    if not process.parent.is_dir():
        return _is_alive(pid)
    try:
        return (process / "cwd").resolve(strict=True) == cluster.resolve()
    except OSError:  # gone, dead and not reaped (no working directory), or somebody else's
        return False


def _wait_until(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As PostgreSQL does, so that connections lingering after a restart do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    for port in random.sample(PORTS, k=100):
        if _can_bind(port):
            return port
    raise StartupError(f"No free port for PostgreSQL was found from {PORTS.start} to {PORTS.stop}.")


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(f"{text}\n")


def _environment() -> dict[str, str]:
    """Nothing of the terminal's: PGDATA, PGPORT or a locale must not reach the server."""
    kept = {name: os.environ[name] for name in ("PATH", "TZ") if name in os.environ}
    return {**kept, **MEMORY_SETTINGS, "LC_ALL": "C"}


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _reason(said: str) -> str:
    """The first FATAL of the server's own words, or its last line."""
    fatal = [line for line in said.splitlines() if "FATAL:" in line]
    return fatal[0].split("FATAL:", 1)[1].strip() if fatal else _last_line(said.encode())
