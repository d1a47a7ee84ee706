"""Several gateways on one database: who is told of whom while they come, go, crash, freeze and collide."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg
import pytest

from tests.support import java
from tests.support.gateway_process import GatewayFailed, GatewayProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient, new_topic_entry

QUICK = {"TABLEWIRE_BROKER_HEARTBEAT_INTERVAL_MS": "100", "TABLEWIRE_BROKER_SESSION_TIMEOUT_MS": "3000"}
# Whoever waits for silence here waits for longer than any test may take.
PATIENT = {"TABLEWIRE_BROKER_HEARTBEAT_INTERVAL_MS": "100", "TABLEWIRE_BROKER_SESSION_TIMEOUT_MS": "300000"}
GROUP, TRANSACTION = 0, 1

StartGateway = Callable[..., GatewayProcess]


@pytest.fixture
def start_gateway(database_url: str, tmp_path: Path) -> Iterator[StartGateway]:
    """Gateways on the test's database; whatever still runs at the end is stopped."""
    with ExitStack() as stack:
        names = iter("abcdefgh")

        def start(settings: dict[str, str], *, node_id: int | None = None, wait: bool = True) -> GatewayProcess:
            gateway = GatewayProcess(database_url, directory=tmp_path, name=next(names), settings=settings)
            gateway.node_id = gateway.node_id if node_id is None else node_id
            gateway.start(wait=wait)
            return stack.enter_context(gateway)

        yield start


def metadata(gateway: GatewayProcess, topic: str | None = None) -> dict[str, Any]:
    asked = [] if topic is None else [{"name": topic}]
    with WireClient(gateway.bootstrap) as wire:
        return wire.call("Metadata", 8, topics=asked, allow_auto_topic_creation=False)


def brokers(gateway: GatewayProcess) -> dict[int, int]:
    """Ports by node id, as a client of this gateway is told."""
    return {one["node_id"]: one["port"] for one in metadata(gateway)["brokers"]}


def ports(*gateways: GatewayProcess) -> dict[int, int]:
    return {gateway.node_id: gateway.port for gateway in gateways}


def leaders(gateway: GatewayProcess, topic: str) -> dict[int, int]:
    (described,) = metadata(gateway, topic)["topics"]
    assert described["error_code"] == 0
    return {one["partition_index"]: one["leader_id"] for one in described["partitions"]}


def coordinators(gateway: GatewayProcess, keys: list[str], key_type: int = GROUP) -> dict[str, int]:
    with WireClient(gateway.bootstrap) as wire:
        answer = wire.call("FindCoordinator", 4, key_type=key_type, coordinator_keys=keys)
    return {one["key"]: one["node_id"] for one in answer["coordinators"] if one["error_code"] == 0}


def create_topic(gateway: GatewayProcess, name: str, partitions: int) -> None:
    with WireClient(gateway.bootstrap) as wire:
        entry = new_topic_entry(name, partitions)
        answer = wire.call("CreateTopics", 7, topics=[entry], timeout_ms=10_000, validate_only=False)
    assert answer["topics"][0]["error_code"] == 0, answer


def epoch_of(gateway: GatewayProcess) -> int:
    with psycopg.connect(gateway.database_url) as connection:
        found = connection.execute("SELECT epoch FROM kafka.brokers WHERE broker_id = %s", [gateway.node_id]).fetchone()
    assert found is not None
    return int(found[0])


def test_every_gateway_tells_the_same_of_all(start_gateway: StartGateway, topic: str) -> None:
    gateways = [start_gateway(PATIENT, wait=False) for _ in range(3)]
    for gateway in gateways:
        gateway.wait_ready()
    for gateway in gateways:
        wait_for(lambda asked=gateway: brokers(asked), ports(*gateways))
    create_topic(gateways[0], topic, 60)
    led, described, looked_after, sizes = [], [], [], []
    keys = [f"group-{number}" for number in range(60)]
    for gateway in gateways:
        with WireClient(gateway.bootstrap) as wire:
            led.append(leaders(gateway, topic))
            cluster = wire.call("DescribeCluster", 1, include_cluster_authorized_operations=False, endpoint_type=1)
            described.append((cluster["controller_id"], sorted(one["broker_id"] for one in cluster["brokers"])))
            page = wire.call(
                "DescribeTopicPartitions", 0, topics=[{"name": topic}], response_partition_limit=100, cursor=None
            )
            assert {one["partition_index"]: one["leader_id"] for one in page["topics"][0]["partitions"]} == led[-1]
            looked_after.append((coordinators(gateway, keys), coordinators(gateway, keys, TRANSACTION)))
            directory = wire.call("DescribeLogDirs", 4, topics=None)["results"][0]
            sizes.append([one["partition_index"] for own in directory["topics"] for one in own["partitions"]])
    ids = sorted(ports(*gateways))
    assert described == [(ids[0], ids)] * 3
    assert led[0] == led[1] == led[2]
    assert set(led[0].values()) == set(ids), "each leads some of 60 partitions"
    assert looked_after[0] == looked_after[1] == looked_after[2]
    assert set(looked_after[0][0].values()) == set(ids)
    assert len(looked_after[0][0]) == len(keys)
    assert sorted(itertools.chain.from_iterable(sizes)) == list(range(60)), "each partition's size is told once"
    assert [len(own) for own in sizes] == [list(led[0].values()).count(gateway.node_id) for gateway in gateways]


def test_who_stops_says_so_and_who_crashed_may_come_back_at_once(start_gateway: StartGateway) -> None:
    """Nobody waits for silence, which would take minutes here."""
    stays, other = start_gateway(PATIENT), start_gateway(PATIENT)
    wait_for(lambda: brokers(stays), ports(stays, other))
    crashed_epoch = epoch_of(other)
    other.kill9()
    other.restart()
    assert epoch_of(other) > crashed_epoch
    wait_for(lambda: brokers(other), ports(stays, other))
    other.stop_cleanly()
    wait_for(lambda: brokers(stays), ports(stays))


def test_a_second_gateway_with_the_same_node_id_does_not_start(start_gateway: StartGateway, tmp_path: Path) -> None:
    first = start_gateway(PATIENT)
    with pytest.raises(GatewayFailed, match="the gateway ended with 1 before it was ready"):
        start_gateway(PATIENT, node_id=first.node_id)
    log = (tmp_path / "b.log").read_text()
    assert f"tablewire: Node id {first.node_id} is in use by the gateway at 127.0.0.1:{first.port}: " in log
    assert "Traceback" not in log
    assert brokers(first) == ports(first)


def test_a_silent_gateway_is_no_longer_named(start_gateway: StartGateway, topic: str) -> None:
    stays, other = start_gateway(QUICK), start_gateway(QUICK)
    wait_for(lambda: brokers(stays), ports(stays, other))
    create_topic(stays, topic, 8)
    epoch = epoch_of(other)
    os.kill(other.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: brokers(stays), ports(stays))
    finally:
        os.kill(other.pid, signal.SIGCONT)
    wait_for(lambda: brokers(stays), ports(stays, other))
    assert epoch_of(other) > epoch, "it comes back in a new epoch"
    wait_for(lambda: brokers(other), ports(stays, other))
    assert "silent for too long" in other.log_text()
    other.kill9()
    wait_for(lambda: brokers(stays), ports(stays))
    assert set(leaders(stays, topic).values()) == {stays.node_id}
    assert set(coordinators(stays, ["a", "b", "c", "d"]).values()) == {stays.node_id}


def test_a_frozen_gateway_whose_id_was_taken_stops(start_gateway: StartGateway) -> None:
    frozen = start_gateway(QUICK)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        # It waits until it has seen the other's silence, then takes the id.
        taker = start_gateway(QUICK, node_id=frozen.node_id)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    wait_for(lambda: frozen.is_running, wanted=False)
    assert frozen.terminate() == 1
    assert f"tablewire: Another gateway has taken node id {frozen.node_id} while " in frozen.log_text()
    frozen.require_clean_log()
    assert brokers(taker) == ports(taker)


def come_and_go(one: GatewayProcess, two: GatewayProcess, three: GatewayProcess) -> None:
    """Each of them leaves once, by a crash or in order, and comes back."""
    two.kill9()
    wait_for(lambda: brokers(one), ports(one, three))
    two.restart()
    three.stop_cleanly()
    wait_for(lambda: brokers(one), ports(one, two))
    one.kill9()
    three.restart()
    wait_for(lambda: brokers(three), ports(two, three))
    one.restart()
    wait_for(lambda: brokers(two), ports(one, two, three))


class Traffic:
    """A client that works in a thread until it is told to finish, and keeps what went wrong."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.errors: list[str] = []
        self.values: dict[int, list[bytes]] = defaultdict(list)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(repr(error))

    def work(self) -> None:
        raise NotImplementedError


class ConfluentProducer(Traffic):
    """Writes numbers to partitions 0 to 2."""

    def work(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        )
        for number in itertools.count():
            partition = number % 3
            self.values[partition].append(b"%d" % number)
            producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
            if partition == 2:
                producer.poll(0.01)
                if self._is_over.is_set():
                    break
        if left := producer.flush(120):
            self.errors.append(f"{left} records were never delivered")

    def _delivered(self, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(str(error))


class ConfluentConsumer(Traffic):
    """Reads partitions 0 to 2 until it has `wanted`, once that is known."""

    wanted: dict[int, list[bytes]] | None = None

    def work(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none: partitions are assigned",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(self.topic, partition, 0) for partition in range(3)])
        deadline = time.monotonic() + 180
        while self.values != self.wanted and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                if message.error() is not None:
                    self.errors.append(str(message.error()))
                else:
                    self.values[message.partition()].append(message.value())  # type: ignore[index,arg-type]
        consumer.close()


class JavaRoundTrips(Traffic):
    """Writes to partition 3 and reads it back, with a new producer and consumer each time."""

    def work(self) -> None:
        client = java.JavaClient()
        settings = {"bootstrap.servers": self.bootstrap}
        while not self._is_over.is_set():
            first = len(self.values[3])
            values = [b"%d" % number for number in range(first, first + 50)]
            record = {"topic": self.topic, "partition": 3, "key": None, "headers": []}
            answers = client.call(
                "produce",
                settings={**settings, "delivery.timeout.ms": "120000"},
                records=[{**record, "value": java.encode(value)} for value in values],
            )
            self.errors.extend(str(answer) for answer in answers if "error" in answer)
            read = client.call(
                "consume",
                settings={**settings, "auto.offset.reset": "none", "enable.auto.commit": "false"},
                assignment=[[self.topic, 3, first]],
                count=len(values),
            )
            self.values[3] += [java.decode(answer["value"]) or b"" for answer in read]
            if self.values[3][first:] != values:
                self.errors.append(f"Java read {self.values[3][first:]}")
                break
        client.close()


def test_clients_meet_no_final_error_while_gateways_come_and_go(start_gateway: StartGateway, topic: str) -> None:
    gateways = [start_gateway(QUICK, wait=False) for _ in range(3)]
    for gateway in gateways:
        gateway.wait_ready()
        wait_for(lambda asked=gateway: brokers(asked), ports(*gateways))
    create_topic(gateways[0], topic, 4)
    bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
    producer, consumer = ConfluentProducer(bootstrap, topic), ConfluentConsumer(bootstrap, topic)
    java_client = JavaRoundTrips(bootstrap, topic) if has_java() else None
    try:
        come_and_go(*gateways)
    finally:
        producer.finish()
        consumer.wanted = producer.values
        consumer.finish()
        if java_client is not None:
            java_client.finish()
    assert producer.errors == consumer.errors == []
    assert consumer.values == producer.values, "each record once, in order"
    if java_client is not None:
        assert java_client.errors == []
        assert len(java_client.values[3]) >= 50


def has_java() -> bool:
    try:
        java.jar_directory()
    except java.JavaMissing:
        return False  # the tests of Java clients say what is missing
    return True
