"""Which topics a member of a consumer group wants: names, and a pattern that grows with the topics there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from gateway.domain.patterns import compile_pattern

__all__ = ["KnownTopic", "Resolved", "Topics", "check_pattern", "resolve"]


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


def _compiled(pattern: str) -> Any:
    return compile_pattern(pattern, field="SubscribedTopicRegex")
