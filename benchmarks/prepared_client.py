"""Produce batches that were made before the clock starts, in a process of its own: arguments in, a JSON line out.

A client that numbers its records works more for it than one that does not, on cores that the gateway needs. This one
only writes to sockets, so that what idempotence costs here, it costs gateway and database.
Batches are as large as Java's defaults make them, and so are requests: one batch for each of up to 60 partitions. Five
requests are in flight, or one for each producer where there are more.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

import google_crc32c

from benchmarks.turns import Turn
from benchmarks.workload import payloads
from tests.support.handmade import HandmadeProducer, make_batch

BATCH_BYTES = 16_384
RECORD_OVERHEAD_BYTES = 12
IN_FLIGHT = 5
REQUEST_BATCHES = 60
"""As many as max.request.size allows: 1 MiB."""

CRC = struct.Struct(">I")
PRODUCER = struct.Struct(">qhi")
CRC_AT, CHECKED_FROM, PRODUCER_AT = 17, 21, 43

Frame = tuple[HandmadeProducer, bytes]


def numbered(batch: bytes, *, producer_id: int, epoch: int, sequence: int) -> bytes:
    """The batch as this producer would send it."""
    changed = bytearray(batch)
    PRODUCER.pack_into(changed, PRODUCER_AT, producer_id, epoch, sequence)
    CRC.pack_into(changed, CRC_AT, google_crc32c.value(bytes(changed[CHECKED_FROM:])))
    return bytes(changed)


def produce(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    partitions: int,
    is_idempotent: bool,
    producers: int = 1,
) -> dict[str, float]:
    per_batch, batch = _full_batch(record_bytes)
    rounds = max(2, -(-records // (per_batch * partitions * producers)))
    with ExitStack() as connections:
        senders = [connections.enter_context(HandmadeProducer(bootstrap)) for _ in range(producers)]
        identities = [sender.init_producer_id()[1:] if is_idempotent else (-1, -1) for sender in senders]
        # The first round waits for what is done once: it is not timed.
        timed = [_frames(senders, identities, topic, batch, partitions, number * per_batch) for number in range(rounds)]
        first = timed.pop(0)
        answers = _exchange(first, max(IN_FLIGHT, producers))
        started = time.perf_counter()
        answers += _exchange([each for frames in timed for each in frames], max(IN_FLIGHT, producers))
        seconds = time.perf_counter() - started
        _require_written(answers)
    per_round = per_batch * partitions * producers
    return {"records": rounds * per_round, "timed": (rounds - 1) * per_round, "seconds": seconds}


def make_sender(
    bootstrap: str, topic: str, *, records: int, record_bytes: int, partitions: int, is_idempotent: bool
) -> Callable[[], Turn]:
    """What sends the records, or a few more, whenever it is called."""
    per_batch, batch = _full_batch(record_bytes)
    sender = HandmadeProducer(bootstrap)
    identity = sender.init_producer_id()[1:] if is_idempotent else (-1, -1)
    sequences = count(0, per_batch)

    def send() -> Turn:
        rounds = -(-records // (per_batch * partitions))
        made = [_frames([sender], [identity], topic, batch, partitions, next(sequences)) for _ in range(rounds)]
        started = time.perf_counter()
        answers = _exchange([each for frames in made for each in frames], IN_FLIGHT)
        seconds = time.perf_counter() - started
        _require_written(answers)
        return Turn(rounds * per_batch * partitions, seconds)

    return send


def _full_batch(record_bytes: int) -> tuple[int, bytes]:
    """How many records fit into a batch, and such a batch."""
    per_batch = BATCH_BYTES // (record_bytes + RECORD_OVERHEAD_BYTES)
    values = payloads(record_bytes)
    return per_batch, make_batch([values[n % len(values)] for n in range(per_batch)])


def _frames(
    senders: list[HandmadeProducer],
    identities: list[tuple[int, int]],
    topic: str,
    batch: bytes,
    partitions: int,
    sequence: int,
) -> list[Frame]:
    """A batch of each producer for each partition, the producers taking turns."""
    frames = []
    sent = [
        numbered(batch, producer_id=producer_id, epoch=epoch, sequence=sequence if producer_id >= 0 else -1)
        for producer_id, epoch in identities
    ]
    for first in range(0, partitions, REQUEST_BATCHES):
        among = range(first, min(partitions, first + REQUEST_BATCHES))
        for sender, numbers in zip(senders, sent, strict=True):
            frames.append((sender, sender.frame_produce({(topic, partition): numbers for partition in among})))
    return frames


def _exchange(frames: list[Frame], in_flight: int) -> list[Frame]:
    """Send the frames and return the answers, each with its connection, in the order of sending."""
    answers = []
    for number, (sender, frame) in enumerate(frames):
        if number >= in_flight:
            oldest = frames[number - in_flight][0]
            answers.append((oldest, oldest.receive_frame()))
        sender.send_frame(frame)
    return answers + [(sender, sender.receive_frame()) for sender, _ in frames[len(answers) :]]


def _require_written(answers: list[Frame]) -> None:
    outcomes = [one for sender, frame in answers for one in sender.decode_produce(frame).values()]
    refused = [one for one in outcomes if one.code != 0]
    if refused:
        raise SystemExit(f"{len(refused)} batches were refused, the first with {refused[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True, help="at least so many")
    parser.add_argument("--record-bytes", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--not-idempotent", dest="is_idempotent", action="store_false")
    arguments = vars(parser.parse_args())
    print(json.dumps(produce(arguments.pop("bootstrap"), arguments.pop("topic"), **arguments)))


if __name__ == "__main__":
    main()
