"""DescribeLogDirs: how many bytes each partition takes in the database.

v2 flexible · v3 an error for the whole · v4 volume sizes (KIP-827), which PostgreSQL does not tell · v5 cordoned
directories, of which there are none · a gateway answers for what it leads, so that sums over all are right
"""

from __future__ import annotations

from itertools import groupby

from gateway.broker.offsets import PartitionSize
from gateway.errors import ErrorCode, KafkaError
from gateway.handlers.registry import RequestContext, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree

LOG_DIR = "postgresql"
"""The one place records are in."""


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 6))
async def describe_log_dirs(request: Request, context: RequestContext) -> Tree:
    sizes = await outcome(_load(request, context))
    if isinstance(sizes, KafkaError):
        directory: Tree = {"error_code": sizes.code, "log_dir": LOG_DIR, "topics": []}
    else:
        directory = {
            "error_code": ErrorCode.none,
            "log_dir": LOG_DIR,
            "topics": [
                {"name": name, "partitions": [_partition(one) for one in of_topic]}
                for name, of_topic in groupby(sizes, key=lambda one: one.topic)
            ],
        }
    return {"error_code": ErrorCode.none, "results": [directory]}


async def _load(request: Request, context: RequestContext) -> list[PartitionSize]:
    """Null asks for everything; otherwise only what is named and exists is answered."""
    broker = context.broker
    if request.topics is None:
        sizes = await broker.offsets.load_sizes(None)
    else:
        wanted = {(asked.topic, partition) for asked in request.topics for partition in asked.partitions}
        sizes = await broker.offsets.load_sizes(sorted({name for name, _ in wanted}))
        sizes = [one for one in sizes if (one.topic, one.partition) in wanted]
    return [one for one in sizes if broker.cluster.leader_of(one.topic_id, one.partition) == broker.node.node_id]


def _partition(one: PartitionSize) -> Tree:
    return {
        "partition_index": one.partition,
        "partition_size": one.size_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }
