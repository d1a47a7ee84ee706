"""Which topics may exist: names, partition counts, replication factors and manual assignments.

Kafka's rules and codes, so that a client's mistake reads as it would there. No storage: whether a topic
exists is the caller's question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
)

__all__ = [
    "DEFAULT_MAX_PARTITIONS",
    "MAX_NAME_LENGTH",
    "USE_DEFAULT",
    "NewTopic",
    "collision_key",
    "decide_added_partitions",
    "decide_new_topic",
    "find_collision",
    "require_partitions_per_request",
    "validate_topic_name",
]

MAX_NAME_LENGTH: Final = 249
USE_DEFAULT: Final = -1
"""What a client sends for a partition count or replication factor it leaves to the server."""

DEFAULT_MAX_PARTITIONS: Final = 10_000
"""Kafka's limit for one request: each partition costs rows, locks and a place in every Metadata answer."""

_ALLOWED_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_REFUSED_NAMES: Final = frozenset({"__cluster_metadata"})


@dataclass(frozen=True, slots=True)
class NewTopic:
    """What a CreateTopics entry amounts to once its defaults are filled in."""

    name: str
    partition_count: int
    replication_factor: int = 1


def validate_topic_name(name: str) -> None:
    """Raise InvalidTopic unless Kafka would allow a topic of this name."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{_shorten(name)}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _ALLOWED_NAME.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise InvalidTopic(f"Topic name is invalid: {reason}")


def collision_key(name: str) -> str:
    """Equal for names that Kafka's metric names cannot tell apart: `a.b` and `a_b`."""
    return name.replace(".", "_")


def find_collision(name: str, existing: Iterable[str]) -> str | None:
    """Return the first other existing topic that `name` would collide with."""
    key = collision_key(name)
    return next((other for other in existing if other != name and collision_key(other) == key), None)


def decide_new_topic(
    name: str,
    *,
    num_partitions: int,
    replication_factor: int,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
    default_partitions: int,
    known_broker_ids: Collection[int],
    existing: Iterable[str] = (),
    max_partitions: int = DEFAULT_MAX_PARTITIONS,
) -> NewTopic:
    """Judge one CreateTopics entry.

    `existing` needs to hold only names with the same collision key; the name itself is not looked for.
    """
    validate_topic_name(name)
    if name in _REFUSED_NAMES:
        raise InvalidRequest(f"Creation of internal topic {name} is prohibited.")
    if (other := find_collision(name, existing)) is not None:
        raise InvalidTopic(f"Topic '{name}' collides with existing topic: {other}")
    if assignments:
        count = _count_assigned(assignments, num_partitions, replication_factor, known_broker_ids)
    else:
        _require_replication_factor(replication_factor)
        count = default_partitions if num_partitions == USE_DEFAULT else num_partitions
        if count <= 0:
            raise InvalidPartitions(
                f"Number of partitions was set to an invalid non-positive value: {count}."
                f" Ask for 1 or more, or -1 for the default of {default_partitions}."
            )
    _require_partitions_per_topic(name, count, max_partitions)
    return NewTopic(name, count)


def decide_added_partitions(
    name: str,
    *,
    current: int,
    wanted: int,
    assignments: Sequence[Sequence[int]] | None = None,
    known_broker_ids: Collection[int],
    max_partitions: int = DEFAULT_MAX_PARTITIONS,
) -> range:
    """Judge one CreatePartitions entry; return the indexes of the partitions to add."""
    if wanted == current:
        raise InvalidPartitions(f"Topic already has {current} partition(s).")
    if wanted < current:
        raise InvalidPartitions(
            f"The topic {name} currently has {current} partition(s); {wanted} would not be an increase."
        )
    added = range(current, wanted)
    # The limit comes before anything that is made per partition.
    _require_partitions_per_topic(name, wanted, max_partitions)
    if assignments is not None:
        if len(assignments) != len(added):
            raise InvalidReplicaAssignment(
                f"Attempted to add {len(added)} additional partition(s),"
                f" but {len(assignments)} assignment(s) were specified."
            )
        for broker_ids in assignments:
            _require_one_known_broker(broker_ids, known_broker_ids)
    return added


def require_partitions_per_request(total: int, *, limit: int = DEFAULT_MAX_PARTITIONS) -> None:
    """Refuse a request that would make more partitions at once than the operator allows."""
    if total > limit:
        raise PolicyViolation(
            f"Excessively large number of partitions per request: {total}, where at most {limit} are allowed."
        )


def _require_partitions_per_topic(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise PolicyViolation(
            f"Excessively large number of partitions for topic '{name}': {count}, where at most {limit} are allowed."
        )


def _require_replication_factor(replication_factor: int) -> None:
    if replication_factor in (USE_DEFAULT, 1):
        return
    if replication_factor <= 0:
        raise InvalidReplicationFactor(
            f"Replication factor must be larger than 0, or -1 to use the default value; it was {replication_factor}."
        )
    raise InvalidReplicationFactor(
        f"Replication factor: {replication_factor} larger than available brokers: 1."
        " A record is one row, and PostgreSQL's own replication keeps further copies: ask for 1 or -1."
    )


def _count_assigned(
    assignments: Sequence[tuple[int, Sequence[int]]],
    num_partitions: int,
    replication_factor: int,
    known_broker_ids: Collection[int],
) -> int:
    if replication_factor != USE_DEFAULT:
        raise InvalidRequest("A manual partition assignment was specified, but replication factor was not set to -1.")
    if num_partitions != USE_DEFAULT:
        raise InvalidRequest("A manual partition assignment was specified, but numPartitions was not set to -1.")
    seen: set[int] = set()
    for partition, broker_ids in assignments:
        if partition in seen:
            raise InvalidReplicaAssignment(f"Found multiple manual partition assignments for partition {partition}")
        seen.add(partition)
        _require_one_known_broker(broker_ids, known_broker_ids)
    if min(seen) != 0 or max(seen) != len(seen) - 1:
        raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
    return len(seen)


def _require_one_known_broker(broker_ids: Sequence[int], known_broker_ids: Collection[int]) -> None:
    if not broker_ids:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    for position, broker_id in enumerate(broker_ids):
        if broker_id not in known_broker_ids:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        # Looking back is cheap only because the second known broker already ends the loop below.
        if broker_id in broker_ids[:position]:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes the broker {broker_id} more than once."
            )
        if position == 1:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment lists {len(broker_ids)} replicas of a partition,"
                " but there is one copy of each: PostgreSQL's own replication keeps further ones."
            )


def _shorten(text: str) -> str:
    """An error answer must not grow with the mistake."""
    return text if len(text) <= MAX_NAME_LENGTH else text[:MAX_NAME_LENGTH] + "…"
