"""kill -9 of the gateway: during load, and between COMMIT and answer (F1, F2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.conftest import PARTITIONS
from tests.support.auditor import audit
from tests.support.gateway_process import GatewayProcess
from tests.support.handmade import HandmadeProducer, Outcome, make_batch, stored_rows
from tests.support.waiting import wait_for
from tests.support.workload import Workload

StartGateway = Callable[..., GatewayProcess]
NewTopic = Callable[..., str]
FAILPOINT = "TABLEWIRE_TEST_FAILPOINT"


def test_killed_gateway_loses_and_doubles_nothing(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(database_url)
    topics = [new_topic(gateway), new_topic(gateway)]
    with (
        Workload([gateway.bootstrap] * 2, topics[0], partitions=PARTITIONS) as idempotent,
        Workload([gateway.bootstrap], topics[1], partitions=PARTITIONS, is_idempotent=False) as plain,
    ):
        for _ in range(3):
            idempotent.wait_for_more()
            plain.wait_for_more()
            gateway.kill9()
            gateway.restart()
        idempotent.wait_for_more()
        audit(database_url, idempotent.stop())
        audit(database_url, plain.stop())


@pytest.mark.parametrize(("nth", "retry_through"), [(1, "the restarted gateway"), (3, "another gateway")])
def test_retry_after_a_crash_between_commit_and_answer_gets_the_same_offset(
    nth: int, retry_through: str, database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(database_url, test_failpoint=f"produce.committed:{nth}" if nth > 1 else "produce.committed")
    topic = new_topic(gateway, partitions=1)
    with HandmadeProducer(gateway.bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        batches = [
            make_batch([b"%d" % n, b"%d'" % n], producer_id=producer_id, epoch=0, sequence=n * 2) for n in range(nth)
        ]
        for n, batch in enumerate(batches[:-1]):
            assert connection.produce(topic, batch) == Outcome(0, n * 2)
        with pytest.raises(ConnectionError):
            connection.produce(topic, batches[-1])
    wait_for(lambda: gateway.is_running, wanted=False)
    assert len(stored_rows(database_url, topic)) == nth * 2  # committed, and nobody was told
    del gateway.settings[FAILPOINT]
    if retry_through == "another gateway":
        other = start_gateway(database_url)
    else:
        gateway.restart()
        other = gateway
    with HandmadeProducer(other.bootstrap) as connection:
        for n, batch in reversed(list(enumerate(batches))):
            assert connection.produce(topic, batch) == Outcome(0, n * 2)
        following = make_batch([b"next"], producer_id=producer_id, epoch=0, sequence=nth * 2)
        assert connection.produce(topic, following) == Outcome(0, nth * 2)
    assert len(stored_rows(database_url, topic)) == nth * 2 + 1


def test_crash_before_the_answer_to_several_partitions(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """Two writers: one has committed its partitions when the gateway dies, the other may not have."""
    gateway = start_gateway(database_url, test_failpoint="produce.committed")
    topic = new_topic(gateway)
    with HandmadeProducer(gateway.bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        batches = {
            (topic, partition): make_batch([b"x"] * 3, producer_id=producer_id, epoch=0, sequence=0)
            for partition in range(PARTITIONS)
        }
        with pytest.raises(ConnectionError):
            connection.produce_many(batches)
    wait_for(lambda: gateway.is_running, wanted=False)
    del gateway.settings[FAILPOINT]
    gateway.restart()
    with HandmadeProducer(gateway.bootstrap) as connection:
        for _ in range(2):
            assert set(connection.produce_many(batches).values()) == {Outcome(0, 0)}
    assert len(stored_rows(database_url, topic)) == 3 * PARTITIONS


def test_real_client_survives_crashes_between_commit_and_answer(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(database_url)
    topic = new_topic(gateway)
    with Workload([gateway.bootstrap] * 2, topic, partitions=PARTITIONS) as workload:
        workload.wait_for_more()
        gateway.kill9()
        for commits in (1, 7, 40):
            gateway.settings[FAILPOINT] = f"produce.committed:{commits}"
            gateway.start(wait=False)
            wait_for(lambda: gateway.is_running, wanted=False, timeout_s=30)
        del gateway.settings[FAILPOINT]
        gateway.start()
        workload.wait_for_more()
        audit(database_url, workload.stop())
