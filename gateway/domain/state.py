"""Versioned state: what becomes of a put, and which keys, values and versions there are. Pure.

The functions kafka.state_… follow the same rule in SQL, for all languages; a test holds them to this one.
A version is logical time: an epoch and a round within it, compared in that order. A partition's offset is the round
of epoch 0, or of its leader epoch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gateway.errors import PipelineError

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_NAME_BYTES",
    "MAX_VALUE_BYTES",
    "Encoding",
    "Entry",
    "InvalidState",
    "LateVersion",
    "NamespaceDiffers",
    "NothingToSeal",
    "Ordering",
    "Outcome",
    "Put",
    "StateConflict",
    "StateError",
    "UnknownCheckpoint",
    "UnknownNamespace",
    "UnknownPipeline",
    "Version",
    "as_version",
    "canonical_json",
    "check_put",
    "decide_put",
    "decide_puts",
    "decode",
    "encode",
    "require_name",
]

MAX_NAME_BYTES = 200
MAX_KEY_BYTES = 2_048
"""A key is part of an index entry, for which PostgreSQL has 2,704 bytes."""
MAX_VALUE_BYTES = 64 * 2**20
MAX_NUMBER = 2**63 - 1


class StateError(PipelineError):
    """Something about versioned state is not as it must be; nothing was changed."""


class InvalidState(StateError, ValueError):
    """A name, key, value or version that cannot be stored."""


class UnknownNamespace(StateError):
    """The namespace was never made."""


class NamespaceDiffers(StateError):
    """The namespace exists with another ordering or pipeline."""


class NothingToSeal(StateError):
    """The namespace keeps the latest version; there is no order to wait for."""


class UnknownPipeline(StateError):
    """The pipeline was never made."""


class UnknownCheckpoint(StateError):
    """The checkpoint was never made, or is no longer kept."""


class StateConflict(StateError):
    """One version of a key has two values: whoever computes it is not deterministic, or two writers number alike."""


class LateVersion(StateError):
    """A version at or below the seal, which said that no more of them would come."""


class Version(NamedTuple):
    """Logical time: rounds are counted within an epoch."""

    epoch: int
    round: int


class Ordering(StrEnum):
    """What a namespace does with versions that come out of order."""

    LATEST = "latest"
    """A newer version replaces an older one at once; an older one that comes later is ignored."""
    SEALED = "sealed"
    """Versions wait until somebody seals them, and are then applied in order."""


class Outcome(StrEnum):
    """What became of a put."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """The same version with the same value is there already."""
    STALE = "stale"
    """A newer version is there."""
    BUFFERED = "buffered"
    LATE = "late"
    CONFLICT = "conflict"


class Entry(NamedTuple):
    """A value at a version; None says that the key was deleted then."""

    version: Version
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Put:
    """A value for a key at a version; None deletes it."""

    key: bytes
    version: Version
    value: bytes | None


def decide_put(
    put: Entry,
    *,
    ordering: Ordering,
    held: Entry | None,
    waiting: Entry | None = None,
    seal: Version | None = None,
) -> Outcome:
    """Judge one put against what the key holds and, in a sealed namespace, what waits at exactly this version."""
    if ordering is Ordering.SEALED and (seal is None or put.version > seal):
        if waiting is None:
            return Outcome.BUFFERED
        return Outcome.UNCHANGED if waiting.value == put.value else Outcome.CONFLICT
    if held is not None and held.version == put.version:
        return Outcome.UNCHANGED if held.value == put.value else Outcome.CONFLICT
    if ordering is Ordering.SEALED:
        return Outcome.LATE
    return Outcome.APPLIED if held is None or held.version < put.version else Outcome.STALE


def decide_puts(
    puts: Sequence[Put],
    *,
    ordering: Ordering,
    held: Mapping[bytes, Entry],
    waiting: Mapping[tuple[bytes, Version], Entry],
    seal: Version | None = None,
) -> list[Outcome]:
    """Judge many puts that come together and hence have no order but that of their versions.

    All of them are judged against what was there before; of equal ones the first counts and the rest change nothing;
    of a version with two values none is applied.
    """
    values: dict[tuple[bytes, Version], set[bytes | None]] = defaultdict(set)
    for put in puts:
        values[put.key, put.version].add(put.value)
    seen: set[tuple[bytes, Version]] = set()
    outcomes = []
    for put in puts:
        place = put.key, put.version
        if len(values[place]) > 1:
            outcome = Outcome.CONFLICT
        else:
            outcome = decide_put(
                Entry(put.version, put.value),
                ordering=ordering,
                held=held.get(put.key),
                waiting=waiting.get(place),
                seal=seal,
            )
            if place in seen and outcome in (Outcome.APPLIED, Outcome.BUFFERED):
                outcome = Outcome.UNCHANGED
        seen.add(place)
        outcomes.append(outcome)
    return outcomes


# --- what can be stored ----------------------------------------------------------------------


def as_version(version: Version | tuple[int, int] | int) -> Version:
    """A version from an epoch and a round, or from an offset."""
    epoch, number = (0, version) if isinstance(version, int) else version
    for part in (epoch, number):
        if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part <= MAX_NUMBER:
            raise InvalidState(f"A version is an epoch and a round from 0 to {MAX_NUMBER}, not ({epoch}, {number}).")
    return Version(epoch, number)


def check_put(key: bytes, value: bytes | None) -> None:
    if len(key) > MAX_KEY_BYTES:
        raise InvalidState(f"A key has at most {MAX_KEY_BYTES} bytes; this one has {len(key)}. Use a hash of it.")
    if value is not None and len(value) > MAX_VALUE_BYTES:
        raise InvalidState(f"A value has at most {MAX_VALUE_BYTES} bytes; this one has {len(value)}.")


def require_name(name: str, *, of: str) -> str:
    """The name of a namespace or pipeline, if PostgreSQL can hold it."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidState(f"The name of a {of} is not valid Unicode: {name!r}.") from None
    if not 1 <= size_bytes <= MAX_NAME_BYTES or "\0" in name:
        raise InvalidState(f"The name of a {of} has 1 to {MAX_NAME_BYTES} bytes and no NUL: {name[:80]!r}.")
    return name


class Encoding(StrEnum):
    """How keys or values become bytes."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"


def encode(content: object, encoding: Encoding) -> bytes:
    """The bytes of a key or value."""
    if encoding is Encoding.JSON:
        return canonical_json(content)
    if encoding is Encoding.TEXT:
        if not isinstance(content, str):
            raise InvalidState(f"Text is expected, not {type(content).__name__}.")
        return _utf8(content)
    if not isinstance(content, bytes | bytearray | memoryview):
        raise InvalidState(f"Bytes are expected, not {type(content).__name__}; choose the encoding text or json.")
    return bytes(content)


def decode(content: bytes, encoding: Encoding) -> object:
    """What `encode` was given; InvalidState where the bytes were written in another way."""
    if encoding is Encoding.BYTES:
        return content
    try:
        text = content.decode()
        return json.loads(text, parse_constant=_refuse_constant) if encoding is Encoding.JSON else text
    except (ValueError, RecursionError) as wrong:
        raise InvalidState(f"The stored bytes are not {encoding}: {wrong}.") from None


def canonical_json(content: object) -> bytes:
    """JSON with sorted keys and no spaces, in UTF-8: the same content is the same bytes, so a retry is recognised."""
    _require_json(content)
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise InvalidState(f"It cannot be written as JSON: {wrong}.") from None
    return _utf8(text)


def _require_json(content: object) -> None:
    """json.dumps would turn a number that is a key into text, and two keys into one."""
    pending = [content]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, dict | list | tuple):
            if id(part) in seen:
                continue
            seen.add(id(part))
        if isinstance(part, dict):
            for name in part:
                if not isinstance(name, str):
                    raise InvalidState(f"A JSON object has text for keys, not {type(name).__name__}: {name!r}.")
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as wrong:
        raise InvalidState(f"It holds text that is not valid Unicode: {wrong.reason}.") from None
