"""The migrated schema as pg_dump writes it, without what differs from server to server.

`python -m tests.support.schema_dump` (`make schema`) writes sql/schema.sql anew, from an embedded PostgreSQL.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from gateway.resources import sql_dir
from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.embedded_home import packaged_programs
from gateway.storage.migrations import SCHEMA, migrate

SCHEMA_FILE = sql_dir() / "schema.sql"
DUMPED_MAJOR = 18
"""Other versions of PostgreSQL print some expressions differently."""

HEAD = """\
-- The schema as the migrations leave it, for reading: pg_dump of a migrated database, without owners and grants.
-- Written by `make schema`; a test keeps it true.

"""

# Settings of the session, versions, titles, and the random key of pg_dump's restrict command.
NOISE = re.compile(r"SET |SELECT pg_catalog\.set_config|\\(un)?restrict |--($| Name: | Dumped | PostgreSQL database)")


def dump_schema(url: str) -> str:
    """What pg_dump says of the schema, normalised."""
    command = [str(packaged_programs() / "pg_dump"), "--schema-only", "--no-owner", "--no-privileges"]
    dumped = subprocess.run(
        [*command, f"--schema={SCHEMA}", f"--dbname={url}"], check=True, capture_output=True, text=True
    ).stdout
    body = "\n".join(line for line in dumped.splitlines() if not NOISE.match(line))
    return HEAD + re.sub(r"\n{3,}", "\n\n", body).strip() + "\n"


def main() -> None:
    # Not the user's directory, which root's PostgreSQL user could not enter.
    directory = Path(tempfile.mkdtemp(prefix="tablewire-schema-"))
    try:
        with EmbeddedPostgres(directory) as server:
            migrate(server.url)
            SCHEMA_FILE.write_text(dump_schema(server.url), encoding="utf-8")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
