"""kafka.take_deliveries and kafka.settle_deliveries against a naive model of one partition, in any order of events."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.worker import Delivery, Worker
from tests.worker.conftest import Desk

RECORDS, MAX_ATTEMPTS, MAX_UNSETTLED = 8, 3, 5
NUMBERS = count()

events = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["ack", "nack", "give back"]), st.integers(0, 7)),
        st.tuples(st.sampled_from(["expire", "due", "append"]), st.just(0)),
    ),
    max_size=25,
)


@dataclass
class Row:
    attempts: int = 0
    state: str = "available"
    is_due: bool = True


@dataclass
class Model:
    """What should be known of every offset, without any cleverness."""

    is_in_place: bool
    written: int = 0
    end: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)

    @property
    def unsettled(self) -> list[int]:
        return [offset for offset, row in sorted(self.rows.items()) if row.state in ("available", "acquired")]

    @property
    def start(self) -> int:
        return min(self.unsettled, default=self.end)

    def take(self, limit: int) -> list[tuple[int, int]]:
        open_ones = self.unsettled
        is_held = any(self.rows[one].state == "acquired" for one in open_ones)
        if self.is_in_place and open_ones and (is_held or not self.rows[open_ones[0]].is_due):
            return []
        ready = [one for one in open_ones if self.rows[one].state == "available" and self.rows[one].is_due]
        retried = [one for one in open_ones if self.rows[one].state == "available" and self.rows[one].attempts]
        if self.is_in_place:
            if retried and retried[0] == open_ones[0]:
                return [self._hand(retried[0])]
            fresh = [one for one in ready if not retried or one < retried[0]][:limit]
        else:
            if due := [one for one in retried if self.rows[one].is_due]:
                return [self._hand(due[0])]
            fresh = [one for one in ready if not self.rows[one].attempts][:limit]
        start, handed = self.start, [self._hand(one) for one in fresh]
        if self.is_in_place and any(self.rows[one].state == "available" for one in self.unsettled):
            return handed
        while len(handed) < limit and self.end < min(self.written, start + MAX_UNSETTLED):
            self.rows[self.end] = Row()
            handed.append(self._hand(self.end))
            self.end += 1
        return handed

    def _hand(self, offset: int) -> tuple[int, int]:
        row = self.rows[offset]
        row.attempts, row.state = row.attempts + 1, "acquired"
        return offset, row.attempts

    def fail(self, offset: int, *, is_due: bool) -> None:
        row = self.rows[offset]
        if row.attempts >= MAX_ATTEMPTS:
            row.state = "archived"
            self.dead.append(offset)
        else:
            row.state, row.is_due = "available", is_due

    def give_back(self, offset: int) -> None:
        row = self.rows[offset]
        row.attempts, row.state, row.is_due = row.attempts - 1, "available", True


@pytest.mark.parametrize("ordering", ["in-place", "pass"])
def test_deliveries_are_what_a_naive_model_says(database_url: str, ordering: str) -> None:
    with ExitStack() as stack:
        desk = Desk(database_url, stack)
        connection = desk.connect()

        @settings(max_examples=60, suppress_health_check=list(HealthCheck))
        @given(events)
        def run(story: list[tuple[str, int]]) -> None:
            topic = desk.topic(
                f"t{next(NUMBERS)}",
                delivery_ordering=ordering,
                delivery_max_attempts=MAX_ATTEMPTS,
                delivery_max_unsettled=MAX_UNSETTLED,
            )
            desk.append(*[b""] * RECORDS, topic=topic)
            tell(desk, connection, topic, Model(ordering == "in-place", RECORDS), story)

        run()


def tell(desk: Desk, connection: Any, topic: str, model: Model, story: list[tuple[str, int]]) -> None:
    worker = Worker(connection, topic, "g")
    in_hand: list[Delivery] = []
    for event, number in story:
        chosen = in_hand.pop(number % len(in_hand)) if in_hand and event in ("ack", "nack", "give back") else None
        if event == "take":
            worker._scripts._swept_at = float("-inf")
            taken = worker.take(number)
            assert [(one.offset, one.attempts) for one in taken] == model.take(number)
            in_hand += taken
        elif event == "expire" and in_hand:
            desk.expire()
            worker._scripts._swept_at = float("-inf")
            worker.take(0)
            for one in in_hand:
                model.fail(one.offset, is_due=True)
            in_hand = []
        elif event == "due":
            desk.make_due()
            for row in model.rows.values():
                row.is_due = True
        elif event == "append":
            desk.append(b"", topic=topic)
            model.written += 1
        elif chosen is not None and event == "ack":
            worker.ack(chosen)
            model.rows[chosen.offset].state = "acknowledged"
        elif chosen is not None and event == "nack":
            worker.nack(chosen, "no")
            model.fail(chosen.offset, is_due=False)
        elif chosen is not None:
            worker.give_back([chosen])
            model.give_back(chosen.offset)
        require_equal(desk, topic, model)


def require_equal(desk: Desk, topic: str, model: Model) -> None:
    place = desk.rows(
        "SELECT d.start_offset, d.end_offset, o.committed_offset FROM kafka.delivery_partitions d"
        " JOIN kafka.topics t USING (topic_id) JOIN kafka.consumer_offsets o USING (group_id, topic_id, partition)"
        " WHERE t.name = %s",
        topic,
    )
    if place:
        assert place == [(model.start, model.end, model.start)]
    stored = desk.rows(
        'SELECT d."offset", d.state, d.attempts FROM kafka.deliveries d JOIN kafka.topics t USING (topic_id)'
        ' WHERE t.name = %s ORDER BY d."offset"',
        topic,
    )
    # Settled rows stay only behind one that is not.
    expected = [(one, row.state, row.attempts) for one, row in sorted(model.rows.items()) if one >= model.start]
    assert stored == expected
    buried = desk.rows("SELECT source_offset FROM kafka.dead_letters WHERE source_topic = %s ORDER BY 1", topic)
    assert [offset for (offset,) in buried] == sorted(model.dead)
