"""Snapshot files: what they bring back, that they appear and apply as a whole, and which of them are refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.state import Ordering, Outcome, StateError, UnknownNamespace, Version
from gateway.pipeline.checkpoints import commit_batch, go_back
from gateway.pipeline.snapshots import CorruptSnapshot, Header, SnapshotDiffers, read_header
from gateway.pipeline.state import State, Stored

names = (f"name {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def connection(module_database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(module_database_url, autocommit=True) as connected:
        yield connected


@pytest.fixture
def state(connection: psycopg.Connection[Any]) -> State:
    state = State.create(connection, next(names))
    state.put_many([(b"a", b"1", 1), (b"b\0", b"", (2, 3)), (b"", None, 5)])
    return state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def contents(state: State) -> list[Stored | None]:
    return [state.entry(key) for key in (b"a", b"b\0", b"", b"new")]


def test_a_restored_namespace_is_what_it_was(state: State, path: Path) -> None:
    before = contents(state)
    assert state.snapshot(path) == 3
    state.put_many([(b"a", b"2", 2), (b"new", b"x", 1), (b"b\0", None, (2, 4))])
    assert state.restore(path) == 3
    assert contents(state) == before
    assert state.put(b"a", b"2", 2) is Outcome.APPLIED, "versions went back too"


def test_chosen_keys_come_back_alone(state: State, path: Path) -> None:
    state.snapshot(path)
    state.put_many([(b"a", b"2", 2), (b"new", b"x", 1), (b"b\0", None, (2, 4))])
    assert state.restore(path, keys=[b"a", b"new"]) == 1
    assert [state.get(key) for key in (b"a", b"b\0", b"new")] == [b"1", None, None]
    assert state.entry(b"new") is None, "it was not there when the snapshot was taken"


def test_a_snapshot_of_chosen_keys_restores_chosen_keys(state: State, path: Path) -> None:
    assert state.snapshot(path, keys=[b"a", b"nowhere"]) == 1
    assert read_header(path) == Header(state.namespace, Ordering.LATEST, None, is_whole=False)
    with pytest.raises(SnapshotDiffers, match="name the keys to restore"):
        state.restore(path)
    state.put(b"a", b"2", 2)
    assert state.restore(path, keys=[b"a"]) == 1
    assert state.get(b"a") == b"1"


def test_a_namespace_is_copied_by_a_file(connection: psycopg.Connection[Any], state: State, path: Path) -> None:
    state.snapshot(path)
    other = State.create(connection, next(names))
    other.put(b"gone", b"x", 1)
    other.restore(path)
    assert contents(other) == contents(state)
    assert other.entry(b"gone") is None


def test_equal_states_are_equal_files(connection: psycopg.Connection[Any], state: State, path: Path) -> None:
    state.snapshot(path)
    first = path.read_bytes()
    state.put(b"a", b"2", 2)
    state.snapshot(path)
    assert path.read_bytes() != first
    state.drop()
    again = State.create(connection, state.namespace)
    for key, value, version in ((b"", None, 5), (b"b\0", b"", (2, 3)), (b"a", b"0", 0), (b"a", b"1", 1)):
        if value is None:
            again.delete(key, version)
        else:
            again.put(key, value, version)
    again.snapshot(path)
    assert path.read_bytes() == first


def test_what_waits_and_the_seal_are_part_of_it(connection: psycopg.Connection[Any], path: Path) -> None:
    state = State.create(connection, next(names), ordering="sealed")
    state.put_many([(b"k", b"%d" % number, number) for number in range(5)])
    state.seal(2)
    assert state.snapshot(path) == 3
    state.seal(4)
    with pytest.raises(SnapshotDiffers, match=r"sealed up to \(0, 2\) and .* up to \(0, 4\)"):
        state.restore(path, keys=[b"k"])
    state.restore(path)
    assert (state.describe().seal, state.get(b"k")) == (Version(0, 2), b"2")
    assert state.put(b"k", b"3", 3) is Outcome.UNCHANGED, "it waits again"
    assert state.seal(4) == 2
    with pytest.raises(SnapshotDiffers, match=r"ordering sealed; .* has latest"):
        State.create(connection, next(names)).restore(path)


def test_a_restore_can_be_undone_by_going_back(connection: psycopg.Connection[Any], path: Path) -> None:
    pipeline = next(names)
    state = State.create(connection, next(names), pipeline=pipeline)
    state.put_many([(b"a", b"1", 1), (b"b", b"1", 1)])
    state.snapshot(path)
    state.put_many([(b"a", b"2", 2), (b"c", b"2", 2)])
    commit_batch(connection, pipeline, 1, {})
    state.restore(path)
    assert [state.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"1", None]
    go_back(connection, pipeline, 1)
    assert [state.get(key) for key in (b"a", b"b", b"c")] == [b"2", b"1", b"2"]


def test_a_snapshot_is_of_the_callers_transaction(
    connection: psycopg.Connection[Any], state: State, path: Path
) -> None:
    with connection.transaction(force_rollback=True):
        state.put(b"new", b"x", 1)
        assert state.snapshot(path) == 4
        state.delete(b"new", 2)
        state.restore(path)
        assert state.get(b"new") == b"x"
    assert state.entry(b"new") is None


# --- files that do not appear ----------------------------------------------------------------


def test_a_file_that_could_not_be_finished_leaves_the_old_one(
    state: State, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.snapshot(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match="cannot be written: No space left on device"):
        state.snapshot(path)
    monkeypatch.undo()
    assert [path.read_bytes(), *path.parent.iterdir()] == [before, path]
    assert state.get(b"a") == b"1", "the connection goes on"


def test_no_namespace_and_no_directory(connection: psycopg.Connection[Any], state: State, path: Path) -> None:
    missing = State(connection, "nowhere")
    with pytest.raises(UnknownNamespace):
        missing.snapshot(path)
    state.snapshot(path)
    with pytest.raises(UnknownNamespace):
        missing.restore(path)
    with pytest.raises(StateError, match="There is no directory"):
        state.snapshot(path.parent / "none" / "file")
    with pytest.raises(StateError, match="cannot be read: No such file"):
        state.restore(path.parent / "none")
    with pytest.raises(StateError, match="cannot be read: Is a directory"):
        state.restore(path.parent)


# --- files that are refused ------------------------------------------------------------------


def sealed_file(records: bytes, *, count: int, header: bytes | None = None) -> bytes:
    """A file with a right checksum, whatever is in it; the format as docs/state.md describes it."""
    fields = {"keys": "all", "namespace": "x", "ordering": "latest", "sealed": None}
    said = json.dumps(fields).encode() + b"\n" if header is None else header
    body = b"tablewire-state 1\n" + said + records + b"E" + struct.pack(">Q", count)
    return body + hashlib.sha256(body).digest()


def record(kind: bytes = b"A", epoch: int = 0, number: int = 1, key: bytes = b"k", value: bytes = b"v") -> bytes:
    return kind + struct.pack(">qqHI", epoch, number, len(key), len(value)) + key + value


def test_a_file_made_by_hand_is_read(state: State, path: Path) -> None:
    deleted = b"A" + struct.pack(">qqHI", 3, 4, 1, 0xFFFFFFFF) + b"d"
    path.write_bytes(sealed_file(record() + deleted, count=2))
    assert state.restore(path) == 2
    assert state.entry(b"k") == Stored(Version(0, 1), b"v", is_deleted=False)
    assert state.entry(b"d") == Stored(Version(3, 4), None, is_deleted=True)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "no first line"),
    "another file": (lambda: b"PK\3\4 something else\n" * 10, "does not begin with `tablewire-state`"),
    "no line at all": (lambda: b"x" * 100_000, "no first line"),
    "a newer format": (lambda: b"tablewire-state 2\n{}\n", "has format 2; this version reads 1"),
    "no header": (lambda: b"tablewire-state 1\n", "no header"),
    "a header that is no JSON": (lambda: sealed_file(b"", count=0, header=b"{\n"), "header cannot be understood"),
    "a header of something else": (lambda: sealed_file(b"", count=0, header=b"[1]\n"), "header cannot be understood"),
    "a header without end": (lambda: b"tablewire-state 1\n" + b"{" * 10_000, "no header"),
    "a negative seal": (
        lambda: sealed_file(
            b"", count=0, header=b'{"keys":"all","namespace":"x","ordering":"sealed","sealed":[0,-1]}\n'
        ),
        "header cannot be understood",
    ),
    "a wrong count": (lambda: sealed_file(record(), count=2), "says that it has 2 records, and has 1"),
    "an unknown record": (lambda: sealed_file(record(b"X"), count=1), "unknown kind b'X'"),
    "a key that is too long": (lambda: sealed_file(record(key=b"k" * 2049), count=1), "too large"),
    "a value longer than the file": (
        lambda: sealed_file(b"A" + struct.pack(">qqHI", 0, 1, 1, 60 * 2**20) + b"k", count=1),
        "ends in the middle of a value",
    ),
    "a value of 4 GB": (
        lambda: sealed_file(b"A" + struct.pack(">qqHI", 0, 1, 1, 0xFFFFFFFE) + b"k", count=1),
        "too large",
    ),
    "a negative version": (lambda: sealed_file(record(number=-1), count=1), "where it cannot be"),
    "what waits where nothing does": (lambda: sealed_file(record(b"B"), count=1), "where it cannot be"),
    "a key twice": (lambda: sealed_file(record() + record(number=2), count=2), "holds a key twice"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_is_no_snapshot_changes_nothing(state: State, path: Path, what: str) -> None:
    make, said = REFUSED[what]
    before = contents(state)
    path.write_bytes(make())
    with pytest.raises(CorruptSnapshot, match=said):
        state.restore(path)
    assert contents(state) == before


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_or_shortened_file_changes_nothing(state: State, path: Path, data: st.DataObject) -> None:
    if not path.exists():
        state.snapshot(path)
        path.with_suffix(".sound").write_bytes(path.read_bytes())
    sound = path.with_suffix(".sound").read_bytes()
    place = data.draw(st.integers(0, len(sound) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(sound[:place])
    else:
        damaged = bytearray(sound)
        damaged[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
    before = contents(state)
    with pytest.raises(CorruptSnapshot):
        state.restore(path)
    assert contents(state) == before


def test_memory_does_not_grow_with_the_namespace(connection: psycopg.Connection[Any], path: Path) -> None:
    """24 MiB of values pass through, and at no moment are half of them in memory."""
    state = State.create(connection, next(names))
    value = os.urandom(2**20)
    tracemalloc.start()
    try:
        state.put_many((b"%d" % number, value, 1) for number in range(24))
        assert state.snapshot(path) == 24
        assert state.restore(path) == 24
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 12 * 2**20
    assert state.get(b"23") == value
