"""Retries, backoff, order and dead letters: the rules, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.deliveries import (
    ACK_TIMEOUT,
    DEAD_LETTER_PREFIX,
    REDRIVEN_FOR,
    DeadLetter,
    DeliveryPolicy,
    Ordering,
    Place,
    Retry,
    backoff_ms,
    dead_letter_headers,
    dead_letter_topic,
    decide_failure,
    decide_rest,
    decide_timeout,
    headers_of,
    identity_of,
    is_for_group,
    original_headers,
    redriven_headers,
)
from gateway.domain.idempotency import Identity

POLICY = DeliveryPolicy.of_topic({})

policies = st.builds(
    DeliveryPolicy,
    max_attempts=st.integers(1, 1000),
    backoff_ms=st.integers(0, 2**31 - 1),
    backoff_max_ms=st.integers(0, 2**31 - 1),
    ack_timeout_ms=st.just(1000),
    max_unsettled=st.just(10),
    ordering=st.sampled_from(Ordering),
)
chances = st.floats(0, 1, exclude_max=True)
headers = st.lists(st.tuples(st.text(), st.none() | st.binary())).map(tuple)


def fail(attempts: int, *, reason: str = "no", retryable: bool = True, policy: DeliveryPolicy = POLICY) -> object:
    return decide_failure(policy, attempts=attempts, reason=reason, is_retryable=retryable, chance=0.5)


def test_a_topic_without_settings_has_the_documented_ones() -> None:
    assert DeliveryPolicy(5, 1000, 60_000, 30_000, 10_000, Ordering.IN_PLACE) == POLICY


def test_a_topic_sets_what_it_wants() -> None:
    policy = DeliveryPolicy.of_topic(
        {
            "delivery.max.attempts": "2",
            "delivery.ordering": "pass",
            "delivery.ack.timeout.ms": "50",
            "retention.ms": "1",
        }
    )
    assert policy == replace(POLICY, max_attempts=2, ordering=Ordering.PASS, ack_timeout_ms=50)


def test_a_record_says_how_often_and_how_soon_it_is_tried() -> None:
    said = (("delivery-max-attempts", b"9"), ("delivery-backoff-ms", b"10"), ("delivery-backoff-max-ms", b"40"))
    assert POLICY.of_record(said) == replace(POLICY, max_attempts=9, backoff_ms=10, backoff_max_ms=40)


@pytest.mark.parametrize("value", [b"", b"many", b"-1", b"1.5", b"12345678901", None, "٣".encode()])
def test_a_header_that_is_no_number_is_as_good_as_none(value: bytes | None) -> None:
    assert POLICY.of_record((("delivery-max-attempts", value),)) == POLICY


def test_the_last_header_counts_and_a_record_is_tried_at_least_once() -> None:
    said = (("delivery-max-attempts", b"9"), ("delivery-max-attempts", b"0"))
    assert POLICY.of_record(said).max_attempts == 1


def test_a_failure_is_tried_again_until_the_attempts_are_used_up() -> None:
    assert [type(fail(attempts)) for attempts in (1, 2, 3, 4, 5, 6)] == [Retry] * 4 + [DeadLetter] * 2


def test_what_will_never_work_is_given_up_at_once() -> None:
    assert fail(1, retryable=False, reason="no such account") == DeadLetter("no such account")


def test_the_pause_doubles_up_to_its_maximum_and_half_of_it_is_chance() -> None:
    policy = replace(POLICY, backoff_ms=100, backoff_max_ms=1000)
    assert [backoff_ms(policy, attempts=n, chance=0) for n in (1, 2, 3, 4, 5, 99)] == [50, 100, 200, 400, 500, 500]
    assert [backoff_ms(policy, attempts=n, chance=0.999) for n in (1, 2, 5)] == [99, 199, 999]


def test_who_did_not_answer_in_time_has_waited_long_enough() -> None:
    assert decide_timeout(POLICY, attempts=4) == Retry(0, ACK_TIMEOUT)
    assert decide_timeout(POLICY, attempts=5) == DeadLetter(ACK_TIMEOUT)


@given(policies, st.integers(1, 10_000), chances)
def test_a_pause_is_at_least_half_of_what_it_may_be_and_never_longer(
    policy: DeliveryPolicy, attempts: int, chance: float
) -> None:
    full = min(policy.backoff_ms * 2 ** (attempts - 1), policy.backoff_max_ms)
    assert full // 2 <= backoff_ms(policy, attempts=attempts, chance=chance) <= full


@given(policies, chances)
def test_every_record_is_delivered_as_often_as_its_policy_says(policy: DeliveryPolicy, chance: float) -> None:
    attempts = 1
    while isinstance(
        decide_failure(policy, attempts=attempts, reason="", is_retryable=True, chance=chance), Retry
    ) and isinstance(decide_timeout(policy, attempts=attempts), Retry):
        attempts += 1
    assert attempts == policy.max_attempts


@given(st.text(), st.integers(1, 9))
def test_an_error_is_kept_as_far_as_it_fits(reason: str, attempts: int) -> None:
    kept = fail(attempts, reason=reason * 500)
    assert isinstance(kept, (Retry, DeadLetter))
    assert len(kept.last_error) <= 2000
    assert "\0" not in kept.last_error


def test_in_place_the_records_behind_a_failed_one_are_given_back_and_elsewhere_they_go_on() -> None:
    failed, before, behind = Place(1, 0, 5), Place(1, 0, 4), Place(1, 0, 6)
    others = [before, behind, Place(1, 1, 6), Place(2, 0, 6)]
    assert decide_rest(Ordering.IN_PLACE, failed, others) == [behind]
    assert decide_rest(Ordering.PASS, failed, others) == []


def test_a_dead_letter_tells_its_story_behind_its_own_headers() -> None:
    own = (("a", b"1"), ("a", None))
    told = dead_letter_headers(own, {"topic": "orders", "attempts": 5, "key": None})
    assert told == (*own, ("tablewire.dlq.topic", b"orders"), ("tablewire.dlq.attempts", b"5"))
    assert dead_letter_topic("orders") == "dlq.orders"


@given(headers, st.text(min_size=1))
def test_a_redriven_record_has_its_own_headers_and_is_for_the_group_that_failed(
    own: tuple[tuple[str, bytes | None], ...], group: str
) -> None:
    own = original_headers(own)
    dead = dead_letter_headers(own, {"topic": "t"})
    assert original_headers(dead) == own
    back = redriven_headers(dead, group_id=group)
    assert is_for_group(back, group)
    assert not is_for_group(back, group + "x")
    assert is_for_group(own, group)
    # However often it fails and goes back, it does not grow.
    assert redriven_headers(dead_letter_headers(back, {"topic": "t"}), group_id=group) == back
    assert [name for name, _ in back if name.startswith(DEAD_LETTER_PREFIX)] == []
    assert back[-1] == (REDRIVEN_FOR, group.encode())


@pytest.mark.parametrize(
    ("key", "tenant", "expected"),
    [
        (b"k", None, Identity("", "k")),
        (b"k", b"acme", Identity("acme", "k")),
        (b"", b"acme", None),
        (None, b"acme", None),
        (b"\xff", None, None),
        (b"a\0b", None, None),
        (b"k" * 1025, None, None),
        (b"k", b"t" * 257, None),
    ],
)
def test_a_key_is_what_the_registry_can_hold(
    key: bytes | None, tenant: bytes | None, expected: Identity | None
) -> None:
    said = (("idempotency-key", b"older"), ("idempotency-key", key), ("tenant-id", tenant))
    assert identity_of(said, key_header="idempotency-key", tenant_header="tenant-id") == expected


def test_headers_of_a_row() -> None:
    assert headers_of(None, None) == ()
    assert headers_of(["a", "a"], [b"1", None]) == (("a", b"1"), ("a", None))
