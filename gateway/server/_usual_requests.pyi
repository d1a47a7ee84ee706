from collections.abc import Callable, Container

from gateway.broker.append_queue import Append
from gateway.broker.catalog import Catalog
from gateway.storage.keys import PartitionKey

class UsualPending:
    held_bytes: int
    is_made: bool

    def response_now(self) -> bytes | None: ...
    def abandon(self) -> None: ...

def begin_usual(
    content: bytes,
    catalog: Catalog,
    submit: Callable[[Append], None],
    *,
    versions: Container[int],
    fresh_since: float,
    now_ms: int,
    max_plain_bytes: int,
    find_joined: Callable[..., Container[PartitionKey]],
    on_settled: Callable[[], None],
) -> UsualPending | None: ...
