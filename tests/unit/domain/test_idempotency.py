"""Business keys at the produce gate: examples that read as the specification, then a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.idempotency import (
    NOWHERE,
    Enqueued,
    Identity,
    KeySettings,
    KeyState,
    Sifted,
    Status,
    read_identities,
    read_identity,
    sift,
)
from gateway.errors import ErrorCode, InvalidKeys, KeysHeldByOwners, KeysHeldByTransactions, RecordsRefused

SETTINGS = KeySettings("key", "tenant", 1000)
A, B, C = Identity("", "a"), Identity("", "b"), Identity("t", "a")
HERE = Enqueued(0, 7)
DONE = KeyState(Status.COMMITTED, HERE)
FAILED = KeyState(Status.FAILED, HERE)
LEASED = KeyState(Status.PENDING, NOWHERE)
LEASE_OVER = KeyState(Status.PENDING, NOWHERE, is_lease_over=True)


def held_by(producer_id: int) -> KeyState:
    return KeyState(Status.PENDING, HERE, producer_id)


def test_a_new_key_is_enqueued_and_begun() -> None:
    assert sift([None, A, B], {}, producer_id=None) == Sifted([0, 1, 2], {A: 1, B: 2}, None)


def test_a_key_that_is_done_is_not_enqueued() -> None:
    assert sift([A, B], {A: DONE}, producer_id=None) == Sifted([1], {B: 0}, None)


def test_of_a_batch_of_duplicates_the_first_records_place_is_known() -> None:
    states = {A: DONE, B: DONE._replace(first=Enqueued(1, 3))}
    assert sift([B, A], states, producer_id=None) == Sifted([], {}, Enqueued(1, 3))


def test_of_duplicates_within_a_batch_the_first_is_enqueued() -> None:
    assert sift([A, A, B, A], {}, producer_id=None) == Sifted([0, 2], {A: 0, B: 1}, None)


def test_the_same_key_of_another_tenant_is_another_key() -> None:
    assert sift([A, C], {A: DONE}, producer_id=None).kept == [1]


@pytest.mark.parametrize("state", [FAILED, LEASE_OVER])
def test_what_failed_or_was_let_go_may_be_begun_again(state: KeyState) -> None:
    assert sift([A], {A: state}, producer_id=None) == Sifted([0], {A: 0}, None)


def test_a_key_of_anothers_open_transaction_refuses_the_batch_so_that_it_is_sent_again() -> None:
    with pytest.raises(KeysHeldByTransactions) as refused:
        sift([B, A], {A: held_by(5)}, producer_id=6)
    assert refused.value.code is ErrorCode.not_enough_replicas
    assert refused.value.reasons == {1: "the key 'a' is held by an open transaction"}


def test_a_transaction_keeps_its_keys_even_if_a_lease_would_be_over() -> None:
    with pytest.raises(KeysHeldByTransactions):
        sift([A], {A: held_by(5)._replace(is_lease_over=True)}, producer_id=None)


def test_a_producer_that_repeats_itself_in_its_transaction_sends_a_duplicate() -> None:
    assert sift([A], {A: held_by(5)}, producer_id=5) == Sifted([], {}, HERE)


def test_a_key_that_an_owner_works_on_refuses_the_batch_for_good() -> None:
    with pytest.raises(KeysHeldByOwners) as refused:
        sift([A, B], {A: LEASED, B: held_by(5)}, producer_id=None)
    assert refused.value.code is ErrorCode.invalid_record
    assert set(refused.value.reasons) == {0, 1}


def test_headers_name_tenant_and_key() -> None:
    headers = [(b"k", b"t"), (b"k", None), (b"", b"t"), (None, b"t"), ("ü".encode(), b"")]
    assert read_identities(headers, SETTINGS) == [Identity("t", "k"), Identity("", "k"), None, None, Identity("", "ü")]


@pytest.mark.parametrize(
    ("key", "tenant", "reason"),
    [
        (b"\xff", None, "the header key is not UTF-8"),
        (b"k", b"\xff", "the header tenant is not UTF-8"),
        (b"a\0", None, "the header key contains NUL"),
        (b"k" * 1025, None, "the header key has 1025 bytes, at most 1024 are allowed"),
        (b"k", b"t" * 257, "the header tenant has 257 bytes, at most 256 are allowed"),
    ],
)
def test_what_the_registry_cannot_hold_is_refused_by_record(key: bytes, tenant: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidKeys) as refused:
        read_identities([(b"fine", None), (key, tenant)], SETTINGS)
    assert refused.value.reasons == {1: reason}


header = st.none() | st.sampled_from([b"", b"k", b"a\0b", b"\xc3", b"\xbc", "ü\n".encode(), b"k" * 1024, b"k" * 1025])


@given(st.lists(st.tuples(header, header), max_size=6))
def test_identities_are_read_together_as_one_by_one(headers: list[tuple[bytes | None, ...]]) -> None:
    wrong: dict[int, str] = {}
    expected: list[Identity | None] = []
    for index, (key, tenant) in enumerate(headers):
        try:
            expected.append(read_identity(key, tenant, key_header="key", tenant_header="tenant"))
        except ValueError as reason:
            wrong[index] = str(reason)
    if not wrong:
        assert read_identities(headers, SETTINGS) == expected
        return
    with pytest.raises(InvalidKeys) as refused:
        read_identities(headers, SETTINGS)
    assert refused.value.reasons == wrong


identities = st.sampled_from([A, B, C, Identity("t", "b")])
states = st.builds(
    KeyState,
    st.just(Status.PENDING),
    st.just(HERE),
    st.none() | st.integers(1, 3),
    st.booleans(),
) | st.sampled_from([DONE, FAILED])


@given(
    st.lists(st.none() | identities, min_size=1, max_size=12),
    st.dictionaries(identities, states),
    st.none() | st.integers(1, 3),
)
def test_one_record_per_key_that_may_be_begun(
    sent: list[Identity | None], known: dict[Identity, KeyState], producer_id: int | None
) -> None:
    """Record by record, each as if it were alone and the ones before it were known."""
    held: set[int] = set()
    kept: list[int] = []
    seen: set[Identity] = set()
    for index, identity in enumerate(sent):
        if identity is None:
            kept.append(index)
            continue
        state = known.get(identity)
        may_begin = (
            state is None
            or state.status is Status.FAILED
            or (state.status is Status.PENDING and state.producer_id is None and state.is_lease_over)
        )
        if may_begin:
            if identity not in seen:
                kept.append(index)
            seen.add(identity)
        elif state is not None and state.status is Status.PENDING:
            is_own = state.producer_id is not None and state.producer_id == producer_id
            held |= set() if is_own else {index}
    if held:
        with pytest.raises(RecordsRefused) as refused:
            sift(sent, known, producer_id=producer_id)
        assert set(refused.value.reasons) == held
        return
    sifted = sift(sent, known, producer_id=producer_id)
    assert sifted.kept == kept
    assert set(sifted.claims) == seen
    assert all(sent[sifted.kept[place]] == identity for identity, place in sifted.claims.items())
    assert (sifted.first is None) == bool(kept)
