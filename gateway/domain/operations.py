"""What may be done to a topic or the cluster, as Kafka numbers it where clients ask what they may do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

__all__ = ["CLUSTER_OPERATIONS", "GROUP_OPERATIONS", "TOPIC_OPERATIONS", "Operation", "operations_mask"]


class Operation(enum.IntEnum):
    """Kafka's AclOperation."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


TOPIC_OPERATIONS: Final = frozenset(
    {
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    }
)
"""All that can be allowed on a topic."""

CLUSTER_OPERATIONS: Final = frozenset(
    {
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    }
)
"""All that can be allowed on the cluster."""

GROUP_OPERATIONS: Final = frozenset(
    {
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    }
)
"""All that can be allowed on a group."""


def operations_mask(operations: Iterable[Operation]) -> int:
    """One bit per operation, as the wire has it."""
    return sum(1 << operation for operation in set(operations))
