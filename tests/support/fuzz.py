"""Mutations by the million of what the decoders of client bytes accept: each may refuse with its own error only.

`make fuzz`, or `python -m tests.support.fuzz --executions 1000000 --seed 1 --only batch`, runs on two processes and
ends with 1 if something was found. The seed gives the same inputs again, and each finding is printed with its bytes;
a crash of native code and a hang are findings too, and no decoder gets more than `MEMORY_BYTES` of address space.
"""

from __future__ import annotations

import argparse
import math
import mmap
import multiprocessing
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import google_crc32c
from aiokafka import codec as encoding
from aiokafka.record._crecords.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema

from gateway.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from gateway.handlers import HANDLERS
from gateway.protocol import compression
from gateway.protocol.batches import BatchLimits, StoredBatch, decode_produced
from gateway.protocol.consumer_protocol import (
    MalformedSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscribed_topics,
)
from gateway.protocol.copy_rows import copy_rows
from gateway.protocol.framing import FrameReader, MalformedFrame, frame
from gateway.protocol.messages import ApiKey, MalformedRequest, decode_header, decode_request
from gateway.protocol.produce_requests import FIRST_VERSION_WITH_IDS, read_usual
from tests.support.random_messages import TEXTS, random_request

EXECUTIONS = 1_000_000
PROCESSES = 2
PIECE = 2_000
"""Mutations that one process makes in one go, from one seed."""
MUTATIONS_PER_SAMPLE = 50
SLOW_S = 5.0
"""A decoder that takes this long for a few hundred bytes is too slow, however busy the machine is."""
HANG_S = 60
MEMORY_BYTES = 4 << 30

LIMITS = BatchLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=4 << 20)
REFUSALS = (CorruptMessage, InvalidRecord, InvalidTimestamp, MessageTooLarge, UnsupportedCompressionType)
ENCODERS = {1: encoding.gzip_encode, 2: encoding.snappy_encode, 3: encoding.lz4_encode, 4: encoding.zstd_encode}
CODECS = {0: "plain", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@dataclass(frozen=True)
class Decoder:
    """What is fuzzed: where its sound inputs come from, how it is called, and how it may refuse."""

    name: str
    sample: Callable[[Random], bytes]
    decode: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...]
    mend: Callable[[bytes], bytes] = bytes
    """Makes a checksum or a length right again, so that the change behind it is looked at; most of the time."""
    untouched_bytes: int = 0


@dataclass
class Outcome:
    """What became of some mutations of one decoder."""

    decoder: str
    executions: int = 0
    accepted: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.executions += other.executions
        self.accepted += other.accepted
        self.findings += other.findings


# --- the decoders ----------------------------------------------------------------------------


@cache
def decoders() -> dict[str, Decoder]:
    """By name, every one that reads bytes of clients."""
    found = [
        Decoder("frames", _sample_frames, _decode_frames, (MalformedFrame,)),
        Decoder(
            "subscription",
            _sample_subscription,
            lambda data: (subscribed_topics(data), decode_subscription(data)),
            (MalformedSubscription,),
        ),
        Decoder("assignment", _sample_assignment, decode_assignment, (MalformedSubscription,)),
    ]
    for codec, name in CODECS.items():
        sample = partial(_sample_batch, codec=codec)
        found.append(Decoder(f"batch {name}", sample, _decode_batch, REFUSALS, _mended_batch))
        if codec:
            inside = partial(_compressed_batch, codec=codec)
            found += [
                Decoder(
                    f"batch damaged inside {name}", partial(_sample_batch, codec=0), _decode_batch, REFUSALS, inside
                ),
                Decoder(f"{name} stream", partial(_sample_stream, codec=codec), _expander(codec), REFUSALS),
            ]
    for api_key, handler in sorted(HANDLERS.items()):
        for version in handler.versions:
            name = f"request {ApiKey(api_key).name.lower()} v{version}"
            sample = partial(random_request, load_request_schema(api_key, version))
            # The first eight bytes choose the decoder, and this is to be the one that is meant.
            found.append(Decoder(name, sample, decode_either_way, (MalformedRequest,), untouched_bytes=8))
    found.append(Decoder("request header", _sample_any_request, decode_either_way, (MalformedRequest,)))
    return {decoder.name: decoder for decoder in found}


def _sample_frames(random: Random) -> bytes:
    return b"".join(frame(random.randbytes(random.randint(1, 60))) for _ in range(random.randint(1, 4)))


def _decode_frames(data: bytes) -> None:
    reader = FrameReader(max_bytes=1 << 20)
    for start in range(0, len(data), 7):
        reader.feed(data[start : start + 7])


def decode_either_way(data: bytes) -> Any:
    """What is read the short way must be read the long way too, and be the same."""
    header = decode_header(data)
    usual = read_usual(data, version=header.version) if header.api_key == ApiKey.PRODUCE else None
    try:
        decoded = decode_request(data, header)
    except MalformedRequest as error:
        if usual is not None:
            raise AssertionError(f"read, though {error}") from error
        raise
    assert usual is None or _produced(usual, header.version) == _produced(decoded, header.version)
    return decoded


def _produced(read: tuple[str | None, Any], version: int) -> Any:
    client_id, request = read
    label = "topic_id" if version >= FIRST_VERSION_WITH_IDS else "name"
    topics = [
        (getattr(topic, label), [(each.index, each.records) for each in topic.partition_data])
        for topic in request.topic_data
    ]
    return client_id, request.transactional_id, request.acks, topics


def _sample_any_request(random: Random) -> bytes:
    handler = random.choice(sorted(HANDLERS.values(), key=lambda handler: handler.api_key))
    return random_request(load_request_schema(handler.api_key, random.choice(handler.versions)), random)


def _sample_by_topic(random: Random) -> dict[str, list[int]]:
    return {
        random.choice(TEXTS): [random.randint(0, 99) for _ in range(random.randint(0, 4))]
        for _ in range(random.randint(0, 3))
    }


def _sample_assignment(random: Random) -> bytes:
    return encode_assignment(_sample_by_topic(random), version=random.randint(0, 3))


def _sample_subscription(random: Random) -> bytes:
    topics = [random.choice(TEXTS).encode() for _ in range(random.randint(0, 3))]
    version = random.randint(0, 3)
    data = struct.pack(">hi", version, len(topics)) + b"".join(struct.pack(">h", len(one)) + one for one in topics)
    data += struct.pack(">i3s", 3, b"own") if random.random() < 0.5 else struct.pack(">i", -1)
    if version >= 1:  # written as the partitions of an assignment are, between its version and its blob
        data += encode_assignment(_sample_by_topic(random), version=0)[2:-4]
    if version >= 2:
        data += struct.pack(">i", random.randint(-1, 99))
    if version >= 3:
        data += struct.pack(">h4s", 4, b"rack")
    return data


def _sample_batch(random: Random, *, codec: int) -> bytes:
    producer = (
        (random.randint(0, 9), random.randint(0, 9), random.randint(0, 99)) if random.random() < 0.5 else (-1,) * 3
    )
    builder = DefaultRecordBatchBuilder(2, codec, int(random.random() < 0.2), *producer, 1 << 20)
    base_ms = random.choice((0, 1_790_000_000_000, 9_224_318_015_999_000))
    for index in range(random.randint(1, 6)):
        headers = [(random.choice(TEXTS[1:5]), _content(random)) for _ in range(random.choice((0, 0, 0, 1, 3)))]
        builder.append(index, base_ms + random.randint(0, 900), _content(random), _content(random), headers)
    return bytes(builder.build())


def _content(random: Random) -> bytes | None:
    chosen = random.randint(0, 4)
    if chosen == 0:
        return None
    return b"tablewire " * random.randint(0, 30) if chosen < 3 else random.randbytes(random.randint(0, 60))


def _mended_batch(data: bytes) -> bytes:
    """Length and CRC as they must be for the rest to be read at all."""
    if len(data) < 61:
        return data
    mended = bytearray(data)
    struct.pack_into(">q", mended, 0, 0)
    struct.pack_into(">i", mended, 8, len(data) - 12)
    mended[16] = 2
    struct.pack_into(">I", mended, 17, google_crc32c.value(bytes(mended[21:])))
    return bytes(mended)


def _compressed_batch(data: bytes, *, codec: int) -> bytes:
    """Sound compression around records that are not."""
    if len(data) < 61:
        return data
    attributes = struct.pack(">h", struct.unpack_from(">h", data, 21)[0] & ~7 | codec)
    return _mended_batch(data[:21] + attributes + data[23:61] + ENCODERS[codec](data[61:]))


def _decode_batch(data: bytes) -> None:
    """What was accepted must become rows and be servable too."""
    batch = decode_produced(data, LIMITS)
    copy_rows(batch, topic_id=1, partition=2, base_offset=3, log_append_time_ms=None)
    stored = bytes(StoredBatch(batch, base_offset=9, leader_epoch=1, log_append_time_ms=None))
    assert stored[61:] == data[61:]


def _sample_stream(random: Random, *, codec: int) -> bytes:
    return _sample_batch(random, codec=codec)[61:]


def _expander(codec: int) -> Callable[[bytes], Any]:
    return lambda data: compression.decompress(memoryview(data), codec=codec, max_bytes=1 << 20)


# --- mutations -------------------------------------------------------------------------------

NUMBERS = [
    struct.pack(kind, value)
    for kind, values in {
        ">h": (-(2**15), -2, -1, 0, 2**15 - 1),
        ">i": (-(2**31), -2, -1, 0, 1, 2**16, 2**31 - 1),
        ">q": (-(2**63), -2, -1, 0, 2**63 - 1),
    }.items()
    for value in values
]
VARINTS = [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\x80\x00", b"\x00"]


def mutated(sample: bytes, random: Random, *, untouched_bytes: int) -> bytes:
    """A few bytes changed, cut out, put in or doubled; numbers overwritten by evil ones; or the end cut off."""
    data = bytearray(sample)
    for _ in range(random.randint(1, 4)):
        size = len(data)
        position = random.randint(min(untouched_bytes, size), size)
        match random.randint(0, 7):
            case 0 if position < size:
                data[position] ^= 1 << random.randint(0, 7)
            case 1 if position < size:
                data[position] = random.randint(0, 255)
            case 2:
                del data[position : position + random.randint(1, 8)]
            case 3:
                data[position:position] = random.randbytes(random.randint(1, 8))
            case 4:
                number = random.choice(NUMBERS)
                data[position : position + len(number)] = number
            case 5:
                data[position : position + 1] = random.choice(VARINTS)
            case 6:
                data[position:position] = data[position : position + random.randint(1, 40)]
            case _ if random.random() < 0.2:
                del data[position:]
    return bytes(data)


def inputs(decoder: Decoder, random: Random) -> Iterator[bytes]:
    """Without end, each derived from a sound one."""
    while True:
        sample = decoder.sample(random)
        for _ in range(MUTATIONS_PER_SAMPLE):
            data = mutated(sample, random, untouched_bytes=decoder.untouched_bytes)
            yield decoder.mend(data) if random.random() < 0.9 else data


# --- running ---------------------------------------------------------------------------------


def fuzz(decoder: Decoder, seed: str, executions: int, note: Callable[[bytes], None] = lambda data: None) -> Outcome:
    """Try `executions` mutations; `note` sees each before the decoder does."""
    outcome = Outcome(decoder.name)
    random = Random(f"{seed} {decoder.name}")
    for data, _ in zip(inputs(decoder, random), range(executions), strict=False):
        note(data)
        started_at = time.process_time()  # others may have the cores meanwhile
        try:
            decoder.decode(data)
            outcome.accepted += 1
        except decoder.errors:
            pass
        except BaseException:  # noqa: BLE001 - a panic of native code is a BaseException
            outcome.findings.append(f"{decoder.name} (seed {seed!r}): {data.hex()}\n{traceback.format_exc(limit=-4)}")
        if (taken_s := time.process_time() - started_at) > SLOW_S:
            outcome.findings.append(f"{decoder.name} (seed {seed!r}) took {taken_s:.1f} s: {data.hex()}")
        outcome.executions += 1
    return outcome


class LastInput:
    """What a process decodes at the moment, in a file that outlives it: the witness of a crash."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(1 << 16))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def note(self, data: bytes) -> None:
        signal.alarm(HANG_S)  # whose default is to end the process
        data = data[: len(self._map) - 4]
        self._map[: 4 + len(data)] = struct.pack(">i", len(data)) + data

    @staticmethod
    def read(path: Path) -> bytes:
        data = path.read_bytes()
        return data[4 : 4 + int.from_bytes(data[:4], "big")]


_last_input: LastInput


def _start(directory: Path) -> None:
    global _last_input  # noqa: PLW0603 - one for each process of the pool
    _last_input = LastInput(directory / str(multiprocessing.current_process().pid))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _fuzz_piece(name: str, seed: str, executions: int) -> Outcome:
    return fuzz(decoders()[name], seed, executions, _last_input.note)


class Piece(NamedTuple):
    decoder: str
    seed: str
    executions: int


def pieces(names: Sequence[str], executions: int, seed: int) -> Iterator[Piece]:
    """Together `executions` and a few more: half of them for requests, in equal shares."""
    kinds = Counter(_is_request(name) for name in names)
    for name in names:
        left = math.ceil(executions / len(kinds) / kinds[_is_request(name)])
        for index in range(math.ceil(left / PIECE)):
            yield Piece(name, f"{seed}.{index}", min(PIECE, left - index * PIECE))


def _is_request(name: str) -> bool:
    return name.startswith("request")


def run(names: Sequence[str], *, executions: int, seed: int, processes: int) -> dict[str, Outcome]:
    """Fuzz the named decoders on several processes."""
    outcomes = {name: Outcome(name) for name in names}
    todo = list(pieces(names, executions, seed))[::-1]
    while todo:
        with tempfile.TemporaryDirectory(prefix="tablewire-fuzz-") as directory:
            _run_until_a_crash(todo, outcomes, processes, Path(directory))
    return outcomes


def _run_until_a_crash(todo: list[Piece], outcomes: dict[str, Outcome], processes: int, directory: Path) -> None:
    """Take pieces from the end of `todo`; when a process dies, those then at work are suspects and not repeated."""
    running: dict[Future[Outcome], Piece] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _start, (directory,)) as pool:
        while todo or running:
            while todo and len(running) < processes:
                piece = todo.pop()
                running[pool.submit(_fuzz_piece, *piece)] = piece
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    outcomes[running[future].decoder].add(future.result())
                except BrokenProcessPool:
                    inputs_then = [LastInput.read(path).hex() for path in directory.iterdir()]
                    for suspect in running.values():
                        outcomes[suspect.decoder].findings.append(f"{suspect}: a process died, at one of {inputs_then}")
                    return
                del running[future]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description=__doc__)
    parser.add_argument("--executions", type=int, default=EXECUTIONS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--only", default="", help="decoders whose name contains this")
    options = parser.parse_args()
    names = [name for name in decoders() if options.only in name]
    started_at = time.monotonic()
    outcomes = run(names, executions=options.executions, seed=options.seed, processes=options.processes)
    for name, outcome in outcomes.items():
        print(f"{name:50} {outcome.executions:8,} executions, {outcome.accepted:8,} accepted")
    findings = [finding for outcome in outcomes.values() for finding in outcome.findings]
    total = sum(outcome.executions for outcome in outcomes.values())
    taken_s = time.monotonic() - started_at
    print(f"{total:,} executions of {len(names)} decoders in {taken_s:.0f} s with seed {options.seed}")
    print(f"{len(findings)} findings")
    for finding in findings[:20]:
        print(f"\n{finding}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
