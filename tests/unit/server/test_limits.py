"""The budget that all connections share."""

from __future__ import annotations

from collections.abc import Callable

from gateway.server.limits import Budget


class Reader:
    def __init__(self, on_resume: Callable[[], None] = lambda: None) -> None:
        self.calls = 0
        self._on_resume = on_resume

    def resume_if_free(self) -> None:
        self.calls += 1
        self._on_resume()


def full_budget(limit_bytes: int = 100) -> Budget:
    budget = Budget(limit_bytes)
    budget.take(limit_bytes)
    assert budget.is_full
    return budget


def test_who_found_it_full_is_called_once_when_there_is_room_again() -> None:
    budget, first, second = full_budget(), Reader(), Reader()
    for reader in (first, second, first):
        budget.call_when_free(reader)
    budget.give_back(0)
    assert first.calls == second.calls == 0
    budget.give_back(1)
    assert not budget.is_full
    budget.give_back(50)
    assert first.calls == second.calls == 1


def test_who_has_gone_is_not_called() -> None:
    budget, gone = full_budget(), Reader()
    budget.call_when_free(gone)
    budget.forget(gone)
    budget.forget(gone)
    budget.give_back(100)
    assert gone.calls == 0
    assert budget.used_bytes == 0


def test_who_fills_it_again_may_ask_to_be_called_again() -> None:
    budget = full_budget()

    def fill() -> None:
        budget.take(100)
        budget.call_when_free(reader)

    reader = Reader(fill)
    budget.call_when_free(reader)
    budget.give_back(100)
    assert reader.calls == 1
    budget.give_back(100)
    assert reader.calls == 2


def test_one_reader_at_a_time_is_let_through_while_it_is_full() -> None:
    budget, first, second = full_budget(), Reader(), Reader()
    assert budget.lets_through(first)
    assert budget.lets_through(first)
    assert not budget.lets_through(second)
    budget.call_when_free(second)
    budget.end_passage(second)
    assert not budget.lets_through(second)
    budget.end_passage(first)
    assert second.calls == 1, "whoever waits hears that the passage is free"
    assert budget.lets_through(second)


def test_the_passage_of_a_reader_that_has_gone_is_free() -> None:
    budget, gone, waiting = full_budget(), Reader(), Reader()
    assert budget.lets_through(gone)
    budget.call_when_free(waiting)
    budget.forget(gone)
    assert waiting.calls == 1
    assert budget.lets_through(waiting)
