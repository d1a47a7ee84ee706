"""Configs of brokers that were altered while they ran. Those of topics are in `topics.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.storage.database import Database, Transaction

__all__ = ["AlteredConfigs", "load", "lock", "replace"]


class AlteredConfigs(NamedTuple):
    """What was altered for one broker, and for all of them."""

    own: Mapping[str, str]
    shared: Mapping[str, str]


async def load(database: Database | Transaction, broker_id: int) -> AlteredConfigs:
    ((own, shared),) = await database.rows("configs/load_broker_configs", broker_id=broker_id)
    return AlteredConfigs(own or {}, shared or {})


async def lock(transaction: Transaction) -> None:
    """Hold the configs of all brokers still until the transaction ends."""
    await transaction.rows("configs/lock_broker_configs")


async def replace(transaction: Transaction, broker_id: int | None, values: Mapping[str, str]) -> None:
    """Store what is altered for a broker, or for all of them (None), in place of what was."""
    await transaction.rows("configs/clear_broker_configs", broker_id=broker_id)
    if values:
        await transaction.rows(
            "configs/insert_broker_configs", broker_id=broker_id, names=list(values), values=list(values.values())
        )
