"""Topic and broker configuration: the values, codes and texts a Kafka broker answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Settings
from gateway.domain.config_keys import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigKey
from gateway.domain.configs import (
    BrokerConfigs,
    ConfigOp,
    ConfigSource,
    ConfigType,
    DescribedConfig,
    OpType,
    Synonym,
    TopicSettings,
    apply_broker,
    apply_full,
    apply_incremental,
    broker_values_of,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
    parse_op_type,
    validate_topic_configs,
)
from gateway.domain.idempotency import KeySettings
from gateway.errors import ErrorCode, InvalidConfig, InvalidRequest

KAFKA_4_TOPIC_KEYS = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.decompressed.message.bytes",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]

OWN_TOPIC_KEYS = [
    "delivery.ack.timeout.ms",
    "delivery.backoff.max.ms",
    "delivery.backoff.ms",
    "delivery.max.attempts",
    "delivery.max.unsettled",
    "delivery.ordering",
    "idempotency.key.header",
    "idempotency.keys.enable",
    "idempotency.keys.retention.ms",
    "idempotency.tenant.header",
]

some_overrides = st.fixed_dictionaries(
    {},
    optional={
        "retention.ms": st.integers(-1, 2**63 - 1).map(str),
        "max.message.bytes": st.integers(0, 2**31 - 1).map(str),
        "cleanup.policy": st.lists(st.sampled_from(["compact", "delete"]), unique=True).map(",".join),
        "preallocate": st.sampled_from(["true", "false"]),
        "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        "min.cleanable.dirty.ratio": st.floats(0, 1).map(repr),
    },
)


def default_broker() -> BrokerConfigs:
    fields = {name: field.get_default() for name, field in Settings.model_fields.items()}
    return static(broker_values_of(fields, listen="127.0.0.1:9092", advertised="gateway.test:9092"))


def static(values: dict[str, str]) -> BrokerConfigs:
    return BrokerConfigs(static=values)


def described_topic(
    name: str, overrides: dict[str, str] | None = None, broker: BrokerConfigs | None = None
) -> DescribedConfig:
    (found,) = describe_topic(overrides or {}, broker or BrokerConfigs(), keys=[name])
    return found


def set_(name: str, value: str | None) -> ConfigOp:
    return ConfigOp(name, OpType.SET, value)


def delete(name: str) -> ConfigOp:
    return ConfigOp(name, OpType.DELETE)


def append(name: str, value: str | None) -> ConfigOp:
    return ConfigOp(name, OpType.APPEND, value)


def subtract(name: str, value: str | None) -> ConfigOp:
    return ConfigOp(name, OpType.SUBTRACT, value)


# The tables


def test_every_topic_key_of_kafka_4_is_known_and_a_few_of_our_own() -> None:
    assert sorted(TOPIC_CONFIGS) == sorted([*KAFKA_4_TOPIC_KEYS, *OWN_TOPIC_KEYS])


@pytest.mark.parametrize("name", OWN_TOPIC_KEYS)
def test_a_key_of_our_own_says_that_it_is_none_of_kafkas(name: str) -> None:
    assert TOPIC_CONFIGS[name].documentation.endswith("Not a key of Kafka's.")


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_a_topic_key_has_a_default_that_is_itself_a_stored_value(name: str) -> None:
    default = TOPIC_CONFIGS[name].default
    assert default is not None
    assert validate_topic_configs({name: default}) == {name: default}


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_a_topic_key_and_its_broker_synonyms_have_the_same_default(name: str) -> None:
    assert described_topic(name).value == TOPIC_CONFIGS[name].default


@pytest.mark.parametrize("key", [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()], ids=lambda key: key.name)
def test_documentation_says_which_keys_do_nothing_here(key: ConfigKey) -> None:
    assert key.meaning.endswith(".")
    assert key.documentation.endswith("only: it has no effect here.") == (not key.acts)


def test_every_synonym_is_a_broker_key() -> None:
    synonyms = {synonym.name for key in TOPIC_CONFIGS.values() for synonym in key.synonyms}
    assert synonyms <= set(BROKER_CONFIGS)


# Values


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("retention.ms", " 5 ", "5"),
        ("retention.ms", "+5", "5"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", str(2**63 - 1), str(2**63 - 1)),
        ("retention.bytes", "-5", "-5"),
        ("max.message.bytes", str(2**31 - 1), str(2**31 - 1)),
        ("preallocate", " TRUE ", "true"),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "delete,delete", "delete"),
        ("cleanup.policy", "", ""),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", ".25", "0.25"),
        ("compression.gzip.level", "-1", "-1"),
        ("compression.zstd.level", "-131072", "-131072"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1, 1:1", "0:1,1:1"),
        ("remote.storage.enable", "false", "false"),
    ],
)
def test_a_value_is_stored_as_kafka_shows_it(name: str, value: str, stored: str) -> None:
    assert validate_topic_configs({name: value}) == {name: stored}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "0x10", "Not a number of type LONG"),
        ("retention.ms", "1_0", "Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("retention.ms", str(2**63), "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("max.message.bytes", "-1", "Value must be at least 0"),
        ("max.message.bytes", str(2**31), "Not a number of type INT"),
        ("segment.bytes", "14", "Value must be at least 1048576"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "1e999", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "-1e-9", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "NaN", "Not a number of type DOUBLE"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("cleanup.policy", "x", "String must be one of: compact, delete"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        (
            "compression.type",
            "none",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("follower.replication.throttled.replicas", "x", "Value must be '*' or a list of replicas"),
        ("remote.storage.enable", "true", "There is no tiered storage"),
    ],
)
def test_a_value_that_kafka_refuses_is_refused_with_the_rule(name: str, value: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        validate_topic_configs({name: value})
    assert refusal.value.message.startswith(f"Invalid value {value} for configuration {name}: {reason}")
    assert refusal.value.code is ErrorCode.invalid_config


@pytest.mark.parametrize("value", ["compact,,delete", ",", "compact,"])
def test_a_list_has_no_empty_items(value: str) -> None:
    with pytest.raises(InvalidConfig, match=r"'cleanup\.policy' values must not be empty"):
        validate_topic_configs({"cleanup.policy": value})


@pytest.mark.parametrize("name", ["nope", "", "message.format.version", "log.retention.ms", "Retention.ms"])
def test_an_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^Unknown topic config name: {name}$"):
        validate_topic_configs({name: "1"})


def test_a_key_without_a_value_is_refused_before_anything_else() -> None:
    with pytest.raises(InvalidConfig, match="Null value not supported for topic configs: nada"):
        validate_topic_configs({"nope": "10", "nada": None})


def test_the_compaction_lags_must_not_cross() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(10\) > max\.compaction\.lag\.ms \(5\)"):
        validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_the_compaction_lags_must_not_cross_the_brokers() -> None:
    validate_topic_configs({"min.compaction.lag.ms": "10"})
    with pytest.raises(InvalidConfig, match="conflict"):
        validate_topic_configs({"min.compaction.lag.ms": "10"}, static({"log.cleaner.max.compaction.lag.ms": "5"}))


def test_a_refusal_stays_short_whatever_was_sent() -> None:
    for overrides in ({"retention.ms": "9" * 1_000_000}, {"n" * 1_000_000: "1"}):
        with pytest.raises(InvalidConfig) as refusal:
            validate_topic_configs(overrides)
        assert len(refusal.value.message) < 1_000


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text() | st.integers().map(str) | st.floats().map(repr))
def test_any_text_is_either_stored_in_a_stable_form_or_refused(name: str, value: str) -> None:
    try:
        stored = validate_topic_configs({name: value})
    except InvalidConfig:
        return
    assert validate_topic_configs(stored) == stored
    assert "\0" not in stored[name]


@given(some_overrides)
def test_valid_overrides_are_stored_as_they_are(overrides: dict[str, str]) -> None:
    assert validate_topic_configs(overrides) == overrides


# Typed settings


def test_a_topic_without_overrides_has_kafkas_defaults_and_a_bound_on_expansion() -> None:
    assert TopicSettings.from_overrides({}) == TopicSettings(
        max_message_bytes=1_048_588,
        max_decompressed_message_bytes=64 * 1024 * 1024,
        log_append_time=False,
        timestamp_before_max_ms=2**63 - 1,
        timestamp_after_max_ms=3_600_000,
        cleanup_policy=frozenset({"delete"}),
        retention_ms=604_800_000,
        retention_bytes=-1,
        delete_retention_ms=86_400_000,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=2**63 - 1,
        idempotency_keys=None,
    )


def test_idempotency_keys_are_off_unless_a_topic_asks_for_them() -> None:
    assert TopicSettings.from_overrides({"idempotency.key.header": "id"}).idempotency_keys is None
    overrides = {"idempotency.keys.enable": "true", "idempotency.key.header": "id"}
    assert TopicSettings.from_overrides(overrides).idempotency_keys == KeySettings("id", "tenant-id", 604_800_000)


def test_the_topics_value_wins_over_the_brokers_and_that_over_the_default() -> None:
    broker = static({"message.max.bytes": "2000", "log.message.timestamp.type": "LogAppendTime"})
    settings = TopicSettings.from_overrides({"max.message.bytes": "100"}, broker)
    assert (settings.max_message_bytes, settings.log_append_time) == (100, True)
    assert TopicSettings.from_overrides({}, broker).max_message_bytes == 2000


@pytest.mark.parametrize(
    ("broker_values", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.ms": "4", "log.retention.minutes": "3", "log.retention.hours": "2"}, 4),
        ({"log.retention.ms": "604800000", "log.retention.hours": "2"}, 604_800_000),
    ],
)
def test_the_finest_unit_of_the_brokers_retention_decides(broker_values: dict[str, str], retention_ms: int) -> None:
    assert TopicSettings.from_overrides({}, static(broker_values)).retention_ms == retention_ms


def test_both_and_neither_cleanup_policies_are_possible() -> None:
    assert TopicSettings.from_overrides({"cleanup.policy": "compact,delete"}).cleanup_policy == {
        "compact",
        "delete",
    }
    assert TopicSettings.from_overrides({"cleanup.policy": ""}).cleanup_policy == frozenset()


# Alterations


def test_operations_set_and_delete_overrides_and_leave_the_others() -> None:
    before = {"retention.ms": "1", "segment.ms": "2", "preallocate": "true"}
    after = apply_incremental(before, [set_("retention.ms", " 7 "), delete("segment.ms")])
    assert after == {"retention.ms": "7", "preallocate": "true"}
    assert before == {"retention.ms": "1", "segment.ms": "2", "preallocate": "true"}


def test_deleting_what_is_not_set_or_not_known_changes_nothing() -> None:
    assert apply_incremental({"retention.ms": "1"}, [delete("segment.ms"), delete("nope")]) == {"retention.ms": "1"}


def test_a_value_equal_to_the_default_is_still_an_override() -> None:
    assert apply_incremental({}, [set_("retention.ms", "604800000")]) == {"retention.ms": "604800000"}


@pytest.mark.parametrize(
    ("before", "op", "after"),
    [
        (None, append("cleanup.policy", "compact"), "delete,compact"),
        (None, append("cleanup.policy", "delete,compact"), "delete,compact"),
        ("delete,compact", append("cleanup.policy", "compact"), "delete,compact"),
        ("", append("cleanup.policy", "delete"), "delete"),
        ("delete,compact", subtract("cleanup.policy", "delete,other"), "compact"),
        ("compact", subtract("cleanup.policy", " compact "), ""),
        ("compact", subtract("cleanup.policy", ""), "compact"),
        (None, subtract("cleanup.policy", "delete"), ""),
    ],
)
def test_lists_grow_and_shrink_from_the_effective_value(before: str | None, op: ConfigOp, after: str) -> None:
    overrides = {} if before is None else {"cleanup.policy": before}
    assert apply_incremental(overrides, [op]) == {"cleanup.policy": after}


def test_a_list_grows_from_the_brokers_value() -> None:
    broker = static({"log.cleanup.policy": "compact"})
    assert apply_incremental({}, [append("cleanup.policy", "delete")], broker) == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (append("retention.ms", "5"), r"Can't APPEND to key retention\.ms because its type is not LIST"),
        (subtract("retention.ms", "5"), r"Can't SUBTRACT to key retention\.ms because its type is not LIST"),
        (append("nope", "5"), "Can't APPEND to key nope"),
        (append("cleanup.policy", "bad"), "String must be one of: compact, delete"),
        (append("cleanup.policy", ""), "values must not be empty"),
        (append("cleanup.policy", "compact,,delete"), "values must not be empty"),
        (set_("nope", "5"), "Unknown topic config name: nope"),
        (set_("segment.ms", "-5"), "Value must be at least 1"),
    ],
)
def test_an_operation_that_kafka_refuses_is_an_invalid_config(op: ConfigOp, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        apply_incremental({}, [set_("retention.ms", "5"), op] if op.name != "retention.ms" else [op])


def test_a_key_named_twice_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match=r"duplicate config keys: retention\.ms"):
        apply_incremental({}, [set_("retention.ms", "5"), delete("retention.ms")])


@pytest.mark.parametrize("op", [set_("retention.ms", None), append("cleanup.policy", None)])
def test_an_operation_without_its_value_is_an_invalid_request(op: ConfigOp) -> None:
    with pytest.raises(InvalidRequest, match=f"Null value not supported for: {op.name}"):
        apply_incremental({}, [op])


def test_an_operation_code_that_does_not_exist_is_an_invalid_request() -> None:
    assert [parse_op_type(code) for code in range(4)] == list(OpType)
    with pytest.raises(InvalidRequest, match="Unknown config operation 9"):
        parse_op_type(9)


@given(some_overrides, some_overrides)
def test_setting_then_deleting_restores_what_was_there(before: dict[str, str], other: dict[str, str]) -> None:
    new = {name: value for name, value in other.items() if name not in before}
    changed = apply_incremental(before, [set_(name, value) for name, value in new.items()])
    assert changed == {**before, **new}
    assert apply_incremental(changed, [delete(name) for name in new]) == before


items = st.lists(st.sampled_from(["compact", "delete"]))


@given(st.lists(st.sampled_from(["compact", "delete"]), unique=True), items)
def test_appending_and_subtracting_act_as_sets_that_keep_their_order(before: list[str], given_: list[str]) -> None:
    overrides = {"cleanup.policy": ",".join(before)}
    less = apply_incremental(overrides, [subtract("cleanup.policy", ",".join(given_))])
    assert less["cleanup.policy"] == ",".join(item for item in before if item not in given_)
    if given_:
        more = apply_incremental(overrides, [append("cleanup.policy", ",".join(given_))])
        assert more["cleanup.policy"] == ",".join(dict.fromkeys(before + given_))


def test_the_older_request_replaces_all_overrides() -> None:
    assert apply_full([("retention.ms", " 7 ")]) == {"retention.ms": "7"}
    assert apply_full([]) == {}


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ([("retention.ms", None)], InvalidRequest),
        ([("retention.ms", "5"), ("retention.ms", "5")], InvalidRequest),
        ([("nope", "5")], InvalidConfig),
        ([("retention.ms", "x")], InvalidConfig),
    ],
)
def test_the_older_request_is_judged_like_the_newer(
    configs: list[tuple[str, str | None]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        apply_full(configs)


@pytest.mark.parametrize(
    ("ops", "after"),
    [
        ([], {"log.retention.ms": "1"}),
        ([set_("message.max.bytes", " 7 ")], {"log.retention.ms": "1", "message.max.bytes": "7"}),
        ([set_("log.retention.ms", "2")], {"log.retention.ms": "2"}),
        ([delete("log.retention.ms")], {}),
        ([delete("num.partitions"), delete("nope")], {"log.retention.ms": "1"}),
        (
            [append("log.cleanup.policy", "compact")],
            {"log.retention.ms": "1", "log.cleanup.policy": "delete,compact"},
        ),
        ([subtract("log.cleanup.policy", "delete")], {"log.retention.ms": "1", "log.cleanup.policy": ""}),
    ],
)
def test_a_brokers_dynamic_configs_are_altered(ops: list[ConfigOp], after: dict[str, str]) -> None:
    assert apply_broker({"log.retention.ms": "1"}, ops, replaces_all=False) == after


def test_the_older_request_replaces_all_of_a_brokers_dynamic_configs() -> None:
    values = {"log.retention.ms": "1"}
    assert apply_broker(values, [set_("message.max.bytes", "7")], replaces_all=True) == {"message.max.bytes": "7"}
    assert apply_broker(values, [], replaces_all=True) == {}


@pytest.mark.parametrize("replaces_all", [True, False])
@pytest.mark.parametrize("name", ["num.partitions", "log.retention.hours", "max.decompressed.message.bytes"])
def test_other_settings_of_a_broker_cannot_be_changed_while_it_runs(name: str, replaces_all: bool) -> None:
    with pytest.raises(InvalidRequest, match=rf"Cannot update these configs dynamically: \[{name}\]"):
        apply_broker({}, [set_("message.max.bytes", "7"), set_(name, "5")], replaces_all=replaces_all)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (set_("log.retention.ms", "soon"), "Not a number of type LONG"),
        (set_("log.retention.ms", "0"), r"Value must be unlimited \(-1\) or at least 1"),
        (set_("message.max.bytes", "-1"), "Value must be at least 0"),
        (append("log.cleanup.policy", "nope"), "String must be one of: compact, delete"),
        (set_("log.retention.ms", None), "Null value not supported for"),
    ],
)
def test_a_brokers_bad_value_is_an_invalid_request_as_in_kafka(op: ConfigOp, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        apply_broker({}, [op], replaces_all=False)


def test_an_unknown_broker_setting_is_an_invalid_config() -> None:
    with pytest.raises(InvalidConfig, match="Unknown broker config name: nope"):
        apply_broker({}, [set_("nope", "5")], replaces_all=False)


@pytest.mark.parametrize("name", ["log.retention.ms", "nope"])
def test_what_is_no_list_of_a_broker_is_not_appended_to(name: str) -> None:
    with pytest.raises(InvalidConfig, match="its type is not LIST"):
        apply_broker({}, [append(name, "5")], replaces_all=False)


def test_a_key_of_a_broker_named_twice_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="duplicate config keys"):
        apply_broker({}, [set_("log.retention.ms", "5"), delete("log.retention.ms")], replaces_all=False)


# Descriptions


def test_an_override_is_described_with_what_it_hides() -> None:
    config = described_topic("cleanup.policy", {"cleanup.policy": "compact"})
    assert (config.value, config.source, config.is_default) == (
        "compact",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        False,
    )
    assert (config.type, config.read_only, config.is_sensitive) == (ConfigType.LIST, False, False)
    assert config.synonyms == (
        Synonym("cleanup.policy", "compact", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        Synonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG),
    )


def test_a_value_from_the_gateways_settings_is_a_static_one() -> None:
    config = described_topic("max.message.bytes", broker=static({"message.max.bytes": "2000"}))
    assert (config.value, config.source, config.is_default) == (
        "2000",
        ConfigSource.STATIC_BROKER_CONFIG,
        False,
    )
    assert config.synonyms == (
        Synonym("message.max.bytes", "2000", ConfigSource.STATIC_BROKER_CONFIG),
        Synonym("message.max.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),
    )


def test_a_setting_equal_to_the_default_is_the_default() -> None:
    config = described_topic("max.message.bytes", broker=static({"message.max.bytes": "1048588"}))
    assert config.is_default
    assert config.synonyms == (Synonym("message.max.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),)


def test_a_synonym_in_hours_is_shown_as_set_and_its_value_in_milliseconds() -> None:
    config = described_topic("retention.ms", broker=static({"log.retention.hours": "2"}))
    assert config.value == "7200000"
    assert config.synonyms[0] == Synonym("log.retention.hours", "2", ConfigSource.STATIC_BROKER_CONFIG)


def test_a_key_without_a_broker_synonym_has_its_default_and_no_chain() -> None:
    config = described_topic("remote.storage.enable")
    assert (config.value, config.source, config.synonyms) == ("false", ConfigSource.DEFAULT_CONFIG, ())


@given(some_overrides)
def test_a_description_shows_exactly_the_overrides_as_the_topics_own(overrides: dict[str, str]) -> None:
    described = describe_topic(overrides)
    assert [config.name for config in described] == list(TOPIC_CONFIGS)
    own = {c.name: c.value for c in described if c.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}
    assert own == overrides


def test_asked_for_keys_narrow_a_description_and_unknown_ones_are_passed_over() -> None:
    assert [config.name for config in describe_topic({}, keys=["retention.ms", "nope"])] == ["retention.ms"]
    assert [config.name for config in describe_broker(BrokerConfigs(), keys=["num.partitions"])] == ["num.partitions"]
    assert describe_topic({}, keys=[]) == []


def test_the_gateways_default_settings_are_the_defaults_shown() -> None:
    set_by_the_address = {"advertised.listeners"}
    described = describe_broker(default_broker())
    assert {config.name for config in described if not config.is_default} == set_by_the_address


def test_a_topics_defaults_follow_the_gateways_default_settings() -> None:
    assert TopicSettings.from_overrides({}, default_broker()) == TopicSettings.from_overrides({})


def test_a_changed_setting_is_shown_under_kafkas_name() -> None:
    values = broker_values_of(
        {"auto_create_topics_enable": False, "num_partitions": 6, "node_id": 3, "advertised": None},
        listen="0.0.0.0:9092",
        advertised="gateway.test:9092",
    )
    shown = {c.name: c.value for c in describe_broker(static(values)) if c.source is ConfigSource.STATIC_BROKER_CONFIG}
    assert shown == {
        "auto.create.topics.enable": "false",
        "num.partitions": "6",
        "node.id": "3",
        "broker.id": "3",
        "listeners": "PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners": "PLAINTEXT://gateway.test:9092",
    }


def test_settings_that_are_not_kafkas_are_never_shown() -> None:
    url = "postgresql://user:secret@db.test/kafka"
    values = broker_values_of({"database_url": url}, listen="a:1", advertised="a:1")
    assert "secret" not in repr(describe_broker(static({**values, "database.url": url})))


def test_a_secret_has_no_value_in_its_description_nor_in_its_synonyms() -> None:
    (config,) = describe_broker(static({"ssl.keystore.password": "hunter2"}), keys=["ssl.keystore.password"])
    assert (config.value, config.is_sensitive, config.type) == (None, True, ConfigType.PASSWORD)
    assert config.synonyms == (Synonym("ssl.keystore.password", None, ConfigSource.STATIC_BROKER_CONFIG),)


ALTERED = BrokerConfigs(
    dynamic={"message.max.bytes": "3000"},
    dynamic_default={"message.max.bytes": "4000", "log.message.timestamp.type": "LogAppendTime", "log.roll.ms": "9"},
    static={"message.max.bytes": "5000", "log.message.timestamp.type": "CreateTime"},
)
OWN, SHARED, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DEFAULT_CONFIG,
)


def test_what_is_altered_for_one_broker_wins_over_all_brokers_over_the_settings_over_the_default() -> None:
    chain = tuple(
        Synonym("message.max.bytes", value, source)
        for value, source in (("3000", OWN), ("4000", SHARED), ("5000", STATIC), ("1048588", DEFAULT))
    )
    (broker,) = describe_broker(ALTERED, keys=["message.max.bytes"])
    topic = described_topic("max.message.bytes", broker=ALTERED)
    assert (broker.value, broker.source, broker.synonyms) == ("3000", OWN, chain)
    assert (topic.value, topic.source, topic.synonyms) == ("3000", OWN, chain)


def test_a_topics_override_wins_over_what_was_altered() -> None:
    topic = described_topic("max.message.bytes", {"max.message.bytes": "1"}, ALTERED)
    assert (topic.value, topic.source, len(topic.synonyms)) == ("1", ConfigSource.DYNAMIC_TOPIC_CONFIG, 5)


def test_what_was_altered_decides_over_a_coarser_unit() -> None:
    topic = described_topic("segment.ms", broker=ALTERED)
    assert (topic.value, topic.source) == ("9", SHARED)
    assert topic.synonyms == (Synonym("log.roll.ms", "9", SHARED), Synonym("log.roll.hours", "168", DEFAULT))


def test_topics_act_by_what_was_altered() -> None:
    settings = TopicSettings.from_overrides({}, ALTERED)
    assert (settings.max_message_bytes, settings.log_append_time) == (3000, True)


def test_of_all_brokers_only_what_was_altered_is_described() -> None:
    described = describe_broker_defaults(ALTERED.dynamic_default)
    assert {(one.name, one.value, one.source) for one in described} == {
        ("message.max.bytes", "4000", SHARED),
        ("log.message.timestamp.type", "LogAppendTime", SHARED),
        ("log.roll.ms", "9", SHARED),
    }
    assert all(len(one.synonyms) == 1 for one in described)
    (one,) = describe_broker_defaults(ALTERED.dynamic_default, keys=["log.roll.ms", "nope"])
    assert one.name == "log.roll.ms"


def test_the_first_synonyms_of_topic_keys_and_no_other_keys_are_dynamic() -> None:
    first = {key.synonyms[0].name for key in TOPIC_CONFIGS.values() if key.synonyms}
    dynamic = {config.name for config in describe_broker(BrokerConfigs()) if not config.read_only}
    assert dynamic == first - {"max.decompressed.message.bytes"}


@pytest.mark.parametrize("name", ["inter.broker.protocol.version", "delete.topic.enable"])
def test_what_consoles_read_first_is_there(name: str) -> None:
    (config,) = describe_broker(BrokerConfigs(), keys=[name])
    assert config.value
