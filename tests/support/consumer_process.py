"""One confluent-kafka consumer in a group, the Python twin of ConsumerProcess.java: JSON lines in and out."""

from __future__ import annotations

import json
import sys
import threading

import confluent_kafka


def main() -> None:
    task = json.loads(sys.stdin.readline())
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        while sys.stdin.readline():
            pass
        is_over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    consumer = confluent_kafka.Consumer(task["settings"])
    consumer.subscribe([f"^{task['pattern']}"] if task.get("pattern") else task["topics"])
    told: set[tuple[str, int]] | None = None
    while not is_over.is_set():
        messages = consumer.consume(500, timeout=0.05)
        assigned = {(one.topic, one.partition) for one in consumer.assignment()}
        if assigned != told:
            told = assigned
            tell(assigned=sorted(assigned))
        values = [one.value().decode() for one in messages if one.error() is None]
        if values:
            tell(values=values)
        for error in (one.error() for one in messages if one.error() is not None):
            if error.fatal():
                tell(error=str(error))
    consumer.close()


def tell(**event: object) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
