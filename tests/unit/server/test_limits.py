"""The budget that all connections share."""

from __future__ import annotations

from gateway.server.limits import Budget


def test_who_found_it_full_is_called_once_when_there_is_room_again() -> None:
    budget = Budget(100)
    called: list[str] = []
    budget.take(100)
    assert budget.is_full
    first, second = (lambda: called.append("first")), (lambda: called.append("second"))
    budget.call_when_free(first)
    budget.call_when_free(second)
    budget.call_when_free(first)
    budget.give_back(0)
    assert called == []
    budget.give_back(1)
    assert not budget.is_full
    assert called == ["first", "second"]
    budget.give_back(50)
    assert called == ["first", "second"]


def test_who_has_gone_is_not_called() -> None:
    budget = Budget(10)
    budget.take(10)
    called: list[str] = []

    def resume() -> None:
        called.append("gone")

    budget.call_when_free(resume)
    budget.forget(resume)
    budget.forget(resume)
    budget.give_back(10)
    assert called == []
    assert budget.used_bytes == 0


def test_who_fills_it_again_may_ask_to_be_called_again() -> None:
    budget = Budget(10)
    calls = 0

    def resume() -> None:
        nonlocal calls
        calls += 1
        budget.take(10)
        budget.call_when_free(resume)

    budget.take(10)
    budget.call_when_free(resume)
    budget.give_back(10)
    assert calls == 1
    budget.give_back(10)
    assert calls == 2
