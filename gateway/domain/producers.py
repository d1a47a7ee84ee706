"""Which id and epoch does InitProducerId answer?"""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import InvalidRequest, ProducerFenced

__all__ = ["LAST_EPOCH", "NEW_PRODUCER", "Bump", "NewProducer", "Producer", "decide_init"]

LAST_EPOCH = 32766
"""Kafka never goes beyond: an id that reached it is given up for a new one."""


class Producer(NamedTuple):
    """A producer id with an epoch; both -1 stand for none."""

    id: int
    epoch: int


NO_PRODUCER = Producer(-1, -1)


class NewProducer(NamedTuple):
    """Give out an id that nobody had before."""


class Bump(NamedTuple):
    """Keep the id, raise the epoch."""

    epoch: int


NEW_PRODUCER = NewProducer()


def decide_init(asked: Producer, *, newest_epoch: int | None) -> NewProducer | Bump:
    """Judge a request that names what the producer had. `newest_epoch`: of that id, None if it is unknown here."""
    if asked == NO_PRODUCER:
        return NEW_PRODUCER
    if asked.id < 0 or asked.epoch < 0:
        raise InvalidRequest(f"producer id {asked.id} and epoch {asked.epoch} must be given together or not at all")
    if newest_epoch is None:
        return NEW_PRODUCER
    if asked.epoch < newest_epoch:
        raise ProducerFenced(current=newest_epoch, received=asked.epoch)
    return NEW_PRODUCER if asked.epoch >= LAST_EPOCH else Bump(asked.epoch + 1)
