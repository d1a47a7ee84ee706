"""This gateway among the others on its database: who lives, who leads what, and whether we are still one of them.

A gateway holds its node id in an epoch. Silent for longer than the session timeout, the epoch is over for good: the
gateway registers again, or stops when another one has taken its id. Our own clock is only used to judge ourselves
earlier than the others do, so a process that was paused knows at once that it may be a zombie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from gateway.clock import monotonic_seconds
from gateway.domain.placement import Node, choose_node, choose_partition_leader
from gateway.errors import CoordinatorNotAvailable, StartupError
from gateway.storage.brokers import BrokerConnection
from gateway.storage.database import Database
from gateway.storage.failures import DATABASE_ERRORS
from gateway.tasks import end_task

__all__ = ["Cluster"]

log = structlog.get_logger()

LOOK_AGAIN_SECONDS = 0.1
LEAVE_SECONDS = 2.0


class Cluster:
    """The live gateways as this one saw them at its last heartbeat."""

    def __init__(
        self,
        database: Database,
        node: Node,
        *,
        http_address: str,
        heartbeat_interval_ms: int,
        session_timeout_ms: int,
        on_lost: Callable[[str], None],
    ) -> None:
        self._database = database
        self._node = node
        self._http_address = http_address
        self._interval_seconds = heartbeat_interval_ms / 1000
        self._session_timeout_ms = session_timeout_ms
        self._on_lost = on_lost
        self._nodes: dict[int, Node] = {node.node_id: node}
        self._node_ids: tuple[int, ...] = (node.node_id,)
        self._epoch = -1
        self._lives_until = 0.0
        self._watchers: list[Callable[[], None]] = []
        self._connection: BrokerConnection | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def nodes(self) -> list[Node]:
        """The live gateways, lowest id first; never empty."""
        return list(self._nodes.values())

    @property
    def node_ids(self) -> tuple[int, ...]:
        return self._node_ids

    @property
    def controller_id(self) -> int:
        """The lowest live id. There is nothing to control: clients want to know one."""
        return self._node_ids[0]

    @property
    def epoch(self) -> int:
        """The epoch in which this gateway holds its node id."""
        return self._epoch

    @property
    def is_member(self) -> bool:
        """Whether the others can still believe that this gateway lives."""
        return monotonic_seconds() < self._lives_until

    def leader_of(self, topic_id: int, partition: int) -> int:
        """The node id that clients are told for a partition. Any gateway serves it all the same."""
        return choose_partition_leader(topic_id=topic_id, partition=partition, node_ids=self._node_ids)

    def coordinator_of(self, key: str) -> Node:
        """The gateway that looks after a group or a transactional id; refused while we are cut off from the others."""
        if not self.is_member:
            raise CoordinatorNotAvailable("this gateway has lost touch with the database")
        return self._nodes[choose_node(key, self._node_ids)]

    def is_coordinator_of(self, key: str) -> bool:
        return self.is_member and choose_node(key, self._node_ids) == self._node.node_id

    def call_on_change(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever a gateway came or went, or this one was reborn in another epoch."""
        self._watchers.append(watcher)

    async def join(self) -> None:
        """Become one of the live gateways; StartupError when another live one has our node id."""
        try:
            await self._take_id(await self._connected())
        except BaseException:
            await self._disconnect()
            raise
        self._task = asyncio.create_task(self._run())

    async def leave(self) -> None:
        """Tell the others that we go, so that they need not wait for our silence. Clients are told of them only."""
        await end_task(self._task)
        was_member, self._lives_until = self.is_member, 0.0
        if len(self._nodes) > 1:
            self._learn(node for node in self.nodes if node != self._node)
        try:
            if was_member:
                async with asyncio.timeout(LEAVE_SECONDS):
                    connection = await self._connected()
                    await connection.deregister(self._node.node_id, epoch=self._epoch)
        except DATABASE_ERRORS as error:
            log.warning("the other gateways could not be told that this one goes", error=str(error))
        await self._disconnect()

    async def _take_id(self, connection: BrokerConnection) -> None:
        seen = None
        asked_at = monotonic_seconds()
        while (epoch := await connection.register(self._node, http_address=self._http_address)) is None:
            holder = await connection.find(self._node.node_id)
            if holder is not None and seen is not None and holder != seen:
                raise StartupError(
                    f"Node id {self._node.node_id} is in use by the gateway at {holder.host}:{holder.port}:"
                    " give this one another with TABLEWIRE_NODE_ID."
                )
            seen = seen or holder  # after a crash it stays silent; then the id is ours
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            asked_at = monotonic_seconds()
        self._begin_epoch(epoch, asked_at)
        self._learn(await connection.list_live())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                # Half of the session: if this one hangs, there is time for another on a new connection.
                async with asyncio.timeout(self._session_timeout_ms / 2000):
                    is_ours = await self._beat()
            except DATABASE_ERRORS as error:
                log.warning("the database did not take a heartbeat", is_member=self.is_member, error=str(error))
                await self._disconnect()
                continue
            if not is_ours:
                return

    async def _beat(self) -> bool:
        """One sign of life and one look around; False when another gateway has our id."""
        connection = await self._connected()
        asked_at = monotonic_seconds()
        # The answer must come in time too: before a slow COMMIT the others may have seen us silent for too long.
        if self.is_member and await connection.beat(self._node.node_id, epoch=self._epoch) and self.is_member:
            self._lives_until = asked_at + self._session_timeout_ms / 1000
        else:
            self._lives_until = 0.0
            await connection.deregister(self._node.node_id, epoch=self._epoch)
            asked_at = monotonic_seconds()
            epoch = await connection.register(self._node, http_address=self._http_address)
            if epoch is None:
                log.error("another gateway has taken this node id", node_id=self._node.node_id, epoch=self._epoch)
                self._on_lost(
                    f"Another gateway has taken node id {self._node.node_id} while this one was silent:"
                    " give one of them another with TABLEWIRE_NODE_ID."
                )
                return False
            log.warning("this gateway was silent for too long; it takes part again", epoch=epoch)
            self._begin_epoch(epoch, asked_at)
        self._learn(await connection.list_live())
        return True

    def _begin_epoch(self, epoch: int, asked_at: float) -> None:
        is_reborn, self._epoch = self._epoch >= 0, epoch
        self._lives_until = asked_at + self._session_timeout_ms / 1000
        if is_reborn:
            self._tell_watchers()

    def _learn(self, nodes: Iterable[Node]) -> None:
        known = {node.node_id: node for node in nodes}
        if known == self._nodes or not known:
            return
        for node_id in sorted(known.keys() ^ self._nodes.keys()):
            log.info("a gateway came" if node_id in known else "a gateway went", node_id=node_id)
        self._nodes, self._node_ids = known, tuple(sorted(known))
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    async def _connected(self) -> BrokerConnection:
        if self._connection is None:
            self._connection = await BrokerConnection.open(self._database, session_timeout_ms=self._session_timeout_ms)
        return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()
