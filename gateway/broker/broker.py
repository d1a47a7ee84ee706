"""The broker: one object that holds the use cases and what they share."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping

from gateway.broker.appends import Appends
from gateway.broker.catalog import Catalog
from gateway.broker.cluster import Cluster
from gateway.broker.configs import Configs
from gateway.broker.group_topics import GroupTopics
from gateway.broker.groups import Groups
from gateway.broker.housekeeping import Housekeeping
from gateway.broker.offsets import Offsets
from gateway.broker.overview import Overview
from gateway.broker.plans import Written
from gateway.broker.positions import Positions
from gateway.broker.producers import Producers
from gateway.broker.reads import Reads
from gateway.broker.tail import Tail
from gateway.broker.transactions import Transactions
from gateway.config import Settings
from gateway.domain.connections import NewestConnections
from gateway.domain.groups.classic import Limits
from gateway.domain.groups.consumer import Rules
from gateway.domain.placement import Node
from gateway.storage.database import Database
from gateway.storage.log import PartitionState
from gateway.storage.transactions import Marked

__all__ = ["Broker", "Node"]


class Broker:
    """Everything a handler may call. Holds no truth: that is in the database."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        node: Node,
        cluster_id: str,
        broker_values: Mapping[str, str],
        schema_version: str,
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_lost` is told, in one sentence, when the gateway has to stop because another one took its node id."""
        self.settings = settings
        self.node = node
        self.cluster_id = cluster_id
        self.database = database
        self.cluster = Cluster(
            database,
            node,
            http_address=str(settings.http_address),
            heartbeat_interval_ms=settings.broker_heartbeat_interval_ms,
            session_timeout_ms=settings.broker_session_timeout_ms,
            on_lost=on_lost,
        )
        self.overview = Overview(database, self.cluster, schema_version=schema_version)
        self.tail = Tail(limit_bytes=settings.tail_cache_bytes)
        self.positions = Positions(database, poll_interval_ms=settings.fetch_poll_interval_ms)
        self.housekeeping = Housekeeping(
            database,
            transactional_id_expiry_ms=settings.transactional_id_expiration_ms,
            producer_expiry_ms=settings.producer_id_expiration_ms,
            producers_per_partition=settings.partition_max_producers,
            offsets_retention_minutes=settings.offsets_retention_minutes,
            offsets_check_interval_ms=settings.offsets_retention_check_interval_ms,
        )
        self.catalog = Catalog(database, broker_values, node_id=node.node_id, on_deleted=self._topic_deleted)
        self.configs = Configs(self.catalog, node_id=node.node_id)
        self.appends = Appends(
            database,
            writers=settings.writers,
            max_bytes=settings.writer_batch_max_bytes,
            timeout_ms=settings.database_timeout_ms,
            on_written=self._written,
        )
        self.reads = Reads(database, self.positions, self.tail, read_ahead_bytes=settings.fetch_read_ahead_bytes)
        self.offsets = Offsets(database)
        self.producers = Producers(database)
        self.connections = NewestConnections(gateway=secrets.randbits(62))
        self.transactions = Transactions(
            database,
            max_timeout_ms=settings.transaction_max_timeout_ms,
            max_open_per_client=settings.max_open_transactions_per_client,
            on_marked=self._marked,
            connections=self.connections,
        )
        self.groups = Groups(
            database,
            self.cluster,
            GroupTopics(self.catalog),
            node_id=node.node_id,
            limits=Limits(settings.group_initial_rebalance_delay_ms, settings.group_max_size),
            rules=Rules(
                session_timeout_ms=settings.group_consumer_session_timeout_ms,
                heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
                max_size=settings.group_consumer_max_size,
                assignors=settings.consumer_assignors,
            ),
        )
        database.watch_history(self._forget_log)

    async def start(self) -> None:
        """StartupError when another live gateway has our node id."""
        await self.cluster.join()
        self.positions.start()
        self.housekeeping.start()
        await self.transactions.start()
        self.groups.start()

    async def leave(self) -> None:
        """The gateway drains: the others take over, and nobody waits any longer."""
        self.overview.drain()
        self.positions.release()
        self.groups.release()
        await self.cluster.leave()

    async def stop(self) -> None:
        """Finish what was accepted, then let go of the database."""
        self.reads.stop()
        await self.appends.drain()
        await self.appends.stop()
        await self.groups.stop()
        await self.transactions.stop()
        await self.housekeeping.stop()
        await self.positions.stop()

    def _written(self, written: Written) -> None:
        for base_offset, next_offset, batch in written.batches:
            self.tail.add(written.key, base_offset=base_offset, next_offset=next_offset, batch=batch)
        self.positions.moved(
            written.key,
            next_offset=written.state.next_offset,
            last_stable_offset=written.state.last_stable_offset,
        )

    def _marked(self, marked: Marked, batch: bytes) -> None:
        """A transaction ended: its marker is the partition's last record now."""
        state = PartitionState(0, marked.last_stable_offset, marked.next_offset, marked.leader_epoch)
        self.appends.marked(marked.key, state)
        self._written(Written(marked.key, state, [(marked.next_offset - 1, marked.next_offset, batch)]))

    def _forget_log(self) -> None:
        """The database may have lost records that were acknowledged, and have others in their place."""
        self.tail.clear()
        self.positions.clear()
        self.appends.forget()
        self.reads.forget()

    def _topic_deleted(self, topic_id: int) -> None:
        self.tail.forget_topic(topic_id)
        self.housekeeping.wake()


async def load_cluster_id(database: Database) -> str:
    """The cluster's id as clients print it: 22 characters of URL-safe base64."""
    ((uuid,),) = await database.rows("topics/load_cluster")
    return base64.urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
