"""Which topics a member of a consumer group wants: names, and a pattern that grows with the topics there are.

Patterns are RE2's, as Kafka's are (KIP-848): they match in linear time, so no client can keep a gateway busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import re2

from gateway.errors import InvalidRegularExpression

__all__ = ["KnownTopic", "Resolved", "Topics", "check_pattern", "resolve"]

PATTERN_MAX_BYTES = 1 << 20
"""Memory that RE2 may use for one pattern; what needs more is refused."""


class KnownTopic(NamedTuple):
    """A topic as groups see it."""

    uuid: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics there are. Another version says that something may have changed."""

    by_name: Mapping[str, KnownTopic]
    version: int = 0

    def ids(self, names: Iterable[str]) -> frozenset[UUID]:
        """The ids of those among `names` that exist."""
        return frozenset(self.by_name[name].uuid for name in names if name in self.by_name)


Resolved: TypeAlias = Mapping[str, frozenset[str]]
"""The topic names that each pattern matches."""


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that RE2 cannot read, or that needs too much memory."""
    _compiled(pattern)


def resolve(patterns: Iterable[str], topics: Topics) -> dict[str, frozenset[str]]:
    """The topics whose whole name each pattern matches."""
    return {
        pattern: frozenset(name for name in topics.by_name if _compiled(pattern).fullmatch(name))
        for pattern in set(patterns)
    }


@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MAX_BYTES
    try:
        if "\0" in pattern:
            raise InvalidRegularExpression("the pattern holds a NUL, which no topic's name can")
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unreadable"
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"SubscribedTopicRegex `{pattern}` is not a valid pattern: {text}") from None
