"""Configuration of topics and brokers: judge overrides, alter them, describe them, and read them typed.

`overrides` is what a topic sets itself; `BrokerConfigs` is what this gateway goes by: values altered while it
runs, and those of its settings under Kafka's names (`broker_values_of`). A topic's value is its override,
else the broker's, else the default of the key.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from gateway.domain.config_keys import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigType,
    split_list,
)
from gateway.domain.idempotency import KeySettings
from gateway.errors import InvalidConfig, InvalidRequest

__all__ = [
    "BrokerConfigs",
    "ConfigOp",
    "ConfigSource",
    "ConfigType",
    "DescribedConfig",
    "OpType",
    "Synonym",
    "TopicSettings",
    "apply_broker",
    "apply_full",
    "apply_incremental",
    "broker_values_of",
    "describe_broker",
    "describe_broker_defaults",
    "describe_topic",
    "parse_op_type",
    "validate_topic_configs",
]

_NO_VALUES: Final[Mapping[str, str]] = MappingProxyType({})


class ConfigSource(enum.IntEnum):
    """`config_source` of a DescribeConfigs response."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class OpType(enum.IntEnum):
    """`config_operation` of an IncrementalAlterConfigs request."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class BrokerConfigs(NamedTuple):
    """A gateway's values by where they come from; the first of the three that has a key decides."""

    dynamic: Mapping[str, str] = _NO_VALUES
    """Altered for this gateway."""
    dynamic_default: Mapping[str, str] = _NO_VALUES
    """Altered for all gateways."""
    static: Mapping[str, str] = _NO_VALUES
    """Of the settings this gateway was started with."""


_DEFAULTS: Final = BrokerConfigs()


@dataclass(frozen=True, slots=True)
class ConfigOp:
    name: str
    op: OpType
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Synonym:
    """One place a value may come from; of a list of them the first decides."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One entry of a DescribeConfigs response; `value` is None where there is none or it is secret."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's effective settings, typed, for the code that acts on them."""

    max_message_bytes: int
    max_decompressed_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    cleanup_policy: frozenset[str]
    retention_ms: int
    """-1: for ever."""
    retention_bytes: int
    """Negative: no bound."""
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    idempotency_keys: KeySettings | None
    """None: records are enqueued whatever key they carry."""

    @classmethod
    def from_overrides(cls, overrides: Mapping[str, str], broker: BrokerConfigs = _DEFAULTS) -> TopicSettings:
        def text(name: str) -> str:
            return _effective(TOPIC_CONFIGS[name], overrides, broker)

        return cls(
            max_message_bytes=int(text("max.message.bytes")),
            max_decompressed_message_bytes=int(text("max.decompressed.message.bytes")),
            log_append_time=text("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(text("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(text("message.timestamp.after.max.ms")),
            cleanup_policy=frozenset(split_list(text("cleanup.policy"))),
            retention_ms=int(text("retention.ms")),
            retention_bytes=int(text("retention.bytes")),
            delete_retention_ms=int(text("delete.retention.ms")),
            min_compaction_lag_ms=int(text("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(text("max.compaction.lag.ms")),
            idempotency_keys=KeySettings(
                key_header=text("idempotency.key.header"),
                tenant_header=text("idempotency.tenant.header"),
                retention_ms=int(text("idempotency.keys.retention.ms")),
            )
            if text("idempotency.keys.enable") == "true"
            else None,
        )


def validate_topic_configs(overrides: Mapping[str, str | None], broker: BrokerConfigs = _DEFAULTS) -> dict[str, str]:
    """Return the overrides as they are to be stored, or raise InvalidConfig for the first that cannot be."""
    if nulls := [name for name, value in overrides.items() if value is None]:
        raise InvalidConfig(f"Null value not supported for topic configs: {_names(nulls)}")
    stored = {name: _topic_key(name).normalise(value) for name, value in overrides.items() if value is not None}
    settings = TopicSettings.from_overrides(stored, broker)
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({settings.min_compaction_lag_ms})"
            f" > max.compaction.lag.ms ({settings.max_compaction_lag_ms})"
        )
    return stored


def apply_incremental(
    overrides: Mapping[str, str], ops: Sequence[ConfigOp], broker: BrokerConfigs = _DEFAULTS
) -> dict[str, str]:
    """Return the topic's overrides after IncrementalAlterConfigs: all of `ops` or none."""
    _require_distinct(op.name for op in ops)
    _require_values(op.name for op in ops if op.op is not OpType.DELETE and op.value is None)
    changed: dict[str, str | None] = dict(overrides)
    for op in ops:
        if op.op is OpType.DELETE:
            # As in Kafka, deleting what is not set, or not even known, is no mistake.
            changed.pop(op.name, None)
        elif op.op is OpType.SET:
            changed[op.name] = op.value
        else:
            key = TOPIC_CONFIGS.get(op.name)
            changed[op.name] = _alter_list(op, key, _effective(key, overrides, broker) if key else "")
    return validate_topic_configs(changed, broker)


def apply_full(configs: Sequence[tuple[str, str | None]], broker: BrokerConfigs = _DEFAULTS) -> dict[str, str]:
    """Return the overrides after the older AlterConfigs, which replaces all of them by `configs`."""
    _require_distinct(name for name, _ in configs)
    _require_values(name for name, value in configs if value is None)
    return validate_topic_configs(dict(configs), broker)


def apply_broker(values: Mapping[str, str], ops: Sequence[ConfigOp], *, replaces_all: bool) -> dict[str, str]:
    """Return dynamic values of one broker, or of all brokers, after an alteration: all of `ops` or none.

    The older AlterConfigs replaces all values and gives each entry as a SET.
    """
    _require_distinct(op.name for op in ops)
    changing = [op for op in ops if op.op is not OpType.DELETE]
    _require_values(op.name for op in changing if op.value is None)
    named = {op.name for op in ops}
    kept = {name: value for name, value in values.items() if not replaces_all and name not in named}
    given: dict[str, str] = {}
    for op in changing:
        if op.op is OpType.SET:
            given[op.name] = op.value or ""
        else:
            key = BROKER_CONFIGS.get(op.name)
            default = (key.default if key else None) or ""
            given[op.name] = _alter_list(op, key, values.get(op.name, default))
    if unknown := [name for name in given if name not in BROKER_CONFIGS]:
        raise InvalidConfig(f"Unknown broker config name: {_names(unknown)}")
    if fixed := [name for name in given if BROKER_CONFIGS[name].read_only]:
        raise InvalidRequest(
            f"Cannot update these configs dynamically: [{_names(fixed)}]."
            " They are read from tablewire.toml and the environment when the gateway starts."
        )
    try:
        return {**kept, **{name: BROKER_CONFIGS[name].normalise(value) for name, value in given.items()}}
    except InvalidConfig as error:
        # Kafka's code for a broker's bad value differs from a topic's (KAFKA-13609).
        raise InvalidRequest(error.message) from None


def parse_op_type(code: int) -> OpType:
    try:
        return OpType(code)
    except ValueError:
        raise InvalidRequest(f"Unknown config operation {code}: expected 0 to 3.") from None


def describe_topic(
    overrides: Mapping[str, str],
    broker: BrokerConfigs = _DEFAULTS,
    keys: Collection[str] | None = None,
) -> list[DescribedConfig]:
    """Describe a topic's configuration; `keys` narrows it, and an unknown one among them is passed over."""
    return [
        _describe(key, _topic_chain(key, overrides, broker))
        for key in TOPIC_CONFIGS.values()
        if keys is None or key.name in keys
    ]


def describe_broker(broker: BrokerConfigs, keys: Collection[str] | None = None) -> list[DescribedConfig]:
    """Describe a broker's configuration. Only known keys are shown, so no secret slips through."""
    return [
        _describe(key, _broker_chain([key.name], broker))
        for key in BROKER_CONFIGS.values()
        if keys is None or key.name in keys
    ]


def describe_broker_defaults(values: Mapping[str, str], keys: Collection[str] | None = None) -> list[DescribedConfig]:
    """Describe what was altered for all brokers, and nothing else."""
    return [
        _describe(key, (Synonym(key.name, values[key.name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),))
        for key in BROKER_CONFIGS.values()
        if key.name in values and (keys is None or key.name in keys)
    ]


def broker_values_of(settings: Mapping[str, object], *, listen: str, advertised: str) -> dict[str, str]:
    """Turn settings keyed by Python name into broker values under Kafka's names.

    `listen` and `advertised` are `host:port`, after port 0 has become a real one. Settings that are not
    among the broker keys (the database's URL, say) are left out.
    """
    known = {
        name: _render(value)
        for setting, value in settings.items()
        if value is not None and (name := setting.replace("_", ".")) in BROKER_CONFIGS
    }
    if "node.id" in known:
        known["broker.id"] = known["node.id"]
    known["listeners"] = f"PLAINTEXT://{listen}"
    known["advertised.listeners"] = f"PLAINTEXT://{advertised}"
    return known


def _topic_key(name: str) -> ConfigKey:
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise InvalidConfig(f"Unknown topic config name: {_names([name])}")
    return key


def _require_distinct(names: Iterable[str]) -> None:
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise InvalidRequest(f"Error due to duplicate config keys: {_names(repeated)}")


def _require_values(names_without: Iterable[str]) -> None:
    if nulls := list(names_without):
        raise InvalidRequest(f"Null value not supported for: {_names(nulls)}")


def _alter_list(op: ConfigOp, key: ConfigKey | None, value: str) -> str:
    """The list `value` of `key` after an APPEND or a SUBTRACT."""
    if key is None or key.type is not ConfigType.LIST:
        raise InvalidConfig(f"Can't {op.op.name} to key {_names([op.name])} because its type is not LIST.")
    present, given = split_list(value), split_list(op.value or "")
    if op.op is OpType.SUBTRACT:
        return ",".join(item for item in present if item not in given)
    if not given:
        raise InvalidConfig(f"Configuration '{key.name}' values must not be empty.")
    return ",".join([*present, *given])


def _topic_chain(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerConfigs) -> tuple[Synonym, ...]:
    inherited = _broker_chain([synonym.name for synonym in key.synonyms], broker)
    if key.name not in overrides:
        return inherited
    return (Synonym(key.name, overrides[key.name], ConfigSource.DYNAMIC_TOPIC_CONFIG), *inherited)


def _broker_chain(names: Sequence[str], broker: BrokerConfigs) -> tuple[Synonym, ...]:
    """What was altered, what the settings say, finest unit first, then the defaults of what they leave out.

    A setting equal to the default counts as the default: a mapping cannot tell who chose it.
    """
    links = [
        Synonym(name, values[name], source)
        for source, values in (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, broker.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.dynamic_default),
        )
        for name in names
        if name in values
    ]
    for name in sorted(names, key=lambda name: name not in broker.static):
        default = BROKER_CONFIGS[name].default
        value = broker.static.get(name, default)
        if value is not None and value != default:
            links.append(Synonym(name, value, ConfigSource.STATIC_BROKER_CONFIG))
        if default is not None:
            links.append(Synonym(name, default, ConfigSource.DEFAULT_CONFIG))
    return tuple(links)


def _effective(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerConfigs) -> str:
    value = _resolve(key, _topic_chain(key, overrides, broker))
    assert value is not None, f"the topic key {key.name} has no default"
    return value


def _resolve(key: ConfigKey, chain: Sequence[Synonym]) -> str | None:
    """The value the first link stands for, in the unit of `key`."""
    if not chain:
        return key.default
    first = chain[0]
    if first.value is None or first.source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
        return first.value
    factors = {synonym.name: synonym for synonym in key.synonyms}
    return factors[first.name].convert(first.value) if first.name in factors else first.value


def _describe(key: ConfigKey, chain: tuple[Synonym, ...]) -> DescribedConfig:
    secret = key.is_sensitive
    return DescribedConfig(
        name=key.name,
        value=None if secret else _resolve(key, chain),
        source=chain[0].source if chain else ConfigSource.DEFAULT_CONFIG,
        read_only=key.read_only,
        is_sensitive=secret,
        type=key.type,
        documentation=key.documentation,
        synonyms=tuple(Synonym(link.name, None, link.source) for link in chain) if secret else chain,
    )


def _render(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return str(value)


def _names(names: Iterable[str]) -> str:
    """Names for an error text, which must not grow with the mistake."""
    text = ", ".join(names)
    return text if len(text) <= 500 else text[:500] + "…"
