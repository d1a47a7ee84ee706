"""Random histories of puts, deletes, seals, snapshots, restores, commits, ways back and replays, on a real PostgreSQL,
against a model that copies everything and knows no SQL."""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.domain.state import Entry, Ordering, Outcome, Put, UnknownCheckpoint, Version, decide_put, decide_puts
from gateway.pipeline.checkpoints import begin_batch, checkpoints, commit_batch, go_back, keep_checkpoints
from gateway.pipeline.snapshots import SnapshotDiffers
from gateway.pipeline.state import State, apply_staged

KEPT = 3
NAMES = ("latest", "sealed", "free")
"""Two namespaces of a pipeline, one of each ordering, and one that no checkpoint covers."""

ORDERINGS = {"latest": Ordering.LATEST, "sealed": Ordering.SEALED, "free": Ordering.SEALED}
KEYS = st.sampled_from([b"", b"a", b"b\0", b"\xff"])
VALUES = st.sampled_from([None, b"", b"x", b"\0y"])
VERSIONS = st.builds(Version, st.integers(0, 2), st.integers(0, 4))
PUTS = st.lists(st.builds(Put, KEYS, VERSIONS, VALUES), min_size=1, max_size=6)
SPACES = st.sampled_from(NAMES)


@dataclass
class ModelNamespace:
    ordering: Ordering
    held: dict[bytes, Entry] = field(default_factory=dict)
    waiting: dict[tuple[bytes, Version], Entry] = field(default_factory=dict)
    seal: Version | None = None

    def put_together(self, puts: list[Put]) -> list[Outcome]:
        outcomes = decide_puts(puts, ordering=self.ordering, held=self.held, waiting=self.waiting, seal=self.seal)
        for put, outcome in sorted(zip(puts, outcomes, strict=True), key=lambda pair: pair[0].version):
            one = Entry(put.version, put.value)
            if outcome is Outcome.APPLIED:
                self.held[put.key] = one
            elif outcome is Outcome.BUFFERED:
                self.waiting[put.key, put.version] = one
        return outcomes

    def put(self, put: Put) -> Outcome:
        outcome = decide_put(
            Entry(put.version, put.value),
            ordering=self.ordering,
            held=self.held.get(put.key),
            waiting=self.waiting.get((put.key, put.version)),
            seal=self.seal,
        )
        assert self.put_together([put]) == [outcome]
        return outcome

    def seal_up_to(self, seal: Version) -> list[tuple[bytes, Version, bytes | None]]:
        if self.seal is not None and seal <= self.seal:
            return []
        self.seal = seal
        places = sorted((place for place in self.waiting if place[1] <= seal), key=lambda place: (place[1], place[0]))
        applied = []
        for key, version in places:
            self.held[key] = self.waiting.pop((key, version))
            applied.append((key, version, self.held[key].value))
        return applied

    def replace(self, other: ModelNamespace, keys: list[bytes] | None) -> None:
        def chosen(key: bytes) -> bool:
            return keys is None or key in keys

        self.held = {key: one for key, one in self.held.items() if not chosen(key)} | {
            key: one for key, one in other.held.items() if chosen(key)
        }
        self.waiting = {place: one for place, one in self.waiting.items() if not chosen(place[0])} | {
            place: one for place, one in other.waiting.items() if chosen(place[0])
        }
        if keys is None:
            self.seal = other.seal


@dataclass
class ModelCheckpoint:
    positions: dict[tuple[int, int], int]
    spaces: dict[str, ModelNamespace]
    done_after: list[Callable[[], None]] = field(default_factory=list)
    """What was done since, to do it again."""


class StateMachine(RuleBasedStateMachine):
    """Every rule does the same to PostgreSQL and to the model; what both say must agree."""

    numbers = itertools.count()

    def __init__(self, connection: psycopg.Connection[Any], topic_id: int, directory: Path) -> None:
        super().__init__()
        self.connection, self.topic_id, self.directory = connection, topic_id, directory
        self.number = next(self.numbers)
        self.pipeline = f"pipeline {self.number}"
        self.spaces = {name: ModelNamespace(ORDERINGS[name]) for name in NAMES}
        self.states: dict[str, State] = {}
        self.positions: dict[tuple[int, int], int] = {}
        self.snapshots: list[tuple[Path, ModelNamespace, list[bytes] | None]] = []

    @initialize()
    def create(self) -> None:
        for name in NAMES:
            self.states[name] = State.create(
                self.connection,
                f"{name} {self.number}",
                ordering=ORDERINGS[name],
                pipeline=None if name == "free" else self.pipeline,
            )
        keep_checkpoints(self.connection, self.pipeline, KEPT)
        self.checkpoints = {0: self.checkpoint()}

    def checkpoint(self) -> ModelCheckpoint:
        covered = {name: space for name, space in self.spaces.items() if name != "free"}
        return ModelCheckpoint(dict(self.positions), copy.deepcopy(covered))

    @property
    def batch_id(self) -> int:
        return max(self.checkpoints)

    def do(self, name: str, action: Callable[[], None]) -> None:
        if name != "free":
            self.checkpoints[self.batch_id].done_after.append(action)
        action()

    # --- changes -----------------------------------------------------------------------------

    @rule(name=SPACES, put=st.builds(Put, KEYS, VERSIONS, VALUES))
    def put_or_delete(self, name: str, put: Put) -> None:
        def action() -> None:
            state = self.states[name]
            if put.value is None:
                found = state.delete(put.key, put.version, strict=False)
            else:
                found = state.put(put.key, put.value, put.version, strict=False)
            assert found is self.spaces[name].put(put)

        self.do(name, action)

    @rule(name=SPACES, puts=PUTS, route=st.sampled_from(["arrays", "staging"]))
    def put_together(self, name: str, puts: list[Put], route: str) -> None:
        def action() -> None:
            found = self.put_by_arrays(name, puts) if route == "arrays" else self.put_by_staging(name, puts)
            assert found == Counter(self.spaces[name].put_together(puts))

        self.do(name, action)

    def put_by_arrays(self, name: str, puts: list[Put]) -> Any:
        return self.states[name].put_many([(put.key, put.value, put.version) for put in puts], strict=False)

    def put_by_staging(self, name: str, puts: list[Put]) -> Any:
        with self.connection.transaction():
            self.connection.execute("TRUNCATE staged_puts")
            self.connection.cursor().executemany(
                "INSERT INTO staged_puts VALUES (%s, %s, %s, %s)",
                [(put.version.round, put.value, put.key, put.version.epoch) for put in puts],
            )
            return apply_staged(self.connection, self.states[name].namespace, "staged_puts", strict=False)

    @rule(name=st.sampled_from(["sealed", "free"]), up_to=VERSIONS, wants_order=st.booleans())
    def seal(self, name: str, up_to: Version, wants_order: bool) -> None:
        def action() -> None:
            applied = self.spaces[name].seal_up_to(up_to)
            if wants_order:
                changes = self.states[name].seal_in_order(up_to)
                assert [(change.key, change.version, change.value) for change in changes] == applied
            else:
                assert self.states[name].seal(up_to) == len(applied)

        self.do(name, action)

    @rule(name=SPACES, puts=PUTS)
    def change_and_roll_back(self, name: str, puts: list[Put]) -> None:
        with self.connection.transaction(force_rollback=True):
            begin_batch(self.connection, self.pipeline)
            self.put_by_arrays(name, puts)
            commit_batch(self.connection, self.pipeline, self.batch_id + 1, {(self.topic_id, 0): 99})

    # --- snapshots ---------------------------------------------------------------------------

    @rule(name=SPACES, keys=st.none() | st.lists(KEYS, max_size=2))
    def snapshot(self, name: str, keys: list[bytes] | None) -> None:
        path = self.directory / f"{self.number}-{len(self.snapshots)}"
        space = self.spaces[name]
        entries = self.states[name].snapshot(path, keys)
        whole = copy.deepcopy(space)
        whole.replace(
            ModelNamespace(space.ordering, seal=space.seal), [k for k in self.every_key() if not in_(k, keys)]
        )
        assert entries == len(whole.held) + len(whole.waiting)
        self.snapshots.append((path, whole, keys))

    @staticmethod
    def every_key() -> list[bytes]:
        return [b"", b"a", b"b\0", b"\xff"]

    @precondition(lambda self: self.snapshots)
    @rule(name=SPACES, keys=st.none() | st.lists(KEYS, min_size=1, max_size=2), data=st.data())
    def restore(self, name: str, keys: list[bytes] | None, data: st.DataObject) -> None:
        path, saved, saved_keys = data.draw(st.sampled_from(self.snapshots))

        def action() -> None:
            space, state = self.spaces[name], self.states[name]
            fits = saved.ordering is space.ordering and (
                saved_keys is None if keys is None else saved.seal == space.seal
            )
            if not fits:
                with pytest.raises(SnapshotDiffers):
                    state.restore(path, keys)
                return
            restored = state.restore(path, keys)
            space.replace(saved, keys)
            in_file = [key for key in (*saved.held, *(place[0] for place in saved.waiting)) if in_(key, keys)]
            assert restored == len(in_file)

        self.do(name, action)

    # --- checkpoints -------------------------------------------------------------------------

    @rule(partition=st.integers(0, 1), offset=st.integers(0, 50), rows=st.integers(0, 5))
    def commit(self, partition: int, offset: int, rows: int) -> None:
        self.commit_at({(self.topic_id, partition): offset}, rows)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3), is_sealed=st.booleans(), offset=st.integers(0, 50))
    def work_a_batch(self, keys: list[bytes], is_sealed: bool, offset: int) -> None:
        """What a runner does: newer versions than any before, so that batch after batch changes the same keys."""
        epoch = 3 + self.batch_id
        puts = [Put(key, Version(epoch, number), b"%d" % epoch) for number, key in enumerate(keys)]
        for name in ("latest", "sealed"):
            self.put_together(name, puts, "arrays")
        if is_sealed:
            self.seal("sealed", Version(epoch, 1), wants_order=True)
        self.commit_at({(self.topic_id, 0): offset}, len(keys))

    def commit_at(self, moved: dict[tuple[int, int], int], rows: int = 0) -> None:
        batch_id = self.batch_id + 1
        with self.connection.transaction():
            assert begin_batch(self.connection, self.pipeline) == self.batch_id
            assert commit_batch(self.connection, self.pipeline, batch_id, moved, rows=rows)
        self.positions |= moved
        self.checkpoints[batch_id] = self.checkpoint()
        for old in [old for old in self.checkpoints if old <= batch_id - KEPT]:
            del self.checkpoints[old]

    @rule()
    def commit_again(self) -> None:
        assert not commit_batch(self.connection, self.pipeline, self.batch_id, {(self.topic_id, 0): 1234})

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        self.return_to(data.draw(st.sampled_from(sorted(self.checkpoints))))

    def return_to(self, batch_id: int) -> None:
        go_back(self.connection, self.pipeline, batch_id)
        chosen = self.checkpoints[batch_id]
        self.checkpoints = {kept: one for kept, one in self.checkpoints.items() if kept <= batch_id}
        self.positions = dict(chosen.positions)
        self.spaces |= copy.deepcopy(chosen.spaces)
        chosen.done_after = []

    @rule(data=st.data())
    def go_back_and_replay(self, data: st.DataObject) -> None:
        """From any checkpoint the same input leads to the same state, positions and files."""
        batch_id = data.draw(st.sampled_from(sorted(self.checkpoints)))
        before = {name: self.file_of(name) for name in ("latest", "sealed")}
        positions = dict(self.positions)
        again = [
            (number, one.positions, list(one.done_after))
            for number, one in sorted(self.checkpoints.items())
            if number >= batch_id
        ]
        self.return_to(batch_id)
        for number, reached, done in again:
            if number > batch_id:
                self.commit_at(reached)
            for action in done:
                self.do("latest", action)
        assert {name: self.file_of(name) for name in ("latest", "sealed")} == before
        assert self.positions == positions

    def file_of(self, name: str) -> bytes:
        path = self.directory / "compared"
        self.states[name].snapshot(path)
        return path.read_bytes()

    @rule(offset=st.sampled_from([-1, 1, 10]))
    def go_back_to_no_checkpoint(self, offset: int) -> None:
        batch_id = self.batch_id + offset if offset > 0 else min(self.checkpoints) - 1
        with pytest.raises(UnknownCheckpoint, match="kept are"):
            go_back(self.connection, self.pipeline, batch_id)

    # --- agreement ---------------------------------------------------------------------------

    @invariant()
    def postgresql_holds_what_the_model_holds(self) -> None:
        if not self.states:
            return
        for name, space in self.spaces.items():
            namespace = self.states[name].namespace
            held = self.rows("SELECT key, epoch, round, value FROM kafka.state WHERE namespace = %s", namespace)
            assert {row[0]: Entry(Version(*row[1:3]), row[3]) for row in held} == space.held
            waiting = self.rows(
                "SELECT key, epoch, round, value FROM kafka.state_buffer WHERE namespace = %s AND removed_in IS NULL",
                namespace,
            )
            found = {(row[0], Version(*row[1:3])): Entry(Version(*row[1:3]), row[3]) for row in waiting}
            assert found == space.waiting
            assert self.states[name].describe().seal == space.seal

    @invariant()
    def checkpoints_are_those_of_the_model(self) -> None:
        if not self.states:
            return
        found = checkpoints(self.connection, self.pipeline)
        assert [one.batch_id for one in found] == sorted(self.checkpoints, reverse=True)
        for one in found:
            expected = self.checkpoints[one.batch_id].positions
            assert {(at.topic_id, at.partition): at.next_offset for at in one.positions} == expected
        positions = self.rows(
            "SELECT topic_id, partition, next_offset FROM kafka.pipeline_positions WHERE pipeline = %s", self.pipeline
        )
        assert {row[:2]: row[2] for row in positions} == self.positions

    @invariant()
    def history_goes_with_its_checkpoints(self) -> None:
        if not self.states:
            return
        oldest = min(self.checkpoints)
        names = [state.namespace for state in self.states.values()]
        assert not self.rows(
            "SELECT FROM kafka.state_history WHERE namespace = ANY (%s) AND batch_id <= %s", names, oldest
        )
        assert not self.rows(
            "SELECT FROM kafka.state_buffer WHERE namespace = ANY (%s) AND removed_in <= %s", names, oldest
        )
        free = [self.states["free"].namespace]
        assert not self.rows("SELECT FROM kafka.state_history WHERE namespace = ANY (%s)", free)
        assert not self.rows(
            "SELECT FROM kafka.state_buffer WHERE namespace = ANY (%s) AND removed_in IS NOT NULL", free
        )

    def rows(self, query: Any, *parameters: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, parameters, binary=True).fetchall()


def in_(key: bytes, keys: list[bytes] | None) -> bool:
    return keys is None or key in keys


@pytest.fixture
def connection(module_database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(module_database_url, autocommit=True) as connected:
        connected.execute("SET synchronous_commit = off")
        connected.execute("CREATE TEMPORARY TABLE staged_puts (round bigint, value bytea, key bytea, epoch bigint)")
        yield connected


def test_histories_agree_with_the_model(connection: psycopg.Connection[Any]) -> None:
    ((topic_id,),) = connection.execute(
        "INSERT INTO kafka.topics (name, partition_count) VALUES ('input', 2) RETURNING topic_id"
    ).fetchall()
    with tempfile.TemporaryDirectory() as directory:
        run_state_machine_as_test(
            lambda: StateMachine(connection, topic_id, Path(directory)),
            settings=settings(
                max_examples=500 if os.environ.get("TABLEWIRE_TEST_FULL") else 40,
                stateful_step_count=30,
                suppress_health_check=[HealthCheck.too_slow],
                deadline=None,
            ),
        )
