"""What `serve` prints once it listens: the address, and lines to paste into a shell as they are.

No line carries a password: it is read from the embedded server's file, or from PGPASSWORD.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from rich.console import Console

from gateway.config import Address

__all__ = ["print_welcome"]

JDBC_DRIVER = "org.postgresql:postgresql:42.7.14"
QUERY = (
    # Dollar quotes survive the shell's single ones; `escape` shows text as text.
    'SELECT topic, partition, "offset", timestamp, encode(value, $$escape$$) AS value'
    ' FROM kafka.committed_messages ORDER BY topic, partition, "offset" LIMIT 10'
)


def print_welcome(bootstrap: Address, database_url: str, *, psql: Path, password_file: Path | None) -> None:
    """`psql` is the program to name when none is on PATH; `password_file` is the embedded server's."""
    # No wrapping and no colours inside a line, or it could not be pasted.
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"\nTablewire serves Kafka clients at {bootstrap}; Ctrl-C stops it.", style="bold")
    for title, line in (
        ("produce", f"echo hello | kcat -P -b {bootstrap} -t demo"),
        ("consume", f"kcat -C -b {bootstrap} -t demo -o beginning -e"),
        ("look at the rows", _psql_line(database_url, psql, password_file)),
        (
            "read them with Spark (Java 17, pip install pyspark==4.2.0)",
            _spark_line(database_url, password_file),
        ),
    ):
        console.print(f"\n# {title}", style="dim")
        console.print(line)
    console.print()


def _psql_line(database_url: str, psql: Path, password_file: Path | None) -> str:
    password = "" if password_file is None else f'PGPASSWORD="$(cat {shlex.quote(str(password_file))})" '
    program = "psql" if shutil.which("psql") else shlex.quote(str(psql))
    return f"{password}{program} {shlex.quote(_without_password(database_url))} -c {shlex.quote(QUERY)}"


def _spark_line(database_url: str, password_file: Path | None) -> str:
    address = urlsplit(database_url)
    url = f"jdbc:postgresql://{address.hostname or 'localhost'}:{address.port or 5432}{address.path}"
    environment = "__import__('os').environ['PGPASSWORD']"
    password = environment if password_file is None else f"open({str(password_file)!r}).read().strip()"
    properties = f"{{'user': {address.username!r}, 'password': {password}, 'driver': 'org.postgresql.Driver'}}"
    python = (
        "from pyspark.sql import SparkSession; "
        f"SparkSession.builder.config('spark.jars.packages', '{JDBC_DRIVER}').getOrCreate()"
        f".read.jdbc('{url}', 'kafka.committed_messages', properties={properties}).show()"
    )
    return f'python3 -c "{python}"'


def _without_password(database_url: str) -> str:
    address = urlsplit(database_url)
    user, at, host = address.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(address.query) if name != "password"]
    netloc = f"{user.partition(':')[0]}{at}{host}"
    return urlunsplit(address._replace(netloc=netloc, query=urlencode(query)))
