"""Business idempotency keys: which records carry one, and whether a record with a key may be enqueued.

A key stands for one effect. It is begun (PENDING), done (COMMITTED) or failed (FAILED, and may be begun again).
What SQL does to the registry when workers begin and mark keys (kafka.begin_once, …) follows the same rules.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gateway.errors import InvalidKeys, KeysHeldByOwners, KeysHeldByTransactions, RecordsRefused

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_TENANT_BYTES",
    "NOWHERE",
    "Enqueued",
    "Identity",
    "KeySettings",
    "KeyState",
    "Sifted",
    "Status",
    "read_identities",
    "read_identity",
    "sift",
]

MAX_KEY_BYTES: Final = 1024
MAX_TENANT_BYTES: Final = 256


class KeySettings(NamedTuple):
    """What a topic says about the keys of its records."""

    key_header: str
    tenant_header: str
    retention_ms: int
    """-1: for ever."""


class Identity(NamedTuple):
    """A key within its topic."""

    tenant: str
    key: str


class Status(enum.StrEnum):
    PENDING = "PENDING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"


class Enqueued(NamedTuple):
    """Where the record of a key is; unknown (-1) where a worker, not a producer, was done with it."""

    partition: int
    offset: int


NOWHERE: Final = Enqueued(-1, -1)


class KeyState(NamedTuple):
    """What the registry says of a key."""

    status: Status
    first: Enqueued
    producer_id: int | None = None
    """Whose open transaction holds a pending key; None: somebody with a lease."""
    is_lease_over: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it may be begun. What a transaction holds is not free before that has ended."""
        if self.status is Status.PENDING:
            return self.producer_id is None and self.is_lease_over
        return self.status is Status.FAILED

    def is_held_against(self, producer_id: int | None) -> bool:
        """Whether somebody else is at it. A producer that repeats itself within its own transaction is nobody else."""
        return (
            self.status is Status.PENDING
            and not self.is_free
            and (self.producer_id is None or self.producer_id != producer_id)
        )


class Sifted(NamedTuple):
    """A batch after its duplicates were taken out."""

    kept: list[int]
    """Which records are to be enqueued."""
    claims: dict[Identity, int]
    """The keys they begin, and at which place among the kept ones."""
    first: Enqueued | None
    """If nothing is kept: where the record is that the first one repeats."""


def read_identities(headers: Sequence[tuple[bytes | None, ...]], settings: KeySettings) -> list[Identity | None]:
    """The identity of each record, by the values of its key and tenant headers; None for those without a key.

    Raises InvalidKeys for keys that the registry cannot hold.
    """
    keys = _texts([key or b"" for key, _ in headers], MAX_KEY_BYTES)
    tenants = _texts([tenant or b"" for _, tenant in headers], MAX_TENANT_BYTES)
    if keys is not None and tenants is not None:
        return [Identity(tenant, key) if key else None for tenant, key in zip(tenants, keys, strict=True)]
    identities: list[Identity | None] = []
    wrong: dict[int, str] = {}
    for index, (key, tenant) in enumerate(headers):
        identity = None
        try:
            identity = read_identity(key, tenant, key_header=settings.key_header, tenant_header=settings.tenant_header)
        except ValueError as reason:
            wrong[index] = str(reason)
        identities.append(identity)
    if wrong:
        raise InvalidKeys(wrong)
    return identities


def read_identity(key: bytes | None, tenant: bytes | None, *, key_header: str, tenant_header: str) -> Identity | None:
    """The identity that the values of a record's two headers make; None without a key, ValueError for one that the
    registry cannot hold."""
    if not key:
        return None
    return Identity(_text(tenant or b"", tenant_header, MAX_TENANT_BYTES), _text(key, key_header, MAX_KEY_BYTES))


def _texts(values: Sequence[bytes], max_bytes: int) -> list[str] | None:
    """All of them at once; None if there is anything wrong with one of them."""
    if max(map(len, values), default=0) > max_bytes:
        return None
    try:
        texts = b"\0".join(values).decode().split("\0")  # NUL is a part of no other character
    except UnicodeDecodeError:
        return None
    return texts if len(texts) == len(values) else None


def _text(value: bytes, name: str, max_bytes: int) -> str:
    if len(value) > max_bytes:
        raise ValueError(f"the header {name} has {len(value)} bytes, at most {max_bytes} are allowed")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the header {name} is not UTF-8") from None
    if "\0" in text:
        raise ValueError(f"the header {name} contains NUL")
    return text


def sift(
    identities: Sequence[Identity | None], states: Mapping[Identity, KeyState], *, producer_id: int | None
) -> Sifted:
    """Take out of a batch what has been enqueued already.

    `states`: of those of its keys that are known, claims of the same commit included. `producer_id`: whose open
    transaction the batch is part of; None: it is true at once.
    Raises KeysHeldByTransactions or KeysHeldByOwners if somebody else holds a key: the batch is refused as a whole.
    """
    places = {identity: place for place, identity in enumerate(identities) if identity is not None}
    if len(places) == len(identities) and places.keys().isdisjoint(states):
        return Sifted(list(places.values()), places, None)  # most often all of them are new
    kept: list[int] = []
    claims: dict[Identity, int] = {}
    held: dict[int, KeyState] = {}
    for index, identity in enumerate(identities):
        state = None
        if identity is not None:
            if identity in claims:
                continue
            state = states.get(identity)
            if state is not None and not state.is_free:
                if state.is_held_against(producer_id):
                    held[index] = state
                continue
            claims[identity] = len(kept)
        kept.append(index)
    if held:
        raise _held(held, identities)
    return Sifted(kept, claims, None if kept else _place(identities[0], states))


def _place(identity: Identity | None, states: Mapping[Identity, KeyState]) -> Enqueued:
    return NOWHERE if identity is None else states[identity].first


def _held(held: Mapping[int, KeyState], identities: Sequence[Identity | None]) -> RecordsRefused:
    reasons = {index: _reason(identities[index], state) for index, state in held.items()}
    # A transaction ends by itself, in time: a client does well to try again. A lease is as long as its owner says.
    is_leased = any(state.producer_id is None for state in held.values())
    return KeysHeldByOwners(reasons) if is_leased else KeysHeldByTransactions(reasons)


def _reason(identity: Identity | None, state: KeyState) -> str:
    key = "" if identity is None else identity.key[:100]
    by = "an owner whose lease is not over" if state.producer_id is None else "an open transaction"
    return f"the key {key!r} is held by {by}"
