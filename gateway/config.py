"""Settings: command line over `TABLEWIRE_…` over `tablewire.toml` over the defaults below.

A setting has one name in three spellings: `num_partitions` in Python, `num.partitions` in the file (Kafka's
own name where Kafka has one), `TABLEWIRE_NUM_PARTITIONS` in the environment. An unknown name is refused.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

__all__ = ["Address", "Settings", "SettingsError", "load_settings", "parse_address"]

ENV_PREFIX = "TABLEWIRE_"
CONFIG_VARIABLE = "TABLEWIRE_CONFIG"
DATABASE_URL_FILE_VARIABLE = "TABLEWIRE_DATABASE_URL_FILE"
TEST_PREFIX = "TABLEWIRE_TEST_"
"""Read by the test suite only; a gateway started from a test must not trip over them."""

MIB = 1024 * 1024
MAX_PORT = 65535
MAX_NODE_ID = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Field(ge=1024, le=2**40)]
MessageBytes = Annotated[int, Field(ge=1024, le=2**31 - 1)]
Milliseconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
Unlimited = Annotated[int, Field(ge=-1, le=2**63 - 1)]


class SettingsError(Exception):
    """A setting is unknown or its value cannot be used: one clear sentence for the user."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Split `host:port` (an IPv6 host in brackets); ValueError says what is wrong."""
    host, colon, port_text = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 host is written in brackets, as in [::1]:9092")
    if not colon or not host:
        raise ValueError("it must be host:port, as in 127.0.0.1:9092")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > MAX_PORT:
        raise ValueError(f"its port must be a number from 0 to 65535, not {port_text!r}")
    return Address(host, int(port_text))


class Settings(BaseSettings):
    """Everything that can be set, flat and frozen. Made by `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    # Where it listens and stores.
    listen: str = "127.0.0.1:9092"
    advertised: str | None = None
    http_listen: str = "127.0.0.1:9180"
    database_url: str | None = Field(default=None, repr=False)
    data_dir: Path = Path(".tablewire")
    node_id: Annotated[int, Field(ge=0, le=MAX_NODE_ID)] = 1
    migrate: bool = False
    workers: Annotated[int, Field(ge=1, le=64)] = 1

    # Topics: Kafka's names and defaults.
    auto_create_topics_enable: bool = True
    delete_topic_enable: bool = True
    num_partitions: Annotated[int, Field(ge=1, le=10_000)] = 1
    default_replication_factor: Annotated[int, Field(ge=1, le=32767)] = 1
    message_max_bytes: MessageBytes = 1_048_588
    max_decompressed_message_bytes: MessageBytes = 64 * MIB
    log_retention_ms: Unlimited = 7 * 24 * 3600 * 1000
    log_retention_bytes: Unlimited = -1
    log_cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact"] = "delete"
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"

    # Producers.
    producer_id_expiration_ms: Milliseconds = 24 * 3600 * 1000
    partition_max_producers: Count = 10_000
    transaction_max_timeout_ms: Milliseconds = 900_000
    transactional_id_expiration_ms: Milliseconds = 7 * 24 * 3600 * 1000
    max_open_transactions_per_client: Count = 10_000

    # Groups: Kafka's names and defaults.
    group_min_session_timeout_ms: Milliseconds = 6_000
    group_max_session_timeout_ms: Milliseconds = 1_800_000
    group_initial_rebalance_delay_ms: Annotated[int, Field(ge=0, le=2**31 - 1)] = 3_000
    group_max_size: Count = 2**31 - 1
    group_consumer_min_session_timeout_ms: Milliseconds = 45_000
    group_consumer_max_session_timeout_ms: Milliseconds = 60_000
    group_consumer_session_timeout_ms: Milliseconds = 45_000
    group_consumer_min_heartbeat_interval_ms: Milliseconds = 5_000
    group_consumer_max_heartbeat_interval_ms: Milliseconds = 15_000
    group_consumer_heartbeat_interval_ms: Milliseconds = 5_000
    group_consumer_max_size: Count = 2**31 - 1
    group_consumer_assignors: str = "uniform,range"
    offset_metadata_max_bytes: Annotated[int, Field(ge=0, le=2**31 - 1)] = 4_096
    offsets_retention_minutes: Count = 10_080
    offsets_retention_check_interval_ms: Milliseconds = 600_000

    # Connections: what one client and all clients together may take.
    socket_request_max_bytes: MessageBytes = 100 * MIB
    queued_max_request_bytes: Bytes = 256 * MIB
    connection_max_inflight_requests: Count = 64
    connection_max_inflight_bytes: Bytes = 64 * MIB
    connections_max_idle_ms: Milliseconds = 600_000
    frame_timeout_ms: Milliseconds = 30_000
    max_connections: Count = 2_000
    max_connections_per_ip: Count = 2_000
    drain_timeout_ms: Milliseconds = 10_000

    # Other gateways on the same database.
    broker_heartbeat_interval_ms: Annotated[int, Field(ge=10, le=60_000)] = 1_000
    broker_session_timeout_ms: Annotated[int, Field(ge=100, le=600_000, validate_default=True)] = 5_000

    # The database: connections, group commit, reads.
    writers: Annotated[int, Field(ge=1, le=64)] = 2
    writer_batch_max_bytes: Bytes = 16 * MIB
    read_connections: Annotated[int, Field(ge=1, le=256)] = 4
    tail_cache_bytes: Annotated[int, Field(ge=0, le=2**40)] = 256 * MIB
    fetch_read_ahead_bytes: Annotated[int, Field(ge=0, le=2**40)] = 64 * MIB
    fetch_poll_interval_ms: Annotated[int, Field(ge=1, le=60_000)] = 100
    database_timeout_ms: Milliseconds = 10_000
    prepared_statements: bool = True

    # Logs.
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("listen", "http_listen", "advertised")
    @classmethod
    def _is_host_and_port(cls, text: str | None) -> str | None:
        return None if text is None else str(parse_address(text))

    @field_validator("advertised")
    @classmethod
    def _can_be_connected_to(cls, text: str | None) -> str | None:
        if text is not None and parse_address(text).port == 0:
            raise ValueError("clients cannot connect to port 0")
        return text

    @field_validator("workers")
    @classmethod
    def _leaves_room_above(cls, workers: int, info: ValidationInfo) -> int:
        """Each worker takes the next port and the next node id."""
        for name in ("listen", "advertised", "http_listen"):
            text = info.data.get(name)
            if text is not None and parse_address(text).port + workers - 1 > MAX_PORT:
                raise ValueError(f"there are not so many ports from that of {_kafka_name(name)} upwards")
        if info.data.get("node_id", 0) + workers - 1 > MAX_NODE_ID:
            raise ValueError("there are not so many node ids from node.id upwards")
        return workers

    @field_validator("broker_session_timeout_ms")
    @classmethod
    def _outlasts_two_heartbeats(cls, timeout_ms: int, info: ValidationInfo) -> int:
        interval_ms = info.data.get("broker_heartbeat_interval_ms", 0)
        if timeout_ms < 2 * interval_ms:
            raise ValueError(f"it must be at least twice broker.heartbeat.interval.ms, which is {interval_ms}")
        return timeout_ms

    @field_validator("group_consumer_session_timeout_ms", "group_consumer_heartbeat_interval_ms")
    @classmethod
    def _is_within_its_bounds(cls, value: int, info: ValidationInfo) -> int:
        kind = (info.field_name or "").removeprefix("group_consumer_")
        low = info.data.get(f"group_consumer_min_{kind}", value)
        high = info.data.get(f"group_consumer_max_{kind}", value)
        if not low <= value <= high:
            dotted = kind.replace("_", ".")
            raise ValueError(f"group.consumer.min.{dotted} and group.consumer.max.{dotted} allow {low} to {high}")
        session_timeout_ms = info.data.get("group_consumer_session_timeout_ms", 2**31)
        if kind == "heartbeat_interval_ms" and value >= session_timeout_ms:
            raise ValueError(f"it must be below group.consumer.session.timeout.ms, which is {session_timeout_ms}")
        return value

    @field_validator("group_consumer_assignors")
    @classmethod
    def _names_assignors(cls, text: str) -> str:
        names = [name.strip() for name in text.split(",")]
        if len(set(names)) != len(names) or not set(names) <= {"uniform", "range"}:
            raise ValueError("it must be uniform, range, or both separated by a comma")
        return ",".join(names)

    @field_validator("database_url")
    @classmethod
    def _is_a_postgresql_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("it must start with postgresql://")
        return url

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """The server-side assignors, the default one first."""
        return tuple(self.group_consumer_assignors.split(","))

    @property
    def listen_address(self) -> Address:
        return parse_address(self.listen)

    @property
    def advertised_address(self) -> Address | None:
        """What clients are told to connect to; None: wherever the gateway listens."""
        return None if self.advertised is None else parse_address(self.advertised)

    @property
    def http_address(self) -> Address:
        return parse_address(self.http_listen)

    def for_worker(self, index: int) -> Settings:
        """As the worker `index` of several has them: the next ports and the next node id; port 0 stays any free one."""

        def moved(text: str | None) -> str | None:
            if text is None or (address := parse_address(text)).port == 0:
                return text
            return str(address._replace(port=address.port + index))

        return self.model_copy(
            update={
                "listen": moved(self.listen),
                "advertised": moved(self.advertised),
                "http_listen": moved(self.http_listen),
                "node_id": self.node_id + index,
            }
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _FileSource(settings_cls))


class _FileSource(PydanticBaseSettingsSource):
    """The values of `tablewire.toml`, under Python names."""

    def __call__(self) -> dict[str, Any]:
        file = _config_file()
        return {} if file is None else _read_file(file)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the file is read as a whole")


def load_settings(command_line: Mapping[str, Any] | None = None) -> Settings:
    """Read all sources. `command_line` is keyed by Python name; None there means not given."""
    _refuse_unknown_variables(os.environ)
    given: dict[str, Any] = {name: value for name, value in (command_line or {}).items() if value is not None}
    secret = _read_database_url_file(os.environ)
    first: dict[str, Any] = given if secret is None else {"database_url": secret, **given}
    try:
        return Settings(**first)
    except ValidationError as invalid:
        error = invalid.errors(include_input=True, include_url=False)[0]
        name = str(error["loc"][0])
        if name in given:
            place = f"--{name.replace('_', '-')}"
        elif os.environ.get(_variable(name)):
            place = _variable(name)
        elif name == "database_url" and secret is not None:
            place = DATABASE_URL_FILE_VARIABLE
        elif (file := _config_file()) is not None and name in _read_file(file):
            place = f"{_kafka_name(name)} in {file}"
        else:
            place = f"{_kafka_name(name)}, by default"
        # The URL carries a password, so its value is never repeated.
        value = "the value" if name == "database_url" else repr(error["input"])
        raise SettingsError(f"{place}: {value} cannot be used: {_reason(error)}.") from None


def _config_file() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise SettingsError(f"{CONFIG_VARIABLE} names {named}, which is not a file.")
        return Path(named)
    default = Path("tablewire.toml")
    return default if default.is_file() else None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except tomllib.TOMLDecodeError as invalid:
        raise SettingsError(f"{file} is not valid TOML: {invalid} (a dotted name may need quotes).") from None
    except (OSError, UnicodeDecodeError) as unreadable:
        raise SettingsError(f"{file} cannot be read: {unreadable}.") from None
    values: dict[str, Any] = {}
    for key, value in _flatten(document):
        name = key.replace(".", "_")
        if name not in Settings.model_fields:
            known = [_kafka_name(field) for field in Settings.model_fields]
            raise SettingsError(_unknown(f"key {key!r} in {file}", _nearest(_kafka_name(name), known)))
        if name in values:
            raise SettingsError(f"{file} sets {_kafka_name(name)} twice.")
        values[name] = value
    return values


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Unquoted `log.level = "info"` is a table in a table to TOML, and one name to us."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = [*map(_variable, Settings.model_fields), CONFIG_VARIABLE, DATABASE_URL_FILE_VARIABLE]
    for variable in environment:
        if variable.startswith(ENV_PREFIX) and not variable.startswith(TEST_PREFIX) and variable not in known:
            raise SettingsError(_unknown(f"variable {variable}", _nearest(variable, known)))


def _read_database_url_file(environment: Mapping[str, str]) -> str | None:
    path = environment.get(DATABASE_URL_FILE_VARIABLE)
    if not path:
        return None
    if environment.get(_variable("database_url")):
        raise SettingsError(f"Set {_variable('database_url')} or {DATABASE_URL_FILE_VARIABLE}, not both.")
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise SettingsError(f"{DATABASE_URL_FILE_VARIABLE} cannot be read: {unreadable}.") from None
    if not secret:
        raise SettingsError(f"{DATABASE_URL_FILE_VARIABLE} names {path}, which is empty.")
    return secret


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _kafka_name(name: str) -> str:
    return name.replace("_", ".")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.0)), None)


def _unknown(what: str, nearest: str | None) -> str:
    return f"Unknown {what}" + (f"; did you mean {nearest}?" if nearest else ".")


def _reason(error: Mapping[str, Any]) -> str:
    """Pydantic's own sentence, or that of the validators above without pydantic's prefix."""
    raised = error.get("ctx", {}).get("error")
    return str(raised) if raised is not None else error["msg"][:1].lower() + error["msg"][1:]
