"""A small part of `make fuzz` with each run of the tests, and that it would see what it looks for."""

from __future__ import annotations

import os
import re
import signal

import pytest

from gateway.handlers import HANDLERS
from tests.support import fuzz
from tests.support.fuzz import Decoder, Outcome, decoders, run

EXECUTIONS = 10_000


def is_number(data: bytes) -> None:
    int(data)


def dies_of_zero(data: bytes) -> None:
    if 0 in data:
        os.kill(os.getpid(), signal.SIGKILL)


def numbers(random: object) -> bytes:
    return b"1234567890"


@pytest.fixture
def with_decoder(monkeypatch: pytest.MonkeyPatch) -> object:
    """Makes a decoder of the test's own the only one, in the processes that fuzz too."""

    def install(decoder: Decoder) -> Outcome:
        monkeypatch.setattr(fuzz, "decoders", lambda: {decoder.name: decoder})
        return run([decoder.name], executions=500, seed=1, processes=2)[decoder.name]

    return install


def test_no_decoder_answers_mutations_with_anything_but_its_own_error() -> None:
    seed = 1 if os.environ.get("CI") else int.from_bytes(os.urandom(4), "big")
    outcomes = run(list(decoders()), executions=EXECUTIONS, seed=seed, processes=1)
    assert [finding for outcome in outcomes.values() for finding in outcome.findings] == []
    assert all(outcome.executions for outcome in outcomes.values())
    assert sum(outcome.executions for outcome in outcomes.values()) >= EXECUTIONS


def test_every_served_version_is_fuzzed() -> None:
    served = {
        f"request {handler.api_key.name.lower()} v{version}"
        for handler in HANDLERS.values()
        for version in handler.versions
    }
    assert served <= set(decoders())


def test_an_error_of_another_kind_is_found(with_decoder) -> None:
    outcome = with_decoder(Decoder("wrong", numbers, is_number, (KeyError,)))
    assert outcome.executions == 500
    assert outcome.accepted + len(outcome.findings) == 500
    assert "ValueError: invalid literal" in outcome.findings[0]
    assert with_decoder(Decoder("right", numbers, is_number, (ValueError,))).findings == []


def test_a_seed_gives_the_same_inputs_again(with_decoder) -> None:
    decoder = Decoder("wrong", numbers, is_number, (KeyError,))
    assert with_decoder(decoder).findings == with_decoder(decoder).findings != []


def test_a_crash_is_found_and_its_input_shown(with_decoder) -> None:
    outcome = with_decoder(Decoder("crashing", numbers, dies_of_zero, ()))
    assert len(outcome.findings) == 1
    assert "a process died" in outcome.findings[0]
    # What each process tried last: one of them died of it, the other may not have begun.
    tried = re.findall(r"'([0-9a-f]*)'", outcome.findings[0])
    assert any(0 in bytes.fromhex(last) for last in tried), outcome.findings
