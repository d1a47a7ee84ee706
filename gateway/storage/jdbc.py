"""A PostgreSQL URL as JDBC takes it, with its credentials apart: they must not end up in what Spark prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

__all__ = ["JdbcAddress", "jdbc_address", "servers_of"]

DEFAULT_PORT = "5432"

# What libpq calls it, and what the JDBC driver does. Anything else concerns libpq only.
PARAMETERS = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "options": "options",
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
    "gssencmode": "gssEncMode",
    "channel_binding": "channelBinding",
}
SERVER_TYPES = {
    "any": "any",
    "read-write": "primary",
    "primary": "primary",
    "read-only": "secondary",
    "standby": "secondary",
    "prefer-standby": "preferSecondary",
}


class JdbcAddress(NamedTuple):
    """`url` holds no secret; user and password go to the driver by themselves."""

    url: str
    user: str | None
    password: str | None

    @property
    def with_credentials(self) -> str:
        """For people who paste one line; it does not belong into a log."""
        given = {"user": self.user, "password": self.password}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        if not query:
            return self.url
        return f"{self.url}{'&' if '?' in self.url else '?'}{query}"


def jdbc_address(url: str) -> JdbcAddress:
    """Translate hosts, database and the parameters that both sides have."""
    given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    parameters = {PARAMETERS[name]: value for name, value in given.items() if name in PARAMETERS}
    if (wanted := SERVER_TYPES.get(given.get("target_session_attrs", ""))) is not None:
        parameters["targetServerType"] = wanted
    user = given.get("user")
    database = given.get("dbname", user or "")
    query = f"?{urlencode(parameters)}" if parameters else ""
    return JdbcAddress(
        f"jdbc:postgresql://{servers_of(given)}/{quote(database, safe='')}{query}", user, given.get("password")
    )


def servers_of(given: Mapping[str, Any]) -> str:
    """Host and port of each server of an address that libpq took apart; ValueError where their numbers differ."""
    hosts = str(given.get("host") or "localhost").split(",")
    ports = str(given.get("port") or DEFAULT_PORT).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ",".join(f"{_host(host)}:{port or DEFAULT_PORT}" for host, port in zip(hosts, ports, strict=True))


def _host(host: str) -> str:
    if not host:
        return "localhost"
    return f"[{host}]" if ":" in host else host
