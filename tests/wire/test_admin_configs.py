"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs in raw requests of every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

NewTopic = Callable[..., str]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST = 3, 17, 40, 42
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OWN_TOPIC_VALUE, DEFAULT = 1, 5
LONG = 5


def describe(
    wire: WireClient, kind: int, name: str, *keys: str, version: int = 4, explained: bool = False
) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    flags = {"include_synonyms": explained, **({"include_documentation": explained} if version >= 3 else {})}
    (result,) = wire.call("DescribeConfigs", version, resources=[resource], **flags)["results"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return {**result, "configs": {config["name"]: config for config in result["configs"]}}


def own_values(wire: WireClient, topic: str) -> dict[str, str]:
    configs = describe(wire, TOPIC, topic)["configs"].values()
    return {one["name"]: one["value"] for one in configs if one["config_source"] == OWN_TOPIC_VALUE}


def alter(
    wire: WireClient,
    kind: int,
    name: str,
    *ops: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> int:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
    answer = wire.call(
        "IncrementalAlterConfigs",
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configs": configs}],
        validate_only=validate_only,
    )
    return _only_code(answer, kind, name)


def replace(
    wire: WireClient,
    kind: int,
    name: str,
    configs: dict[str, str | None],
    *,
    version: int = 2,
    validate_only: bool = False,
) -> int:
    entries = [{"name": key, "value": value} for key, value in configs.items()]
    answer = wire.call(
        "AlterConfigs",
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configs": entries}],
        validate_only=validate_only,
    )
    return _only_code(answer, kind, name)


def _only_code(answer: dict[str, Any], kind: int, name: str) -> int:
    (result,) = answer["responses"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    assert (result["error_message"] is None) == (result["error_code"] == 0)
    return result["error_code"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topics_configs_are_described_in_every_version(wire: WireClient, new_topic: NewTopic, version: int) -> None:
    name = new_topic(retention_ms="1000")
    described = describe(wire, TOPIC, name, version=version, explained=True)
    assert described["error_code"] == 0
    own, default = described["configs"]["retention.ms"], described["configs"]["max.message.bytes"]
    assert (own["value"], own["config_source"], own["read_only"]) == ("1000", OWN_TOPIC_VALUE, False)
    assert own["synonyms"][0] == {"name": "retention.ms", "value": "1000", "source": OWN_TOPIC_VALUE}
    assert (default["value"], default["config_source"]) == ("1048588", DEFAULT)
    assert default["synonyms"] == [{"name": "message.max.bytes", "value": "1048588", "source": DEFAULT}]
    if version >= 3:
        assert own["config_type"] == LONG
        assert own["documentation"]


def test_what_is_not_asked_for_is_not_told(wire: WireClient, new_topic: NewTopic) -> None:
    name = new_topic(retention_ms="1000")
    described = describe(wire, TOPIC, name, "retention.ms", "no.such.config")
    assert list(described["configs"]) == ["retention.ms"]
    assert described["configs"]["retention.ms"]["synonyms"] == []
    assert described["configs"]["retention.ms"]["documentation"] is None
    nothing = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": []}
    (result,) = wire.call(
        "DescribeConfigs", 4, resources=[nothing], include_synonyms=False, include_documentation=False
    )["results"]
    assert len(result["configs"]) > 20, "an empty list asks for every key"


def test_the_brokers_configs_are_described(wire: WireClient) -> None:
    cluster = wire.call("DescribeCluster", 0, include_cluster_authorized_operations=False)
    broker_id = str(cluster["controller_id"])
    described = describe(wire, BROKER, broker_id, explained=True)
    assert described["error_code"] == 0
    assert described["configs"]["message.max.bytes"]["value"] == "1048588"
    assert described["configs"]["auto.create.topics.enable"]["read_only"]
    assert not described["configs"]["message.max.bytes"]["read_only"]
    assert describe(wire, BROKER, "", "message.max.bytes")["configs"] == {}, "nothing was altered for all brokers"


@pytest.mark.parametrize(
    ("kind", "name", "error_code"),
    [
        (TOPIC, "never-created", UNKNOWN_TOPIC),
        (TOPIC, "not good", INVALID_TOPIC),
        (TOPIC, "with\0nul", INVALID_TOPIC),
        (TOPIC, "", INVALID_TOPIC),
        (BROKER, "987654", INVALID_REQUEST),
        (BROKER, "one", INVALID_REQUEST),
        (BROKER_LOGGER, "987654", INVALID_REQUEST),
        (BROKER_LOGGER, "", INVALID_REQUEST),
        (CLIENT_METRICS, "", INVALID_REQUEST),
        (GROUP, "", INVALID_REQUEST),
        (0, "x", INVALID_REQUEST),
        (1, "x", INVALID_REQUEST),
        (3, "x", INVALID_REQUEST),
        (99, "x", INVALID_REQUEST),
    ],
)
def test_what_has_no_configs_is_refused_as_kafka_refuses_it(
    wire: WireClient, kind: int, name: str, error_code: int
) -> None:
    described = describe(wire, kind, name)
    assert described["error_code"] == error_code
    assert described["configs"] == {}


@pytest.mark.parametrize("version", range(0, 2))
def test_single_overrides_are_altered_in_every_version(wire: WireClient, new_topic: NewTopic, version: int) -> None:
    name = new_topic(retention_ms="1000")
    ops = (("max.message.bytes", SET, "7000"), ("cleanup.policy", APPEND, "compact"), ("retention.ms", DELETE, None))
    assert alter(wire, TOPIC, name, *ops, version=version, validate_only=True) == 0
    assert own_values(wire, name) == {"retention.ms": "1000"}
    assert alter(wire, TOPIC, name, *ops, version=version) == 0
    wait_for(lambda: own_values(wire, name), {"max.message.bytes": "7000", "cleanup.policy": "delete,compact"})
    assert alter(wire, TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), version=version) == 0
    wait_for(lambda: own_values(wire, name)["cleanup.policy"], "compact")


@pytest.mark.parametrize("version", range(0, 3))
def test_all_overrides_are_replaced_in_every_version(wire: WireClient, new_topic: NewTopic, version: int) -> None:
    name = new_topic(retention_ms="1000")
    wish: dict[str, str | None] = {"max.message.bytes": "7000"}
    assert replace(wire, TOPIC, name, wish, version=version, validate_only=True) == 0
    assert own_values(wire, name) == {"retention.ms": "1000"}
    assert replace(wire, TOPIC, name, wish, version=version) == 0
    wait_for(lambda: own_values(wire, name), {"max.message.bytes": "7000"})
    assert replace(wire, TOPIC, name, {}, version=version) == 0
    wait_for(lambda: own_values(wire, name), {})


def test_a_refused_alteration_changes_nothing(wire: WireClient, new_topic: NewTopic) -> None:
    name = new_topic(retention_ms="1000")
    good = ("max.message.bytes", SET, "7000")
    assert alter(wire, TOPIC, name, good, ("no.such.config", SET, "1")) == INVALID_CONFIG
    assert alter(wire, TOPIC, name, good, ("retention.ms", SET, "soon")) == INVALID_CONFIG
    assert alter(wire, TOPIC, name, good, ("retention.ms", APPEND, "1")) == INVALID_CONFIG
    assert alter(wire, TOPIC, name, good, ("retention.ms", SET, None)) == INVALID_REQUEST
    assert alter(wire, TOPIC, name, good, good) == INVALID_REQUEST
    assert replace(wire, TOPIC, name, {"max.message.bytes": "7000", "no.such.config": "1"}) == INVALID_CONFIG
    assert replace(wire, TOPIC, name, {"max.message.bytes": None}) == INVALID_REQUEST
    assert own_values(wire, name) == {"retention.ms": "1000"}


@pytest.mark.parametrize(
    ("kind", "name", "error_code"),
    [
        (TOPIC, "never-created", UNKNOWN_TOPIC),
        (TOPIC, "not good", INVALID_TOPIC),
        (TOPIC, "", INVALID_REQUEST),
        (BROKER, "987654", INVALID_REQUEST),
        (BROKER, "one", INVALID_REQUEST),
        (GROUP, "some", INVALID_CONFIG),
        (0, "x", INVALID_REQUEST),
        (99, "x", INVALID_REQUEST),
    ],
)
def test_what_cannot_be_altered_is_refused_as_kafka_refuses_it(
    wire: WireClient, kind: int, name: str, error_code: int
) -> None:
    assert alter(wire, kind, name, ("retention.ms", SET, "7")) == error_code
    assert replace(wire, kind, name, {"retention.ms": "7"}) == error_code


def test_a_resource_named_twice_is_refused_and_the_others_are_altered(wire: WireClient, new_topic: NewTopic) -> None:
    twice, once = new_topic(), new_topic()
    resources = [
        {
            "resource_type": TOPIC,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": SET, "value": "7"}],
        }
        for name in (twice, once, twice)
    ]
    answer = wire.call("IncrementalAlterConfigs", 1, resources=resources, validate_only=False)
    codes = sorted((one["resource_name"] == twice, one["error_code"]) for one in answer["responses"])
    assert codes == [(False, 0), (True, INVALID_REQUEST), (True, INVALID_REQUEST)]
    wait_for(lambda: own_values(wire, once), {"retention.ms": "7"})
    assert own_values(wire, twice) == {}


def test_what_is_not_kept_is_refused_and_described_as_empty(wire_gateway: GatewayProcess) -> None:
    own_id = str(wire_gateway.node_id)
    with WireClient(wire_gateway.bootstrap) as wire:
        assert alter(wire, BROKER_LOGGER, own_id, ("root", SET, "DEBUG")) == INVALID_CONFIG
        assert alter(wire, CLIENT_METRICS, "some", ("interval.ms", SET, "7")) == INVALID_CONFIG
        assert alter(wire, TOPIC, "some", ("retention.ms", 9, "7")) == INVALID_REQUEST
        empty = ((BROKER_LOGGER, own_id), (CLIENT_METRICS, "some"), (GROUP, "some"))
        nothing = [describe(wire, kind, name) for kind, name in empty]
        assert [(one["error_code"], one["configs"]) for one in nothing] == [(0, {})] * 3


def test_an_answer_does_not_grow_with_repetitions(wire_gateway: GatewayProcess) -> None:
    broker = {"resource_type": BROKER, "resource_name": str(wire_gateway.node_id), "configuration_keys": None}
    with WireClient(wire_gateway.bootstrap) as wire:
        answer = wire.call(
            "DescribeConfigs", 4, resources=[broker] * 20_000, include_synonyms=True, include_documentation=True
        )
    assert {one["error_code"] for one in answer["results"]} == {INVALID_REQUEST}
    assert not any(one["configs"] for one in answer["results"])
