from collections.abc import Callable

from gateway.broker.append_queue import Append as PlainAppend
from gateway.broker.plans import Written
from gateway.storage.keys import PartitionKey, ProducerKey
from gateway.storage.log import PartitionState, UsualCommit
from gateway.storage.producers import KnownProducer

class Append(PlainAppend): ...

class UsualPlan:
    message: bytes
    record_count: int
    size_bytes: int

    def conclude(self, states: dict[PartitionKey, PartitionState]) -> None: ...
    def tell(self, on_written: Callable[[Written], None], written_class: type[Written]) -> None: ...
    def settle(self) -> None: ...

def plan_usual(
    group: list[PlainAppend],
    states: dict[PartitionKey, PartitionState],
    producers: dict[PartitionKey, dict[ProducerKey, KnownProducer]],
    *,
    commit: UsualCommit,
    max_producers: int,
    follows: int,
    number: int,
) -> UsualPlan | None: ...
