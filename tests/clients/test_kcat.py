"""kcat as Debian ships it: an old librdkafka, so older versions of the requests."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka_clients import ConfluentKafka, Received, Record

NOON = 1_700_000_000_000

Kcat = Callable[..., bytes]


@pytest.fixture
def kcat(bootstrap: str) -> Kcat:
    """Run kcat against the broker and return what it printed; it must exit with 0."""
    if shutil.which("kcat") is None:
        pytest.skip("`kcat` is not installed (Debian: the package kcat)")

    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            ["kcat", "-b", bootstrap, "-X", "topic.metadata.refresh.interval.ms=-1", *arguments],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    return run


def test_metadata_lists_brokers_and_topics(kcat: Kcat, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    listed = json.loads(kcat("-L", "-J", "-t", topic))
    assert bootstrap in [broker["name"] for broker in listed["brokers"]]
    (described,) = listed["topics"]
    assert described["topic"] == topic
    assert [one["partition"] for one in described["partitions"]] == [0, 1]
    assert all(one["leader"] == listed["brokers"][0]["id"] for one in described["partitions"])
    assert topic in [one["topic"] for one in json.loads(kcat("-L", "-J"))["topics"]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_are_produced_and_consumed(kcat: Kcat, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic()
    lines = b"".join(b"key-%d:value %d %s\n" % (n, n, b"." * 100) for n in range(200))
    kcat("-P", "-t", topic, "-p", "0", "-K:", "-z", codec, stdin=lines)
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K:") == lines


def test_headers_keys_nulls_and_times(kcat: Kcat, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-p", "0", "-H", "a=1", "-H", "a=2", "-H", "empty=", "-k", "key", stdin=b"value\n")
    kcat("-P", "-t", topic, "-p", "0", "-Z", "-K:", stdin=b"tombstone:\n")
    headed, tombstone = ConfluentKafka(bootstrap).consume(topic, 2)
    assert (headed.key, headed.value) == (b"key", b"value")
    assert headed.headers == (("a", b"1"), ("a", b"2"), ("empty", b""))
    assert (tombstone.key, tombstone.value) == (b"tombstone", None)
    printed = kcat("-C", "-t", topic, "-p", "0", "-o", "0", "-e", "-q", "-f", "%o %k %S %h %T\\n").decode()
    assert printed.splitlines() == [
        f"0 key 5 a=1,a=2,empty= {headed.timestamp_ms}",
        f"1 tombstone -1  {tombstone.timestamp_ms}",
    ]


def test_consuming_starts_anywhere(kcat: Kcat, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    records = [Record(b"%d" % n, None, (), NOON + n * 60_000) for n in range(10)]
    ConfluentKafka(bootstrap).produce(topic, records)

    def read(*start: str) -> list[bytes]:
        arguments = [word for one in start for word in ("-o", one)]
        return kcat("-C", "-t", topic, "-p", "0", *arguments, "-e", "-q").split()

    assert read("beginning") == [b"%d" % n for n in range(10)]
    assert read("7") == [b"7", b"8", b"9"]
    assert read("-2") == [b"8", b"9"]
    assert read("end") == []
    assert read(f"s@{NOON + 4 * 60_000}", f"e@{NOON + 6 * 60_000}") == [b"4", b"5"]
    times = kcat("-Q", "-t", f"{topic}:0:{NOON + 3 * 60_000 + 1}").decode()
    assert times.split() == [topic, "[0]", "offset", "4"]


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_each_acks_setting(kcat: Kcat, bootstrap: str, new_topic: Callable[..., str], acks: str) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-p", "0", "-X", f"acks={acks}", stdin=b"one\ntwo\n")
    received: list[Received] = ConfluentKafka(bootstrap).consume(topic, 2)
    assert [one.value for one in received] == [b"one", b"two"]


def test_an_idempotent_producer(kcat: Kcat, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-p", "0", "-X", "enable.idempotence=true", stdin=b"one\ntwo\n")
    assert [one.value for one in ConfluentKafka(bootstrap).consume(topic, 2)] == [b"one", b"two"]


def test_a_large_file_is_one_record(kcat: Kcat, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(max_message_bytes="4000000")
    content = bytes(range(256)) * 8000
    (tmp_path / "large").write_bytes(content)
    kcat("-P", "-t", topic, "-p", "0", "-X", "message.max.bytes=4000000", str(tmp_path / "large"))
    assert ConfluentKafka(bootstrap).consume(topic, 1)[0].value == content
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "0", "-c", "1", "-q", "-D", "") == content


def test_librdkafka_compresses(kcat: Kcat, new_topic: Callable[..., str]) -> None:
    """It does so only if ApiVersions shows Produce from version 0 on."""
    topic = new_topic(max_message_bytes="2000")
    kcat("-P", "-t", topic, "-p", "0", "-z", "gzip", stdin=b"a" * 100_000 + b"\n")
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "0", "-c", "1", "-q") == b"a" * 100_000 + b"\n"
