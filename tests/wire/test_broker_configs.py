"""Configs of brokers that are altered while they run: what they change, for whom, and what is refused.

Tests that use `wire` hold for Apache Kafka too, which applies an alteration a moment after it has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import HandmadeProducer, make_batch
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient, new_topic_entry

NewTopic = Callable[..., str]

TOPIC, BROKER = 2, 4
TOO_LARGE, INVALID_CONFIG, INVALID_REQUEST = 10, 40, 42
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OF_TOPIC, OF_BROKER, OF_ALL, DEFAULT = 1, 2, 3, 5
ALL = ""

Op = tuple[str, int, str | None]


def own_id(wire: WireClient) -> str:
    cluster = wire.call("DescribeCluster", 0, include_cluster_authorized_operations=False)
    return str(cluster["brokers"][0]["broker_id"])


def alter(wire: WireClient, name: str, *ops: Op, version: int = 1, validate_only: bool = False) -> int:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
    resource = {"resource_type": BROKER, "resource_name": name, "configs": configs}
    answer = wire.call("IncrementalAlterConfigs", version, resources=[resource], validate_only=validate_only)
    return answer["responses"][0]["error_code"]  # type: ignore[no-any-return]


def replace(wire: WireClient, name: str, configs: dict[str, str | None], *, version: int = 2) -> int:
    entries = [{"name": key, "value": value} for key, value in configs.items()]
    resource = {"resource_type": BROKER, "resource_name": name, "configs": entries}
    answer = wire.call("AlterConfigs", version, resources=[resource], validate_only=False)
    return answer["responses"][0]["error_code"]  # type: ignore[no-any-return]


def described(wire: WireClient, kind: int, name: str, key: str) -> dict[str, Any] | None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    answer = wire.call("DescribeConfigs", 4, resources=[resource], include_synonyms=True, include_documentation=False)
    assert answer["results"][0]["error_code"] == 0, answer
    return next(iter(answer["results"][0]["configs"]), None)


def in_force(wire: WireClient, kind: int, name: str, key: str) -> tuple[str, int] | None:
    """Value and source."""
    config = described(wire, kind, name, key)
    return None if config is None else (config["value"], config["config_source"])


@contextmanager
def altered(wire: WireClient, name: str, **configs: str) -> Iterator[None]:
    """Alter a broker, or all of them, and undo it."""
    keys = [key.replace("_", ".") for key in configs]
    assert alter(wire, name, *[(key, SET, value) for key, value in zip(keys, configs.values(), strict=True)]) == 0
    try:
        yield
    finally:
        assert alter(wire, name, *[(key, DELETE, None) for key in keys]) == 0


def test_an_altered_config_is_the_default_of_topics_and_its_deletion_falls_back(
    wire: WireClient, wire_bootstrap: str, new_topic: NewTopic
) -> None:
    broker, plain, own = own_id(wire), new_topic(), new_topic(max_message_bytes="100000")
    batch = make_batch([b"x" * 5_000])

    def limit(topic: str) -> tuple[str, int] | None:
        return in_force(wire, TOPIC, topic, "max.message.bytes")

    def code(topic: str) -> int:
        return producer.produce(topic, batch).code

    with HandmadeProducer(wire_bootstrap) as producer:
        assert code(plain) == 0
        with altered(wire, ALL, message_max_bytes="4000"):
            wait_for(lambda: in_force(wire, BROKER, ALL, "message.max.bytes"), ("4000", OF_ALL))
            wait_for(lambda: in_force(wire, BROKER, broker, "message.max.bytes"), ("4000", OF_ALL))
            wait_for(lambda: limit(plain), ("4000", OF_ALL))
            wait_for(lambda: code(plain), TOO_LARGE)
            with altered(wire, broker, message_max_bytes="6000"):
                wait_for(lambda: limit(plain), ("6000", OF_BROKER))
                wait_for(lambda: code(plain), 0)
                config = described(wire, TOPIC, plain, "max.message.bytes")
                assert config is not None
                assert [(one["name"], one["value"], one["source"]) for one in config["synonyms"]] == [
                    ("message.max.bytes", "6000", OF_BROKER),
                    ("message.max.bytes", "4000", OF_ALL),
                    ("message.max.bytes", "1048588", DEFAULT),
                ]
                assert (limit(own), code(own)) == (("100000", OF_TOPIC), 0), "an override stays what it is"
            wait_for(lambda: limit(plain), ("4000", OF_ALL))
            wait_for(lambda: code(plain), TOO_LARGE)
        wait_for(lambda: limit(plain), ("1048588", DEFAULT))
        wait_for(lambda: code(plain), 0)
        wait_for(lambda: in_force(wire, BROKER, ALL, "message.max.bytes"), None)


def test_topics_take_their_timestamp_type_from_an_altered_config(
    wire: WireClient, wire_bootstrap: str, new_topic: NewTopic
) -> None:
    name = new_topic()

    def uses_append_time() -> bool:
        return producer.produce(name, make_batch([b"x"])).log_append_time_ms >= 0

    with HandmadeProducer(wire_bootstrap) as producer:
        assert not uses_append_time()
        with altered(wire, own_id(wire), log_message_timestamp_type="LogAppendTime"):
            wait_for(uses_append_time, wanted=True)
        wait_for(uses_append_time, wanted=False)


def test_a_new_topic_is_described_with_what_was_altered(wire: WireClient, topic: str) -> None:
    broker = own_id(wire)
    with altered(wire, broker, log_retention_ms="123456789"):
        wait_for(lambda: in_force(wire, BROKER, broker, "log.retention.ms"), ("123456789", OF_BROKER))
        answer = wire.call("CreateTopics", 7, topics=[new_topic_entry(topic)], timeout_ms=10_000, validate_only=False)
        configs = {one["name"]: one for one in answer["topics"][0]["configs"]}
        assert configs["retention.ms"]["value"] == "123456789"


@pytest.mark.parametrize("version", range(0, 2))
def test_what_is_only_judged_changes_nothing(wire: WireClient, version: int) -> None:
    broker = own_id(wire)
    for name in (ALL, broker):
        op = ("message.max.bytes", SET, "4000")
        assert alter(wire, name, op, version=version, validate_only=True) == 0
    assert in_force(wire, BROKER, broker, "message.max.bytes") == ("1048588", DEFAULT)


@pytest.mark.parametrize("version", range(0, 3))
def test_all_altered_configs_of_a_broker_are_replaced(wire: WireClient, version: int) -> None:
    broker = own_id(wire)
    try:
        assert alter(wire, broker, ("log.retention.bytes", SET, "7")) == 0
        wait_for(lambda: in_force(wire, BROKER, broker, "log.retention.bytes"), ("7", OF_BROKER))
        assert replace(wire, broker, {"message.max.bytes": "4000"}, version=version) == 0
        wait_for(lambda: in_force(wire, BROKER, broker, "message.max.bytes"), ("4000", OF_BROKER))
        wait_for(lambda: in_force(wire, BROKER, broker, "log.retention.bytes"), ("-1", DEFAULT))
    finally:
        assert replace(wire, broker, {}, version=version) == 0
    wait_for(lambda: in_force(wire, BROKER, broker, "message.max.bytes"), ("1048588", DEFAULT))


@pytest.mark.parametrize("for_all", [True, False])
@pytest.mark.parametrize(
    ("ops", "error_code"),
    [
        ([("num.partitions", SET, "5")], INVALID_REQUEST),
        ([("log.retention.hours", SET, "5")], INVALID_REQUEST),
        ([("num.partitions", DELETE, None), ("no.such.config", DELETE, None)], 0),
        ([("log.retention.ms", SET, "soon")], INVALID_REQUEST),
        ([("log.retention.ms", SET, "0")], INVALID_REQUEST),
        ([("log.retention.ms", SET, None)], INVALID_REQUEST),
        ([("log.retention.ms", SET, "5"), ("log.retention.ms", DELETE, None)], INVALID_REQUEST),
        ([("log.retention.ms", APPEND, "5")], INVALID_CONFIG),
        ([("log.cleanup.policy", APPEND, "nope")], INVALID_REQUEST),
        ([("log.cleanup.policy", APPEND, "compact")], 0),
        ([("log.cleanup.policy", SUBTRACT, "delete")], 0),
    ],
)
def test_an_alteration_is_judged_as_kafka_judges_it(
    wire: WireClient, for_all: bool, ops: list[Op], error_code: int
) -> None:
    broker = own_id(wire)
    good = ("message.max.bytes", SET, "4000")
    assert alter(wire, ALL if for_all else broker, good, *ops, validate_only=True) == error_code


def test_a_refused_alteration_changes_nothing(wire: WireClient) -> None:
    broker = own_id(wire)
    good = ("message.max.bytes", SET, "4000")
    assert alter(wire, broker, good, ("num.partitions", SET, "5")) == INVALID_REQUEST
    assert alter(wire, "987654", good) == INVALID_REQUEST
    assert alter(wire, "one", good) == INVALID_REQUEST
    assert in_force(wire, BROKER, broker, "message.max.bytes") == ("1048588", DEFAULT)


def test_an_unknown_key_is_refused(wire_gateway: GatewayProcess) -> None:
    """Kafka keeps it, for the plugins it may be meant for; there are none here."""
    with WireClient(wire_gateway.bootstrap) as wire:
        assert alter(wire, ALL, ("no.such.config", SET, "7")) == INVALID_CONFIG
        assert alter(wire, str(wire_gateway.node_id), ("no.such.config", SET, "7")) == INVALID_CONFIG


def test_every_gateway_follows_and_a_new_start_forgets_nothing(database_url: str, tmp_path: Path) -> None:
    first, second = (GatewayProcess(database_url, directory=tmp_path, name=name) for name in ("first", "second"))
    batch = make_batch([b"x" * 5_000])
    with first, second:
        with HandmadeProducer(first.bootstrap) as a, HandmadeProducer(second.bootstrap) as b:
            a.call("CreateTopics", 7, topics=[new_topic_entry("t")], timeout_ms=10_000, validate_only=False)
            assert (a.produce("t", batch).code, b.produce("t", batch).code) == (0, 0)

            assert alter(a, ALL, ("message.max.bytes", SET, "4000")) == 0
            assert a.produce("t", batch).code == TOO_LARGE, "at once where it was altered"
            wait_for(lambda: b.produce("t", batch).code, TOO_LARGE, timeout_s=20)

            assert alter(b, str(first.node_id), ("message.max.bytes", SET, "6000")) == INVALID_REQUEST
            assert alter(b, str(second.node_id), ("message.max.bytes", SET, "6000")) == 0
            assert b.produce("t", batch).code == 0
            assert a.produce("t", batch).code == TOO_LARGE, "what is altered for one gateway leaves the others"
            assert in_force(a, TOPIC, "t", "max.message.bytes") == ("4000", OF_ALL)
            assert in_force(b, TOPIC, "t", "max.message.bytes") == ("6000", OF_BROKER)
        second.stop_cleanly()
        second.start()
        with HandmadeProducer(second.bootstrap) as b:
            assert in_force(b, BROKER, str(second.node_id), "message.max.bytes") == ("6000", OF_BROKER)
            assert b.produce("t", batch).code == 0
            assert alter(b, str(second.node_id), ("message.max.bytes", DELETE, None)) == 0
            assert b.produce("t", batch).code == TOO_LARGE
