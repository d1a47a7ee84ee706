"""Settings: where they come from, which one wins, and how a bad one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config import Address, Settings, SettingsError, load_settings, parse_address


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("TABLEWIRE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write_file(text: str) -> None:
    Path("tablewire.toml").write_text(text)


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = load_settings()
    assert settings.listen_address == ("127.0.0.1", 9092)
    assert settings.http_address == ("127.0.0.1", 9180)
    assert settings.advertised_address is None
    assert settings.database_url is None
    assert settings.data_dir == Path(".tablewire")
    assert settings.message_max_bytes == 1_048_588
    assert settings.socket_request_max_bytes == 104_857_600
    assert settings.auto_create_topics_enable is True


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_file('"num.partitions" = 2\nlisten = "127.0.0.1:2"\nwriters = 3\n')
    monkeypatch.setenv("TABLEWIRE_LISTEN", "127.0.0.1:3")
    monkeypatch.setenv("TABLEWIRE_NUM_PARTITIONS", "4")
    settings = load_settings({"listen": "127.0.0.1:4", "node_id": None})
    assert settings.listen == "127.0.0.1:4"
    assert settings.num_partitions == 4
    assert settings.writers == 3
    assert settings.node_id == 1


def test_a_name_in_the_file_may_be_quoted_unquoted_or_in_a_table() -> None:
    write_file('"log.level" = "debug"\nnum.partitions = 6\nhttp_listen = "[::1]:80"\n[data]\ndir = "/data"\n')
    settings = load_settings()
    assert (settings.log_level, settings.num_partitions) == ("debug", 6)
    assert settings.http_address == ("::1", 80)
    assert settings.data_dir == Path("/data")


def test_every_setting_can_be_set_in_the_file_and_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {"advertised": "kafka.example:9092", "database_url": "postgresql://localhost/db"}
    defaults = Settings()
    for name in Settings.model_fields:
        value = str(samples.get(name, getattr(defaults, name)))
        write_file(f'"{name.replace("_", ".")}" = "{value}"\n')
        assert str(getattr(load_settings(), name)) == value
    write_file("")
    for name in Settings.model_fields:
        value = str(samples.get(name, getattr(defaults, name)))
        monkeypatch.setenv(f"TABLEWIRE_{name.upper()}", value)
        assert str(getattr(load_settings(), name)) == value


def test_another_file_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("writers = 5")
    monkeypatch.setenv("TABLEWIRE_CONFIG", str(other))
    assert load_settings().writers == 5
    other.unlink()
    with pytest.raises(SettingsError, match=r"TABLEWIRE_CONFIG names .*other\.toml, which is not a file"):
        load_settings()


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_known_one() -> None:
    write_file('"num.partition" = 2')
    with pytest.raises(
        SettingsError,
        match=r"^Unknown key 'num\.partition' in tablewire\.toml; did you mean num\.partitions\?$",
    ):
        load_settings()


def test_an_unknown_variable_is_refused_with_the_nearest_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLEWIRE_LISTN", "x")
    with pytest.raises(SettingsError, match=r"^Unknown variable TABLEWIRE_LISTN; did you mean TABLEWIRE_LISTEN\?$"):
        load_settings()


def test_the_test_suites_own_variables_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLEWIRE_TEST_DATABASE_URL", "postgresql://localhost/x")
    assert load_settings().database_url is None


def test_a_variable_that_is_set_but_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", "")
    assert load_settings().database_url is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listen = ", "not valid TOML"),
        ("listen = 9092", "listen in tablewire.toml: 9092 cannot be used"),
        ('listen = "a:1"\n[x]\ny = 1', "Unknown key 'x.y'"),
        ('"log.level" = "info"\nlog_level = "info"', "sets log.level twice"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text: str, message: str) -> None:
    write_file(text)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("LISTEN", "localhost", "it must be host:port"),
        ("LISTEN", ":9092", "it must be host:port"),
        ("LISTEN", "h:70000", "from 0 to 65535"),
        ("LISTEN", "h:-1", "from 0 to 65535"),
        ("LISTEN", "::1:9092", "brackets"),
        ("ADVERTISED", "h:0", "port 0"),
        ("NUM_PARTITIONS", "0", "greater than or equal to 1"),
        ("NUM_PARTITIONS", "many", "valid integer"),
        ("AUTO_CREATE_TOPICS_ENABLE", "perhaps", "valid boolean"),
        ("LOG_FORMAT", "xml", "'console' or 'json'"),
        ("LOG_RETENTION_MS", "-2", "greater than or equal to -1"),
    ],
)
def test_a_bad_value_is_refused_with_its_place_value_and_reason(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(f"TABLEWIRE_{variable}", value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    sentence = str(refused.value)
    assert sentence.startswith(f"TABLEWIRE_{variable}: {value!r} cannot be used: ")
    assert reason in sentence
    assert "\n" not in sentence


def test_a_bad_flag_is_named_as_the_flag() -> None:
    with pytest.raises(SettingsError, match=r"^--http-listen: 'x' cannot be used: "):
        load_settings({"http_listen": "x"})


def test_the_database_url_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:p@localhost/db\n")
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL_FILE", str(secret))
    assert load_settings().database_url == "postgresql://u:p@localhost/db"
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", "postgresql://localhost/db")
    with pytest.raises(SettingsError, match="not both"):
        load_settings()
    monkeypatch.delenv("TABLEWIRE_DATABASE_URL")
    secret.write_text("")
    with pytest.raises(SettingsError, match="which is empty"):
        load_settings()
    secret.unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings()


def test_no_password_is_ever_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", "mysql://u:hunter2@localhost/db")
    with pytest.raises(SettingsError, match="must start with postgresql://") as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)
    monkeypatch.setenv("TABLEWIRE_DATABASE_URL", "postgresql://u:hunter2@localhost/db")
    assert "hunter2" not in repr(load_settings())


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_settings().writers = 7  # type: ignore[misc]


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "[::1]:9092", "kafka.example.com:1"])
def test_an_address_prints_as_it_was_written(text: str) -> None:
    assert str(parse_address(text)) == text
    assert parse_address("[::1]:1") == Address("::1", 1)


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    names = [name.replace("_", ".") for name in Settings.model_fields]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_workers_take_the_next_ports_and_node_ids() -> None:
    settings = load_settings(
        {"listen": "[::1]:9092", "advertised": "kafka.example:19092", "http_listen": "127.0.0.1:0", "node_id": 5}
    )
    third = settings.for_worker(2)
    assert (third.listen, third.advertised, third.node_id) == ("[::1]:9094", "kafka.example:19094", 7)
    assert third.http_listen == "127.0.0.1:0", "any free port is any free port for each"
    assert settings.for_worker(0) == settings


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"listen": "127.0.0.1:65534"}, "not so many ports from that of listen upwards"),
        ({"advertised": "kafka.example:65535"}, "not so many ports from that of advertised upwards"),
        ({"http_listen": "127.0.0.1:65534"}, "not so many ports from that of http.listen upwards"),
        ({"node_id": 2**31 - 2}, "not so many node ids from node.id upwards"),
    ],
)
def test_workers_need_room_above_the_first(given: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingsError, match=rf"--workers: 3 cannot be used: there are {reason}"):
        load_settings({**given, "workers": 3})
