"""Fixing cuts: one query reads the ends of all partitions at one instant, the rules in gateway/domain/cuts.py
choose, and transactions that would be torn apart are left to the next cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.domain.cuts import (
    Cut,
    CutChanged,
    LogEnds,
    Offsets,
    choose_cut,
    covers_everything,
    limit_cut,
    require_readable,
    shorten_cut,
)
from gateway.errors import PipelineError
from gateway.pipeline.database import Connection, Source, connected
from gateway.storage.statements import statement

__all__ = ["Bound", "PipelinePosition", "check_cut", "fix_cut"]


@dataclass(frozen=True)
class PipelinePosition:
    """Where a pipeline goes on, by its name; what it has not read yet starts with `otherwise`."""

    pipeline: str
    otherwise: Literal["earliest", "latest"] = "earliest"


Bound = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]] | datetime | Cut | PipelinePosition
"""A start or an end: a word, offsets by topic and partition, a time, the end of another cut, a pipeline's position."""


def fix_cut(
    source: Source,
    topics: str | Sequence[str],
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    max_rows: int | None = None,
) -> Cut:
    """Fix which offsets a read covers: from `start` to `end`, at most to the last stable offset of each partition.

    A cut that starts where another one ended, or at the start of the logs, holds each committed transaction whole or
    not at all, in all its partitions: where it would hold a part, it ends before that. Offsets given as `end` are taken
    as they are. A time stands for the first committed record at or after it. A partition that `start` does not name,
    such as one that is new since another cut, starts where its log does.

    `max_rows` is shared fairly over the partitions. More are taken only if the next transaction alone has more.
    """
    names = topic_names(topics)
    with connected(source) as connection:
        logs = load_logs(connection, names)
        whole = choose_cut(
            logs,
            topics=names,
            start=_offsets(connection, names, logs, start),
            end=_offsets(connection, names, logs, end),
        )
        is_exact = isinstance(end, Mapping | Cut)
        if max_rows is None:
            return whole if is_exact else _close(connection, whole, logs)
        while (limited := limit_cut(whole, max_rows)) != whole:
            if not (closed := _close(connection, limited, logs)).is_empty:
                return closed
            max_rows *= 2
        return whole if is_exact else _close(connection, whole, logs)


def _close(connection: Connection, cut: Cut, logs: Sequence[LogEnds]) -> Cut:
    """Shorten a cut until it tears no transaction apart.

    The ends were read before: whatever is committed in between was open then, and hence lies beyond all of them.
    """
    while not cut.is_empty and not covers_everything(cut, logs):
        parameters = {
            "topic_ids": [one.topic_id for one in cut.ranges],
            "partitions": [one.partition for one in cut.ranges],
            "starts": [one.start for one in cut.ranges],
            "ends": [one.end for one in cut.ranges],
        }
        torn = connection.execute(statement("pipeline/find_torn"), parameters).fetchall()
        if not torn:
            break
        cut = shorten_cut(cut, {(topic_id, partition): offset for topic_id, partition, offset in torn})
    return cut


def check_cut(source: Source, cut: Cut) -> None:
    """Refuse a cut whose rows are no longer all there. After a read: proves that the read had all of them."""
    with connected(source) as connection:
        require_readable(cut, load_logs(connection, cut.topics))


def topic_names(topics: str | Sequence[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise PipelineError("No topic is named: give at least one.")
    return list(dict.fromkeys(names))


def load_logs(connection: Connection, topics: Sequence[str]) -> list[LogEnds]:
    rows = connection.execute(statement("pipeline/load_logs"), {"topics": list(topics)}).fetchall()
    return [
        LogEnds(topic, partition, topic_id, topic_uuid, log_start, last_stable, log_end)
        for topic, partition, topic_id, topic_uuid, log_start, last_stable, log_end in rows
    ]


def _offsets(connection: Connection, topics: Sequence[str], logs: Sequence[LogEnds], bound: Bound) -> Offsets:
    if isinstance(bound, str):
        if bound not in ("earliest", "latest"):
            raise PipelineError(f'{bound!r} is no place to start or end: say "earliest", "latest", offsets or a time.')
        return bound
    if isinstance(bound, datetime):
        return _offsets_at(connection, topics, logs, bound)
    if isinstance(bound, PipelinePosition):
        return _positions(connection, topics, logs, bound)
    if isinstance(bound, Cut):
        _require_same_topics(bound, logs)
        return {place: offset for place, offset in bound.ends.items() if place[0] in topics}
    return {(topic, partition): offset for topic, offsets in bound.items() for partition, offset in offsets.items()}


def _offsets_at(
    connection: Connection, topics: Sequence[str], logs: Sequence[LogEnds], at: datetime
) -> Mapping[tuple[str, int], int]:
    if at.tzinfo is None:
        raise PipelineError(f"The time {at} has no time zone: say datetime(…, tzinfo=UTC).")
    parameters = {"topics": list(topics), "at": at}
    found = connection.execute(statement("pipeline/find_offsets_by_time"), parameters).fetchall()
    offsets = {(topic, partition): offset for topic, partition, offset in found}
    # Nothing at or after it: the time lies at the end. What was committed since the ends were read is not in the cut.
    return {log.place: min(offsets.get(log.place, log.last_stable), log.last_stable) for log in logs}


def _positions(
    connection: Connection, topics: Sequence[str], logs: Sequence[LogEnds], position: PipelinePosition
) -> Mapping[tuple[str, int], int]:
    parameters = {"pipeline": position.pipeline, "topics": list(topics)}
    found = connection.execute(statement("pipeline/load_positions"), parameters).fetchall()
    saved = {(topic, partition): offset for topic, partition, offset in found}
    others = {log.place: log.log_start if position.otherwise == "earliest" else log.last_stable for log in logs}
    return {**others, **saved}


def _require_same_topics(cut: Cut, logs: Sequence[LogEnds]) -> None:
    uuids = {log.topic: log.topic_uuid for log in logs}
    for one in cut.ranges:
        if uuids.get(one.topic, one.topic_uuid) != one.topic_uuid:
            raise CutChanged(
                f"Topic {one.topic} was deleted and made anew since that cut was fixed: "
                'start with "earliest" or with offsets of the new topic.'
            )
