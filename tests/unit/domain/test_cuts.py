"""Cuts: ranges, shares and pieces, by example and against what must hold of any of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.cuts import (
    Cut,
    CutChanged,
    LogEnds,
    OffsetsUnavailable,
    PartitionRange,
    UnknownTopics,
    choose_cut,
    require_readable,
    share_rows,
    split_range,
    split_ranges,
)
from gateway.errors import PipelineError

UUID = "6d0f7d0e-0a52-4d0b-8f0f-0d9c0a5f7a11"


def log(partition: int = 0, *, start: int = 0, stable: int = 10, topic: str = "orders", uuid: str = UUID) -> LogEnds:
    return LogEnds(topic, partition, 1, uuid, start, stable, stable + 5)


def one_range(start: int, end: int, *, partition: int = 0, topic: str = "orders") -> PartitionRange:
    return PartitionRange(topic, partition, start, end, 1, UUID)


def bounds(cut: Cut) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in cut.ranges]


def test_a_cut_runs_from_the_start_of_the_log_to_its_last_stable_offset() -> None:
    cut = choose_cut([log(1, start=3, stable=7), log(0)], topics=["orders"])
    assert bounds(cut) == [(0, 10), (3, 7)]
    assert cut.size == 14
    assert not cut.is_empty


def test_from_latest_there_is_nothing_yet() -> None:
    cut = choose_cut([log()], topics=["orders"], start="latest")
    assert bounds(cut) == [(10, 10)]
    assert cut.is_empty


def test_a_partition_that_offsets_do_not_name_starts_and_ends_where_its_log_does() -> None:
    cut = choose_cut([log(0), log(1, start=2)], topics=["orders"], start={("orders", 0): 4}, end={("orders", 0): 6})
    assert bounds(cut) == [(4, 6), (2, 10)]


def test_an_end_before_the_start_is_an_empty_range() -> None:
    cut = choose_cut([log()], topics=["orders"], start={("orders", 0): 8}, end={("orders", 0): 5})
    assert bounds(cut) == [(8, 8)]


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (2, 8, 'was deleted by retention, the log starts at 3: start there, or with start="earliest"'),
        (11, 8, 'beyond what is committed, which ends at 10: start at a lower offset, or with start="latest"'),
        (3, 11, 'beyond what is committed, which ends at 10: end at a lower offset, or with end="latest"'),
    ],
)
def test_offsets_that_are_not_there_are_refused_with_what_to_do(start: int, end: int, said: str) -> None:
    with pytest.raises(OffsetsUnavailable) as refused:
        choose_cut([log(start=3)], topics=["orders"], start={("orders", 0): start}, end={("orders", 0): end})
    assert said in str(refused.value)


def test_an_unknown_topic_or_partition_is_refused() -> None:
    with pytest.raises(UnknownTopics, match=r"There is no topic nobody: check the name in kafka\.topics"):
        choose_cut([log()], topics=["orders", "nobody"])
    with pytest.raises(UnknownTopics, match="Topic orders has no partition 7"):
        choose_cut([log()], topics=["orders"], start={("orders", 7): 0})


def test_rows_are_shared_over_partitions_and_who_has_less_leaves_the_rest_to_others() -> None:
    assert share_rows([100, 5, 100], 65) == [30, 5, 30]
    assert share_rows([1, 9, 0], 2) == [1, 1, 0]


def test_what_cannot_be_divided_goes_to_the_partition_with_the_most_left() -> None:
    assert share_rows([3, 9, 5], 1) == [0, 1, 0]


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(PipelineError, match="max_rows must be at least 1"):
        share_rows([1], 0)
    with pytest.raises(PipelineError, match="rows_per_task must be at least 1"):
        split_ranges([one_range(0, 1)], 0)


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 5000))
def test_shares_use_the_whole_limit_and_differ_by_one_at_most(available: list[int], max_rows: int) -> None:
    shares = share_rows(available, max_rows)
    assert sum(shares) == min(max_rows, sum(available))
    assert all(0 <= share <= count for share, count in zip(shares, available, strict=True))
    unmet = [share for share, count in zip(shares, available, strict=True) if share < count]
    if unmet:
        assert max(shares) <= min(unmet) + 1, "nobody gets more than one that was left waiting"


@given(st.integers(0, 10**12), st.integers(0, 10_000), st.integers(1, 3000))
def test_pieces_are_the_range_without_gap_or_overlap_and_none_is_larger_than_asked(
    start: int, size: int, max_rows: int
) -> None:
    pieces = split_range(one_range(start, start + size), max_rows)
    assert [offset for piece in pieces for offset in (piece.start, piece.end)] == sorted(
        offset for piece in pieces for offset in (piece.start, piece.end)
    )
    assert sum(piece.size for piece in pieces) == size
    assert all(0 < piece.size <= max_rows for piece in pieces)
    assert len(pieces) == -(-size // max_rows)
    assert not pieces or (pieces[0].start, pieces[-1].end) == (start, start + size)


def test_pieces_of_several_partitions_take_turns() -> None:
    pieces = split_ranges([one_range(0, 4), one_range(0, 2, partition=1), one_range(5, 5, partition=2)], 2)
    assert [(piece.partition, piece.start, piece.end) for piece in pieces] == [(0, 0, 2), (1, 0, 2), (0, 2, 4)]


offsets = st.integers(0, 2**62)
ranges = st.builds(
    lambda topic, partition, start, size: PartitionRange(topic, partition, start, start + size, 1, UUID),
    st.text("abc._-", min_size=1, max_size=5),
    st.integers(0, 5),
    offsets,
    offsets,
)


@given(st.lists(ranges, unique_by=lambda one: one.place))
def test_a_cut_survives_being_written_and_read(given_ranges: list[PartitionRange]) -> None:
    cut = Cut(tuple(sorted(given_ranges)))
    assert Cut.from_json(cut.to_json()) == cut
    assert Cut.from_json(cut.to_json()).to_json() == cut.to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "topics": {}}',
        '{"version": 1, "topics": {"a": {"id": 1, "uuid": "u", "offsets": {"0": [3]}}}}',
        '{"version": 1, "topics": {"a": {"id": 1, "uuid": "u", "offsets": {"0": [3, 2]}}}}',
        '{"version": 1, "topics": {"a": {"id": 1, "uuid": "u", "offsets": {"zero": [3, 4]}}}}',
    ],
)
def test_what_is_not_a_cut_is_refused(text: str) -> None:
    with pytest.raises(PipelineError):
        Cut.from_json(text)


def test_positions_are_where_the_next_cut_starts() -> None:
    cut = choose_cut([log(0), log(1, stable=4)], topics=["orders"])
    assert cut.positions == {(1, 0): 10, (1, 1): 4}
    assert cut.ends == {("orders", 0): 10, ("orders", 1): 4}
    assert cut.starts == {("orders", 0): 0, ("orders", 1): 0}
    assert json.loads(cut.to_json())["topics"]["orders"]["offsets"] == {"0": [0, 10], "1": [0, 4]}


def test_a_cut_is_readable_while_its_topic_and_its_records_are_there() -> None:
    cut = choose_cut([log()], topics=["orders"])
    require_readable(cut, [log(stable=99)])
    with pytest.raises(UnknownTopics, match="was deleted"):
        require_readable(cut, [])
    with pytest.raises(CutChanged, match="made anew"):
        require_readable(cut, [log(uuid="another")])
    with pytest.raises(OffsetsUnavailable, match="deleted by retention"):
        require_readable(cut, [log(start=1)])
    with pytest.raises(OffsetsUnavailable, match="another database"):
        require_readable(cut, [log(stable=9)])
