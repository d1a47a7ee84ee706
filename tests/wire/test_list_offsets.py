"""ListOffsets in raw requests: many partitions at once, each with its own answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.handmade import HandmadeProducer, make_batch
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

NewTopic = Callable[..., str]

UNKNOWN_TOPIC, FENCED_EPOCH, UNKNOWN_EPOCH = 3, 74, 75
LATEST, EARLIEST, LARGEST_TIMESTAMP = -1, -2, -3


def list_offsets(
    wire: WireClient, wishes: dict[str, list[dict[str, int]]], *, version: int = 7
) -> dict[tuple[str, int], dict[str, Any]]:
    topics = [{"name": name, "partitions": partitions} for name, partitions in wishes.items()]
    answer = wire.call("ListOffsets", version, replica_id=-1, topics=topics)
    return {
        (topic["name"], partition["partition_index"]): partition
        for topic in answer["topics"]
        for partition in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(1, 12))
def test_partitions_of_several_topics_are_answered_each_by_itself(
    wire: WireClient, wire_bootstrap: str, new_topic: NewTopic, version: int
) -> None:
    first, second, never = new_topic(3), new_topic(1), f"never-{version}"
    with HandmadeProducer(wire_bootstrap) as producer:
        producer.produce(first, make_batch([b"a", b"b"], timestamp_ms=1_000), partition=1)
        producer.produce(second, make_batch([b"c"], timestamp_ms=2_000))
    found = list_offsets(
        wire,
        {
            first: [
                {"partition_index": 0, "timestamp": LATEST},
                {"partition_index": 1, "timestamp": LATEST},
                {"partition_index": 2, "timestamp": 1_000},
                {"partition_index": 3, "timestamp": LATEST},
                {"partition_index": -1, "timestamp": LATEST},
            ],
            never: [{"partition_index": 0, "timestamp": LATEST}],
            second: [{"partition_index": 0, "timestamp": 1_500}],
        },
        version=version,
    )
    assert {key: (one["error_code"], one["offset"]) for key, one in found.items()} == {
        (first, 0): (0, 0),
        (first, 1): (0, 2),
        (first, 2): (0, -1),
        (first, 3): (UNKNOWN_TOPIC, -1),
        (first, -1): (UNKNOWN_TOPIC, -1),
        (never, 0): (UNKNOWN_TOPIC, -1),
        (second, 0): (0, 0),
    }
    assert found[second, 0]["timestamp"] == 2_000


@pytest.mark.parametrize(
    ("epoch", "error_code"), [(-5, FENCED_EPOCH), (-2, FENCED_EPOCH), (-1, 0), (0, 0), (1, UNKNOWN_EPOCH)]
)
def test_a_leader_epoch_that_is_not_the_partitions_is_refused(
    wire: WireClient, new_topic: NewTopic, epoch: int, error_code: int
) -> None:
    name = new_topic()
    wish = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": EARLIEST}
    assert list_offsets(wire, {name: [wish]})[name, 0]["error_code"] == error_code


@pytest.mark.parametrize(("epoch", "error_code"), [(-5, 0), (-1, 0), (0, 0), (1, UNKNOWN_EPOCH)])
def test_fetch_takes_every_negative_epoch_for_none(
    wire: WireClient, new_topic: NewTopic, epoch: int, error_code: int
) -> None:
    name = new_topic()
    wish = {"partition": 0, "current_leader_epoch": epoch, "fetch_offset": 0, "partition_max_bytes": 1_000}

    def code() -> int:
        answer = wire.call("Fetch", 12, max_wait_ms=0, min_bytes=0, topics=[{"topic": name, "partitions": [wish]}])
        return answer["responses"][0]["partitions"][0]["error_code"]  # type: ignore[no-any-return]

    wait_for(code, error_code)  # a broker of Kafka's learns a moment later that it leads a new topic
