"""Producers with idempotence on and off in one process, each into its own topic: the program behind `Turns`.

A line in (`on` or `off`), a line out: how many records, and the seconds from the first send to the last
acknowledgement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import librdkafka_client, prepared_client
from benchmarks.turns import Turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=("librdkafka", "prepared"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--off", required=True, metavar="TOPIC")
    parser.add_argument("--on", required=True, metavar="TOPIC")
    parser.add_argument("--records", type=int, required=True, help="of a turn; whole batches of prepared ones")
    parser.add_argument("--record-bytes", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    given = parser.parse_args()
    make: Callable[..., Callable[[], Turn]] = librdkafka_client.make_sender
    if given.client == "prepared":
        make = partial(prepared_client.make_sender, partitions=given.partitions)
    sides = {
        side: make(
            given.bootstrap,
            topic,
            records=given.records,
            record_bytes=given.record_bytes,
            is_idempotent=side == "on",
        )
        for side, topic in (("off", given.off), ("on", given.on))
    }
    for line in sys.stdin:
        print(*sides[line.strip()](), flush=True)


if __name__ == "__main__":
    main()
