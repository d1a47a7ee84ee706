"""DescribeCluster: who this cluster is and which gateways serve it.

v1 endpoint types (KIP-919): gateways are brokers, there are no controllers · v2 fenced brokers: there are none
"""

from __future__ import annotations

from gateway.domain.operations import CLUSTER_OPERATIONS, operations_mask
from gateway.errors import KafkaError, MismatchedEndpointType, UnsupportedEndpointType
from gateway.handlers.registry import RequestContext, error_fields, handles
from gateway.protocol.messages import ApiKey, Request, Tree, field

BROKERS, CONTROLLERS = 1, 2


@handles(ApiKey.DESCRIBE_CLUSTER, versions=range(0, 3))
async def describe_cluster(request: Request, context: RequestContext) -> Tree:
    wanted = field(request, "endpoint_type", BROKERS)
    if wanted == CONTROLLERS:
        return _refused(
            MismatchedEndpointType(
                "The request was sent to an endpoint of type BROKER, but wanted one of type CONTROLLER"
            )
        )
    if wanted != BROKERS:
        return _refused(UnsupportedEndpointType(f"Unsupported endpoint type {wanted}"))
    cluster = context.broker.cluster
    answer = {
        **error_fields(None),
        "cluster_id": context.broker.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {
                "broker_id": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": None,
                "is_fenced": False,
            }
            for node in cluster.nodes
        ],
    }
    if request.include_cluster_authorized_operations:
        answer["cluster_authorized_operations"] = operations_mask(CLUSTER_OPERATIONS)
    return answer


def _refused(error: KafkaError) -> Tree:
    return {**error_fields(error), "cluster_id": "", "brokers": []}
