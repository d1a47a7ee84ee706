"""Fetch so many records of each partition from an offset on, in a process of its own: arguments in, a JSON line out.

One request at a time, for all partitions, as large as Java's defaults allow. Records are counted, not read: what this
client does on the gateway's cores is next to nothing, and nothing is fetched ahead that is not counted.
"""

from __future__ import annotations

import argparse
import json
import time

from tests.support.handmade import HandmadeProducer
from tests.support.wire_client import message_class

FETCH_VERSION = 12
PARTITION_BYTES, RESPONSE_BYTES = 1024 * 1024, 50 * 1024 * 1024
RECORD_COUNT_AT, BASE_OFFSET_BYTES, LENGTH_BYTES = 57, 8, 4


def fetch(bootstrap: str, topic: str, *, partitions: int, start: int, end: int) -> dict[str, float]:
    positions = dict.fromkeys(range(partitions), start)
    records = 0
    with HandmadeProducer(bootstrap) as connection:
        started = time.perf_counter()
        while wanted := {partition: at for partition, at in positions.items() if at < end}:
            connection.send_frame(_request(connection, topic, wanted))
            answer = message_class("FetchResponse").decode(
                connection.receive_frame(), version=FETCH_VERSION, header=True
            )
            for one in answer.responses[0].partitions:
                if one.error_code != 0:
                    raise SystemExit(f"partition {one.partition_index} was refused with {one.error_code}")
                found = _count_records(one.records)
                records += found
                positions[one.partition_index] += found
        seconds = time.perf_counter() - started
    return {"records": records, "seconds": seconds}


def _request(connection: HandmadeProducer, topic: str, positions: dict[int, int]) -> bytes:
    asked = [
        {"partition": partition, "fetch_offset": at, "partition_max_bytes": PARTITION_BYTES}
        for partition, at in positions.items()
    ]
    return connection.frame(
        "Fetch",
        FETCH_VERSION,
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=RESPONSE_BYTES,
        topics=[{"topic": topic, "partitions": asked}],
    )


def _count_records(batches: bytes | None) -> int:
    """From the heads of the batches, which are one after the other."""
    data = memoryview(batches or b"")
    count = 0
    while data:
        length = int.from_bytes(data[BASE_OFFSET_BYTES : BASE_OFFSET_BYTES + LENGTH_BYTES], "big")
        count += int.from_bytes(data[RECORD_COUNT_AT : RECORD_COUNT_AT + 4], "big")
        data = data[BASE_OFFSET_BYTES + LENGTH_BYTES + length :]
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--start", type=int, required=True, help="the first offset, in each partition")
    parser.add_argument("--end", type=int, required=True, help="the offset after the last one")
    arguments = vars(parser.parse_args())
    print(json.dumps(fetch(arguments.pop("bootstrap"), arguments.pop("topic"), **arguments)))


if __name__ == "__main__":
    main()
