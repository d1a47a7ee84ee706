"""The rule of versioned state: cases that read as the specification, then Hypothesis against a naive reading of it."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.state import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Encoding,
    Entry,
    InvalidState,
    Ordering,
    Outcome,
    Put,
    Version,
    as_version,
    canonical_json,
    check_put,
    decide_put,
    decide_puts,
    decode,
    encode,
    require_name,
)


def entry(version: int, value: bytes | None) -> Entry:
    return Entry(Version(0, version), value)


def latest(put: Entry, held: Entry | None) -> Outcome:
    return decide_put(put, ordering=Ordering.LATEST, held=held)


def sealed(put: Entry, held: Entry | None, waiting: Entry | None, seal: int | None) -> Outcome:
    bound = None if seal is None else Version(0, seal)
    return decide_put(put, ordering=Ordering.SEALED, held=held, waiting=waiting, seal=bound)


# --- latest ----------------------------------------------------------------------------------


def test_the_first_put_of_a_key_is_applied() -> None:
    assert latest(entry(0, b"a"), None) is Outcome.APPLIED


def test_a_newer_version_is_applied() -> None:
    assert latest(entry(6, b"a"), entry(5, b"a")) is Outcome.APPLIED


def test_the_same_put_again_changes_nothing() -> None:
    assert latest(entry(5, b"a"), entry(5, b"a")) is Outcome.UNCHANGED


def test_one_version_with_two_values_is_a_conflict() -> None:
    assert latest(entry(5, b"b"), entry(5, b"a")) is Outcome.CONFLICT


def test_an_older_version_is_stale() -> None:
    assert latest(entry(4, b"b"), entry(5, b"a")) is Outcome.STALE


def test_a_deletion_has_a_version_like_a_value() -> None:
    assert latest(entry(6, None), entry(5, b"a")) is Outcome.APPLIED
    assert latest(entry(6, None), entry(6, None)) is Outcome.UNCHANGED
    assert latest(entry(6, b"a"), entry(6, None)) is Outcome.CONFLICT
    assert latest(entry(6, None), entry(6, b"a")) is Outcome.CONFLICT
    assert latest(entry(5, b"a"), entry(6, None)) is Outcome.STALE


def test_an_empty_value_is_not_a_deletion() -> None:
    assert latest(entry(5, b""), entry(5, None)) is Outcome.CONFLICT


def test_the_epoch_counts_before_the_round() -> None:
    held = Entry(Version(1, 9), b"a")
    assert latest(Entry(Version(2, 0), b"b"), held) is Outcome.APPLIED
    assert latest(Entry(Version(0, 99), b"b"), held) is Outcome.STALE


# --- sealed ----------------------------------------------------------------------------------


def test_a_version_above_the_seal_waits() -> None:
    assert sealed(entry(0, b"a"), None, None, None) is Outcome.BUFFERED
    assert sealed(entry(6, b"a"), entry(3, b"a"), None, 5) is Outcome.BUFFERED


def test_the_same_again_while_it_waits_changes_nothing() -> None:
    assert sealed(entry(6, b"a"), None, entry(6, b"a"), 5) is Outcome.UNCHANGED
    assert sealed(entry(6, b"b"), None, entry(6, b"a"), 5) is Outcome.CONFLICT


def test_a_version_at_or_below_the_seal_is_late() -> None:
    assert sealed(entry(5, b"a"), None, None, 5) is Outcome.LATE
    assert sealed(entry(4, b"a"), entry(3, b"a"), None, 5) is Outcome.LATE


def test_the_applied_version_again_is_no_late_one() -> None:
    assert sealed(entry(5, b"a"), entry(5, b"a"), None, 5) is Outcome.UNCHANGED
    assert sealed(entry(5, b"b"), entry(5, b"a"), None, 5) is Outcome.CONFLICT


# --- many at once ----------------------------------------------------------------------------


def together(*puts: tuple[bytes, int, bytes | None], held: dict[bytes, Entry] | None = None) -> list[Outcome]:
    given = [Put(key, Version(0, version), value) for key, version, value in puts]
    return decide_puts(given, ordering=Ordering.LATEST, held=held or {}, waiting={})


def test_puts_that_come_together_are_judged_against_what_was_there() -> None:
    held = {b"k": entry(5, b"e")}
    outcomes = together((b"k", 7, b"g"), (b"k", 6, b"f"), (b"k", 5, b"e"), (b"k", 4, b"d"), held=held)
    assert outcomes == [Outcome.APPLIED, Outcome.APPLIED, Outcome.UNCHANGED, Outcome.STALE]


def test_of_equal_puts_the_first_counts() -> None:
    assert together((b"k", 1, b"a"), (b"k", 1, b"a")) == [Outcome.APPLIED, Outcome.UNCHANGED]


def test_of_a_version_with_two_values_none_is_applied() -> None:
    assert together((b"k", 1, b"a"), (b"k", 1, b"b"), (b"l", 1, b"a")) == [
        Outcome.CONFLICT,
        Outcome.CONFLICT,
        Outcome.APPLIED,
    ]
    assert together((b"k", 1, b"a"), (b"k", 1, None)) == [Outcome.CONFLICT] * 2


VERSIONS = st.tuples(st.integers(0, 2), st.integers(0, 3)).map(lambda pair: Version(*pair))
VALUES = st.sampled_from([None, b"", b"a", b"b"])
PUTS = st.lists(st.builds(Put, st.sampled_from([b"k", b"l"]), VERSIONS, VALUES), max_size=8)


def apply_one_by_one(puts: list[Put]) -> tuple[dict[bytes, Entry], list[Outcome]]:
    held: dict[bytes, Entry] = {}
    outcomes = []
    for put in puts:
        one = Entry(put.version, put.value)
        outcomes.append(latest(one, held.get(put.key)))
        if outcomes[-1] is Outcome.APPLIED:
            held[put.key] = one
    return held, outcomes


@given(PUTS)
def test_whatever_the_order_the_newest_version_is_left(puts: list[Put]) -> None:
    """Without conflicts: all orders of the same puts, with any of them repeated, leave the same."""
    unique = list({(put.key, put.version): put for put in puts}.values())
    newest = {put.key: Entry(put.version, put.value) for put in sorted(unique, key=lambda put: put.version)}
    for order in itertools.islice(itertools.permutations(unique), 24):
        held, outcomes = apply_one_by_one([*order, *order])
        assert held == newest
        assert Outcome.CONFLICT not in outcomes
        assert Outcome.APPLIED not in outcomes[len(order) :], "the second time nothing changes"


@given(PUTS, PUTS)
def test_together_is_one_by_one_in_version_order(before: list[Put], puts: list[Put]) -> None:
    held, _ = apply_one_by_one(before)
    outcomes = decide_puts(puts, ordering=Ordering.LATEST, held=held, waiting={})
    values = {}
    for put in puts:
        values.setdefault((put.key, put.version), set()).add(put.value)
    agreed = [put for put in puts if len(values[put.key, put.version]) == 1]
    expected_held, expected = dict(held), {}
    for put in sorted(agreed, key=lambda put: put.version):
        one = Entry(put.version, put.value)
        outcome = latest(one, expected_held.get(put.key))
        expected.setdefault((put.key, put.version), []).append(outcome)
        if outcome is Outcome.APPLIED:
            expected_held[put.key] = one
    for put, outcome in zip(puts, outcomes, strict=True):
        place = put.key, put.version
        assert outcome is (expected[place].pop(0) if len(values[place]) == 1 else Outcome.CONFLICT)


@given(PUTS, VERSIONS)
def test_sealing_leaves_what_version_order_would(puts: list[Put], seal: Version) -> None:
    """Puts that waited, whatever their order, become what the newest sealed version of each key says."""
    waiting: dict[tuple[bytes, Version], Entry] = {}
    for put in puts:
        one = Entry(put.version, put.value)
        outcome = decide_put(one, ordering=Ordering.SEALED, held=None, waiting=waiting.get((put.key, put.version)))
        if outcome is Outcome.BUFFERED:
            waiting[put.key, put.version] = one
        else:
            assert outcome is (
                Outcome.UNCHANGED if waiting[put.key, put.version].value == put.value else Outcome.CONFLICT
            )
    for (_, version), one in waiting.items():
        again = decide_put(one, ordering=Ordering.SEALED, held=one, seal=seal)
        assert again is (Outcome.BUFFERED if version > seal else Outcome.UNCHANGED)


# --- what can be stored ----------------------------------------------------------------------


def test_an_offset_is_a_version_of_epoch_zero() -> None:
    assert as_version(7) == Version(0, 7)
    assert as_version((3, 7)) == Version(3, 7)


@pytest.mark.parametrize("wrong", [-1, (0, -1), (-1, 0), 2**63, (0, 2**63), True, (0, "7"), (None, 1)])
def test_a_version_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidState, match="A version is an epoch and a round"):
        as_version(wrong)


def test_limits_of_keys_and_values() -> None:
    check_put(b"k" * MAX_KEY_BYTES, b"v" * MAX_VALUE_BYTES)
    with pytest.raises(InvalidState, match="at most 2048 bytes; this one has 2049"):
        check_put(b"k" * (MAX_KEY_BYTES + 1), None)
    with pytest.raises(InvalidState, match="at most 67108864 bytes"):
        check_put(b"k", bytes(MAX_VALUE_BYTES + 1))


@pytest.mark.parametrize("wrong", ["", "a\0b", "x" * 201, "é" * 101, "\ud800"])
def test_a_name_that_postgresql_could_not_hold_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidState, match="name of a namespace"):
        require_name(wrong, of="namespace")


@pytest.mark.parametrize(
    "wrong",
    [math.nan, math.inf, {1: "a"}, [{None: 1}], b"bytes", {1, 2}, "\ud800", {"\udfff": 1}, object],
    ids=repr,
)
def test_what_is_no_json_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidState):
        canonical_json(wrong)


def test_json_that_goes_on_for_ever_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidState):
        canonical_json(endless)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidState):
        canonical_json(deep)
    with pytest.raises(InvalidState):
        decode(b"[" * 100_000, Encoding.JSON)


def test_json_has_one_spelling() -> None:
    assert canonical_json({"b": [1, None, True], "a": "é\0"}) == '{"a":"é\\u0000","b":[1,null,true]}'.encode()


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(TREES, st.randoms(use_true_random=False))
@example({"a": {"y": 1, "x": 2}, "b": 3}, None)
def test_the_same_json_is_the_same_bytes_and_comes_back(tree: Any, random: Any) -> None:
    encoded = encode(tree, Encoding.JSON)
    assert decode(encoded, Encoding.JSON) == tree
    assert encode(_shuffled(tree, random), Encoding.JSON) == encoded
    assert canonical_json(json.loads(encoded)) == encoded


def _shuffled(tree: Any, random: Any) -> Any:
    if isinstance(tree, dict):
        names = list(reversed(tree))
        if random is not None:
            random.shuffle(names)
        return {name: _shuffled(tree[name], random) for name in names}
    return [_shuffled(one, random) for one in tree] if isinstance(tree, list) else tree


def test_bytes_and_text_are_kept_apart() -> None:
    assert encode(b"\0\xff", Encoding.BYTES) == b"\0\xff"
    assert encode("é", Encoding.TEXT) == "é".encode()
    with pytest.raises(InvalidState, match="choose the encoding text or json"):
        encode("text", Encoding.BYTES)
    with pytest.raises(InvalidState, match="Text is expected, not int"):
        encode(7, Encoding.TEXT)
    with pytest.raises(InvalidState, match="not text"):
        decode(b"\xff", Encoding.TEXT)


@pytest.mark.parametrize("wrong", [b"{", b"NaN", b"\xff", b"", b"{'a': 1}"])
def test_stored_bytes_that_are_no_json_are_refused_when_read(wrong: bytes) -> None:
    with pytest.raises(InvalidState, match="The stored bytes are not json"):
        decode(wrong, Encoding.JSON)
