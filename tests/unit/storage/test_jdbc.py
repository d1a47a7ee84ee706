"""PostgreSQL URLs as JDBC takes them."""

from __future__ import annotations

import pytest

from gateway.storage.jdbc import jdbc_address


@pytest.mark.parametrize(
    ("url", "jdbc"),
    [
        ("postgresql://u:p@db.example:6000/kafka", "jdbc:postgresql://db.example:6000/kafka"),
        ("postgresql://db.example/kafka", "jdbc:postgresql://db.example:5432/kafka"),
        ("postgresql://u@/kafka", "jdbc:postgresql://localhost:5432/kafka"),
        ("postgresql://u@[::1]:6000/kafka", "jdbc:postgresql://[::1]:6000/kafka"),
        (
            "postgresql://u@a:1,b:2/kafka?target_session_attrs=read-write&sslmode=require",
            "jdbc:postgresql://a:1,b:2/kafka?sslmode=require&targetServerType=primary",
        ),
    ],
)
def test_hosts_database_and_parameters_are_translated(url: str, jdbc: str) -> None:
    assert jdbc_address(url).url == jdbc


def test_credentials_are_apart_from_the_address() -> None:
    address = jdbc_address("postgresql://some%20one:p%40ss%26word@db.example/kafka")
    assert "ss" not in address.url
    assert (address.user, address.password) == ("some one", "p@ss&word")
    assert address.with_credentials == "jdbc:postgresql://db.example:5432/kafka?user=some+one&password=p%40ss%26word"
