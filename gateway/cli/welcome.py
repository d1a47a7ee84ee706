"""What `serve` prints once it listens: the address, and lines to paste into a shell as they are.

No line carries a password: it is read from the embedded server's file, or from PGPASSWORD.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from rich.console import Console

from gateway.config import Address

__all__ = ["print_welcome"]

QUERY = (
    # Dollar quotes survive the shell's single ones; `escape` shows text as text.
    'SELECT topic, partition, "offset", timestamp, encode(value, $$escape$$) AS value'
    ' FROM kafka.committed_messages ORDER BY topic, partition, "offset" LIMIT 10'
)


def print_welcome(addresses: Sequence[Address], database_url: str, *, psql: Path, password_file: Path | None) -> None:
    """The lines name the first of the addresses, as any leads to all.

    `psql` is the program to name when none is on PATH; `password_file` is the embedded server's.
    """
    # No wrapping and no colours inside a line, or it could not be pasted.
    console = Console(soft_wrap=True, highlight=False, markup=False)
    bootstrap = addresses[0]
    said = ", ".join(map(str, addresses))
    console.print(f"\nTablewire serves Kafka clients at {said}; Ctrl-C stops it.", style="bold")
    for title, line in (
        ("produce", f"echo hello | kcat -P -b {bootstrap} -t demo"),
        ("consume", f"kcat -C -b {bootstrap} -t demo -o beginning -e"),
        ("look at the rows", _psql_line(database_url, psql, password_file)),
        ("read them with Spark (Java 17 or newer)", _spark_line(password_file)),
    ):
        console.print(f"\n# {title}", style="dim")
        console.print(line)
    console.print()


def _psql_line(database_url: str, psql: Path, password_file: Path | None) -> str:
    password = "" if password_file is None else f'PGPASSWORD="$(cat {shlex.quote(str(password_file))})" '
    program = "psql" if shutil.which("psql") else shlex.quote(str(psql))
    return f"{password}{program} {shlex.quote(_without_password(database_url))} -c {shlex.quote(QUERY)}"


def _spark_line(password_file: Path | None) -> str:
    """The pipeline finds the database as the gateway does; an address with a password in it is not repeated here."""
    place = "" if password_file is None else f"TABLEWIRE_DATA_DIR={shlex.quote(str(password_file.parent))} "
    python = "from gateway.pipeline import read_topic, spark_session; read_topic(spark_session(), 'demo').show()"
    return f'{place}{shlex.quote(sys.executable)} -c "{python}"'


def _without_password(database_url: str) -> str:
    address = urlsplit(database_url)
    user, at, host = address.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(address.query) if name != "password"]
    netloc = f"{user.partition(':')[0]}{at}{host}"
    return urlunsplit(address._replace(netloc=netloc, query=urlencode(query)))
