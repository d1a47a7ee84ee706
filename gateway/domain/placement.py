"""Which of the live gateways leads a partition or looks after a group: rendezvous hashing.

Every gateway that knows the same live ones gives the same answer without asking anybody. When one comes, it takes
its share and nothing else moves; when one goes, only what it had moves. Nothing correct depends on the answer.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["Node", "choose_node", "choose_partition_leader"]

REMEMBERED_ANSWERS = 100_000


class Node(NamedTuple):
    """A gateway as clients see it."""

    node_id: int
    host: str
    port: int


@lru_cache(maxsize=REMEMBERED_ANSWERS)
def choose_node(key: str, node_ids: tuple[int, ...]) -> int:
    """The id among `node_ids`, of which there is at least one, whose hash together with `key` is the largest."""
    return max(node_ids, key=lambda node_id: (_weight(key, node_id), node_id))


def choose_partition_leader(*, topic_id: int, partition: int, node_ids: tuple[int, ...]) -> int:
    return choose_node(f"{topic_id}/{partition}", node_ids)


def _weight(key: str, node_id: int) -> bytes:
    # A key may hold lone surrogates: clients choose it.
    return blake2b(f"{node_id}:{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
