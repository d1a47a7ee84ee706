"""Consume, transform, produce in transactions with confluent-kafka, in a process of its own so that it can be killed.

Run as `python -m tests.support.exactly_once_worker <bootstrap> <group> <source> <target> <transactional id>`; the end
of stdin stops it. Lines on stdout: `open` when records of a transaction are written and nothing is committed yet,
`committed <records>` after it, `again <reason>` when a transaction was given up, `lost <reason>` when the producer was.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

BATCH, PAUSE_S, SESSION_MS = 30, 0.03, 3_000
ATTEMPTS = 5


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def insist(call: Callable[[], object]) -> None:
    """Call again what may be called again, as librdkafka's manual says: its own patience is shorter than ours."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            call()
        except KafkaException as refused:
            if not refused.args[0].retriable() or attempt == ATTEMPTS:
                raise
        else:
            return


def rewind(consumer: Consumer) -> None:
    """Go on at the last commit, as whoever gives a transaction up must."""
    for one in consumer.committed(consumer.assignment(), 10):
        consumer.seek(TopicPartition(one.topic, one.partition, max(one.offset, 0)))


def run(bootstrap: str, group: str, source: str, target: str, transactional_id: str, stop: threading.Event) -> None:
    """Until told to stop, or until the producer is beyond help."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            # With the default, "rebootstrap", librdkafka 2.16 may wait for ever for a broker that it has forgotten:
            # docs/transactions.md.
            "metadata.recovery.strategy": "none",
            "log_level": 2,
        }
    )
    insist(lambda: producer.init_transactions(20))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            "log_level": 2,
        }
    )
    consumer.subscribe([source])
    try:
        while not stop.is_set():
            messages = [one for one in consumer.consume(BATCH, 0.2) if one.error() is None]
            if not messages:
                continue
            try:
                producer.begin_transaction()
                for one in messages:
                    producer.produce(target, value=one.value(), partition=one.partition())
                producer.flush(20)
                say("open")
                time.sleep(PAUSE_S)
                positions = {one.partition(): one.offset() + 1 for one in messages}
                offsets = [TopicPartition(source, *one) for one in positions.items()]
                member = consumer.consumer_group_metadata()
                insist(lambda: producer.send_offsets_to_transaction(offsets, member, 20))  # noqa: B023
                insist(lambda: producer.commit_transaction(20))
                say(f"committed {len(messages)}")
            except KafkaException as refused:
                if not refused.args[0].txn_requires_abort():
                    say(f"lost {refused}")
                    return
                say(f"again {refused}")
                insist(lambda: producer.abort_transaction(20))
                rewind(consumer)
    finally:
        consumer.close()


def main() -> None:
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    while not stop.is_set():
        bootstrap, group, source, target, transactional_id = sys.argv[1:]
        run(bootstrap, group, source, target, transactional_id, stop)


if __name__ == "__main__":
    main()
