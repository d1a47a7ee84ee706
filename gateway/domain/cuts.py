"""Cuts: which offsets of which partitions one read covers. Pure; the ends of the logs are given.

A cut is fixed before anything is read, so that all tasks of a read, and all later reads of the same cut, agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from gateway.errors import PipelineError

__all__ = [
    "Cut",
    "CutChanged",
    "LogEnds",
    "Offsets",
    "OffsetsUnavailable",
    "PartitionRange",
    "UnknownTopics",
    "choose_cut",
    "covers_everything",
    "limit_cut",
    "require_readable",
    "share_rows",
    "shorten_cut",
    "split_range",
    "split_ranges",
]

JSON_VERSION = 1

Offsets = Literal["earliest", "latest"] | Mapping[tuple[str, int], int]
"""Where to start or end: at the log's own end, or at an offset per topic and partition."""


class UnknownTopics(PipelineError):
    """A topic or partition that was asked for does not exist."""


class OffsetsUnavailable(PipelineError):
    """Offsets that retention has deleted, or that are not committed yet."""


class CutChanged(PipelineError):
    """The topic of a cut was deleted and made anew: its offsets mean other records now."""


@dataclass(frozen=True, order=True)
class PartitionRange:
    """The offsets `start` to `end`, without `end`, of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: int
    topic_uuid: str

    @property
    def size(self) -> int:
        """How many offsets; markers and aborted records have offsets too, so rows may be fewer."""
        return self.end - self.start

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition


@dataclass(frozen=True, order=True)
class LogEnds:
    """Where the readable log of a partition starts and ends at one instant."""

    topic: str
    partition: int
    topic_id: int
    topic_uuid: str
    log_start: int
    last_stable: int
    log_end: int

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition

    def range(self, start: int, end: int) -> PartitionRange:
        return PartitionRange(self.topic, self.partition, start, end, self.topic_id, self.topic_uuid)


@dataclass(frozen=True)
class Cut:
    """One range per partition, in order of topic and partition. Equal cuts have equal rows."""

    ranges: tuple[PartitionRange, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.topic for one in self.ranges))

    @property
    def size(self) -> int:
        """How many offsets it covers: an upper bound of its rows."""
        return sum(one.size for one in self.ranges)

    @property
    def is_empty(self) -> bool:
        return self.size == 0

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """Where the next cut starts, by topic and partition."""
        return {one.place: one.end for one in self.ranges}

    @property
    def starts(self) -> dict[tuple[str, int], int]:
        return {one.place: one.start for one in self.ranges}

    @property
    def positions(self) -> dict[tuple[int, int], int]:
        """Where the next cut starts, by topic id and partition."""
        return {(one.topic_id, one.partition): one.end for one in self.ranges}

    def to_json(self) -> str:
        """One line of text, the same for equal cuts."""
        topics: dict[str, Any] = {}
        for one in self.ranges:
            entry = topics.setdefault(one.topic, {"id": one.topic_id, "uuid": one.topic_uuid, "offsets": {}})
            entry["offsets"][str(one.partition)] = [one.start, one.end]
        return json.dumps({"version": JSON_VERSION, "topics": topics}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Cut:
        try:
            document = json.loads(text)
            if document["version"] != JSON_VERSION:
                raise PipelineError(
                    f"The cut has version {document['version']!r} and this program reads {JSON_VERSION}: upgrade it."
                )
            ranges = [
                PartitionRange(name, int(partition), int(start), int(end), int(topic["id"]), str(topic["uuid"]))
                for name, topic in document["topics"].items()
                for partition, (start, end) in topic["offsets"].items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as malformed:
            raise PipelineError(f"This is not a cut as Cut.to_json() writes it: {malformed!r}.") from None
        if any(not 0 <= one.start <= one.end or one.partition < 0 for one in ranges):
            raise PipelineError("This is not a cut: a range must start at 0 or later and not end before its start.")
        return cls(tuple(sorted(ranges)))


def choose_cut(
    logs: Sequence[LogEnds],
    *,
    topics: Sequence[str],
    start: Offsets = "earliest",
    end: Offsets = "latest",
) -> Cut:
    """The cut from `start` to `end`. A partition that offsets do not name starts, or ends, where its log does.

    What retention has deleted, or is not committed yet, is refused rather than left out.
    """
    known = {log.topic for log in logs}
    if missing := [topic for topic in topics if topic not in known]:
        names = ", ".join(missing)
        raise UnknownTopics(
            f"There is no topic {names}: check the name in kafka.topics, or produce to it or create it first."
        )
    places = {log.place for log in logs}
    for offsets in (start, end):
        if not isinstance(offsets, str) and (unknown := sorted(set(offsets) - places)):
            topic, partition = unknown[0]
            raise UnknownTopics(
                f"Topic {topic} has no partition {partition} in this read: leave it out, or name the topic."
            )
    return Cut(tuple(_range(log, start, end) for log in sorted(logs)))


def limit_cut(cut: Cut, max_rows: int) -> Cut:
    """The first `max_rows` offsets of a cut, shared fairly over its partitions."""
    shares = share_rows([one.size for one in cut.ranges], max_rows)
    return Cut(tuple(replace(one, end=one.start + share) for one, share in zip(cut.ranges, shares, strict=True)))


def shorten_cut(cut: Cut, ends: Mapping[tuple[int, int], int]) -> Cut:
    """The same cut, ending at these offsets (by topic id and partition) where it would end later."""
    return Cut(
        tuple(
            replace(one, end=max(one.start, min(one.end, ends.get((one.topic_id, one.partition), one.end))))
            for one in cut.ranges
        )
    )


def covers_everything(cut: Cut, logs: Iterable[LogEnds]) -> bool:
    """Whether nothing lies beyond the cut, not even an open transaction: then it can tear none apart."""
    ends = cut.ends
    return all(ends[log.place] == log.log_end for log in logs)


def _range(log: LogEnds, start: Offsets, end: Offsets) -> PartitionRange:
    named = f"partition {log.partition} of topic {log.topic}"
    first = _offset(log, start, default=log.log_start)
    last = _offset(log, end, default=log.last_stable)
    if first < log.log_start:
        raise OffsetsUnavailable(
            f"Offset {first} of {named} was deleted by retention, the log starts at {log.log_start}: "
            'start there, or with start="earliest", and count what is between as lost.'
        )
    if first > log.last_stable:
        raise OffsetsUnavailable(
            f"Offset {first} of {named} is beyond what is committed, which ends at {log.last_stable}: "
            'start at a lower offset, or with start="latest".'
        )
    if last > log.last_stable:
        raise OffsetsUnavailable(
            f"Offset {last} of {named} is beyond what is committed, which ends at {log.last_stable}: "
            'end at a lower offset, or with end="latest", or wait.'
        )
    # An end below the start is an empty range: a time may well lie before the position.
    return log.range(first, max(first, last))


def _offset(log: LogEnds, offsets: Offsets, *, default: int) -> int:
    if isinstance(offsets, str):
        return log.log_start if offsets == "earliest" else log.last_stable
    return offsets.get(log.place, default)


def require_readable(cut: Cut, logs: Iterable[LogEnds]) -> None:
    """Refuse a cut that no longer has all of its rows: its topic is gone or another, or retention went past it."""
    by_place = {log.place: log for log in logs}
    for one in cut.ranges:
        log = by_place.get(one.place)
        if log is None:
            raise UnknownTopics(f"Topic {one.topic} of this cut is gone: it was deleted; fix a new cut.")
        if log.topic_uuid != one.topic_uuid:
            raise CutChanged(f"Topic {one.topic} was deleted and made anew since this cut was fixed: fix a new cut.")
        if one.size and one.start < log.log_start:
            raise OffsetsUnavailable(
                f"Offsets from {one.start} of partition {one.partition} of topic {one.topic} were deleted by "
                f"retention since this cut was fixed, the log starts at {log.log_start}: fix a new cut."
            )
        if one.end > log.last_stable:
            raise OffsetsUnavailable(
                f"This cut ends at offset {one.end} of partition {one.partition} of topic {one.topic} and the "
                f"committed log at {log.last_stable}: it is from another database, or from before a restore."
            )


def share_rows(available: Sequence[int], max_rows: int) -> list[int]:
    """Share `max_rows` among partitions: who has less than an equal share gives the rest to the others.

    What cannot be divided goes to those with the most left, so that no partition waits for ever.
    """
    if max_rows < 1:
        raise PipelineError(f"max_rows must be at least 1, not {max_rows}.")
    shares = [0] * len(available)
    left = max_rows
    waiting = [index for index, count in enumerate(available) if count > 0]
    while waiting and left >= len(waiting):
        equal = left // len(waiting)
        for index in waiting:
            taken = min(equal, available[index] - shares[index])
            shares[index] += taken
            left -= taken
        waiting = [index for index in waiting if shares[index] < available[index]]
    waiting.sort(key=lambda index: (shares[index] - available[index], index))
    for index in waiting[:left]:
        shares[index] += 1
    return shares


def split_range(whole: PartitionRange, max_rows: int) -> list[PartitionRange]:
    """Pieces of at most `max_rows` offsets, equal but for one; none of an empty range."""
    count = -(-whole.size // max_rows)
    bounds = [whole.start + whole.size * number // count for number in range(count + 1)] if count else []
    return [replace(whole, start=low, end=high) for low, high in pairwise(bounds)]


def split_ranges(ranges: Iterable[PartitionRange], max_rows: int) -> list[PartitionRange]:
    """All pieces, the first of each partition first: tasks that run at once read different partitions."""
    if max_rows < 1:
        raise PipelineError(f"rows_per_task must be at least 1, not {max_rows}.")
    pieces = [list(enumerate(split_range(one, max_rows))) for one in ranges]
    return [piece for _, piece in sorted((pair for one in pieces for pair in one), key=lambda pair: pair[0])]
