"""Which id and epoch InitProducerId answers."""

from __future__ import annotations

import pytest

from gateway.domain.producers import LAST_EPOCH, NEW_PRODUCER, Bump, Producer, decide_init
from gateway.errors import InvalidRequest, ProducerFenced


def test_a_producer_that_names_nothing_gets_a_new_id() -> None:
    assert decide_init(Producer(-1, -1), newest_epoch=None) == NEW_PRODUCER


def test_a_producer_that_names_its_newest_epoch_gets_the_next_one() -> None:
    assert decide_init(Producer(1000, 3), newest_epoch=3) == Bump(4)


def test_a_producer_that_raised_its_epoch_by_itself_is_answered_above_it() -> None:
    assert decide_init(Producer(1000, 9), newest_epoch=3) == Bump(10)


def test_an_old_epoch_is_fenced() -> None:
    with pytest.raises(ProducerFenced, match="epoch is 3, received 2"):
        decide_init(Producer(1000, 2), newest_epoch=3)


def test_an_id_that_nobody_knows_is_replaced_by_a_new_one() -> None:
    assert decide_init(Producer(4711, 0), newest_epoch=None) == NEW_PRODUCER


@pytest.mark.parametrize("epoch", [LAST_EPOCH, LAST_EPOCH + 1])
def test_an_id_at_the_last_epoch_is_given_up(epoch: int) -> None:
    assert decide_init(Producer(1000, epoch), newest_epoch=epoch) == NEW_PRODUCER


def test_the_epoch_before_the_last_is_still_raised() -> None:
    assert decide_init(Producer(1000, LAST_EPOCH - 1), newest_epoch=LAST_EPOCH - 1) == Bump(LAST_EPOCH)


@pytest.mark.parametrize("asked", [Producer(-1, 0), Producer(7, -1), Producer(-2, -2)])
def test_half_an_identity_is_refused(asked: Producer) -> None:
    with pytest.raises(InvalidRequest):
        decide_init(asked, newest_epoch=0)
