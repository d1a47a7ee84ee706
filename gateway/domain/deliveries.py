"""Deliveries to workers: how often a record is tried, when again, in which order, and what a dead letter carries.

States are those of KIP-932. The clock and chance are given; nothing here knows where deliveries are kept.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from gateway.domain.config_keys import TOPIC_CONFIGS
from gateway.domain.idempotency import Identity, read_identity

__all__ = [
    "ACK_TIMEOUT",
    "DEAD_LETTER_PREFIX",
    "REDRIVEN_FOR",
    "DeadLetter",
    "DeliveryPolicy",
    "DeliveryState",
    "Headers",
    "Ordering",
    "Place",
    "Retry",
    "backoff_ms",
    "dead_letter_headers",
    "dead_letter_topic",
    "decide_failure",
    "decide_rest",
    "decide_timeout",
    "headers_of",
    "identity_of",
    "is_for_group",
    "original_headers",
    "redriven_headers",
    "topic_value",
]

Headers = tuple[tuple[str, bytes | None], ...]

ACK_TIMEOUT: Final = "ack_timeout"
"""`last_error` of a delivery that nobody answered in time."""

DEAD_LETTER_PREFIX: Final = "tablewire.dlq."
REDRIVEN_FOR: Final = "tablewire.redriven-for"
"""The group that a redriven record is meant for; workers of others pass over it."""

MAX_ERROR_LENGTH: Final = 2_000
MAX_INT: Final = 2**31 - 1

_NUMBER: Final = re.compile(rb"[0-9]{1,10}")
_HEADERS: Final = {
    "delivery-max-attempts": "max_attempts",
    "delivery-backoff-ms": "backoff_ms",
    "delivery-backoff-max-ms": "backoff_max_ms",
}


class DeliveryState(enum.StrEnum):
    """Of one record for one group, as in KIP-932. The last two are settled."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    ACKNOWLEDGED = "acknowledged"
    ARCHIVED = "archived"


class Ordering(enum.StrEnum):
    """What happens to the records behind one that failed."""

    IN_PLACE = "in-place"
    """Nothing later of its partition is delivered before it is settled."""
    PASS = "pass"  # noqa: S105 - no password
    """The others go on."""


class Place(NamedTuple):
    """Where a record is."""

    topic_id: int
    partition: int
    offset: int

    def is_behind(self, other: Place) -> bool:
        """Whether it comes later in the same partition."""
        return self[:2] == other[:2] and self.offset > other.offset


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """A topic's settings, or one record's."""

    max_attempts: int
    backoff_ms: int
    backoff_max_ms: int
    ack_timeout_ms: int
    max_unsettled: int
    ordering: Ordering

    @classmethod
    def of_topic(cls, overrides: Mapping[str, str]) -> DeliveryPolicy:
        """From a topic's own settings; the rest are defaults."""
        value = partial(topic_value, overrides)
        return cls(
            max_attempts=int(value("delivery.max.attempts")),
            backoff_ms=int(value("delivery.backoff.ms")),
            backoff_max_ms=int(value("delivery.backoff.max.ms")),
            ack_timeout_ms=int(value("delivery.ack.timeout.ms")),
            max_unsettled=int(value("delivery.max.unsettled")),
            ordering=Ordering(value("delivery.ordering")),
        )

    def of_record(self, headers: Headers) -> DeliveryPolicy:
        """With what the record says of itself; of several headers the last counts, one that is no number does not."""
        said: dict[str, int] = {}
        for name, text in headers:
            field = _HEADERS.get(name)
            if field is not None and text is not None and _NUMBER.fullmatch(text):
                said[field] = min(int(text), MAX_INT)
        if "max_attempts" in said:
            said["max_attempts"] = max(said["max_attempts"], 1)
        return replace(self, **said) if said else self  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Retry:
    """The record is delivered again after a while."""

    delay_ms: int
    last_error: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The record is given up."""

    last_error: str


def decide_failure(
    policy: DeliveryPolicy, *, attempts: int, reason: str, is_retryable: bool, chance: float
) -> Retry | DeadLetter:
    """What follows a `nack` of the delivery number `attempts`; `chance` is from [0, 1)."""
    error = _shorten(reason)
    if not is_retryable or attempts >= policy.max_attempts:
        return DeadLetter(error)
    return Retry(backoff_ms(policy, attempts=attempts, chance=chance), error)


def decide_timeout(policy: DeliveryPolicy, *, attempts: int) -> Retry | DeadLetter:
    """What follows when nobody answered: it has waited for long enough, so the next attempt comes at once."""
    return DeadLetter(ACK_TIMEOUT) if attempts >= policy.max_attempts else Retry(0, ACK_TIMEOUT)


def backoff_ms(policy: DeliveryPolicy, *, attempts: int, chance: float) -> int:
    """The pause after the attempt number `attempts`: it doubles up to the maximum, and its second half is chance, so
    that what failed together does not come back together."""
    # No exponent beyond what an int32 can grow by.
    pause = min(policy.backoff_ms << min(attempts - 1, 31), policy.backoff_max_ms)
    return pause // 2 + int((pause - pause // 2) * chance)


def decide_rest(ordering: Ordering, failed: Place, others: Iterable[Place]) -> list[Place]:
    """Which of the records in a worker's hands it must give back undelivered when one of them is to be retried."""
    if ordering is Ordering.PASS:
        return []
    return [other for other in others if other.is_behind(failed)]


def dead_letter_topic(topic: str) -> str:
    return f"dlq.{topic}"


def dead_letter_headers(headers: Headers, facts: Mapping[str, object]) -> Headers:
    """The record's own headers, then why it is here. A record that was redriven before tells its last story only."""
    told = tuple((DEAD_LETTER_PREFIX + name, str(value).encode()) for name, value in facts.items() if value is not None)
    return (*original_headers(headers), *told)


def original_headers(headers: Headers) -> Headers:
    """The headers without what dead letters and redriving added."""
    return tuple(
        (name, value) for name, value in headers if not name.startswith(DEAD_LETTER_PREFIX) and name != REDRIVEN_FOR
    )


def redriven_headers(headers: Headers, *, group_id: str) -> Headers:
    """The headers that a dead letter goes back with."""
    return (*original_headers(headers), (REDRIVEN_FOR, group_id.encode()))


def topic_value(overrides: Mapping[str, str], name: str) -> str:
    """What a topic says of itself, or the default."""
    return overrides.get(name) or TOPIC_CONFIGS[name].default or ""


def is_for_group(headers: Headers, group_id: str) -> bool:
    """Whether the group is meant; False only for a record that was redriven for another one."""
    said = [value for name, value in headers if name == REDRIVEN_FOR]
    return not said or said[-1] == group_id.encode()


def identity_of(headers: Headers, *, key_header: str, tenant_header: str) -> Identity | None:
    """The record's key; None if it has none, or one that the registry cannot hold. The last header of a name counts."""
    found = dict(headers)
    key, tenant = found.get(key_header), found.get(tenant_header)
    try:
        return read_identity(key, tenant, key_header=key_header, tenant_header=tenant_header)
    except ValueError:
        return None


def _shorten(reason: str) -> str:
    # PostgreSQL's text cannot hold a NUL.
    text = reason.replace("\0", "�")
    return text if len(text) <= MAX_ERROR_LENGTH else text[: MAX_ERROR_LENGTH - 1] + "…"


def headers_of(names: Sequence[str] | None, values: Sequence[bytes | None] | None) -> Headers:
    """Headers from the two columns of a row."""
    return tuple(zip(names or (), values or (), strict=True))
