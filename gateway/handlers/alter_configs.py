"""AlterConfigs: replace all overrides of a topic, or all altered configs of gateways, at once.

v2 flexible · deprecated in favour of IncrementalAlterConfigs, which shares `alter`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gateway.domain.configs import ConfigOp, OpType
from gateway.errors import InvalidRequest
from gateway.handlers.registry import RequestContext, error_fields, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree


@handles(ApiKey.ALTER_CONFIGS, versions=range(0, 3))
async def alter_configs(request: Request, context: RequestContext) -> Tree:
    return await alter(
        request, context, lambda config: ConfigOp(config.name, OpType.SET, config.value), replaces_all=True
    )


async def alter(
    request: Request, context: RequestContext, read_op: Callable[[Any], ConfigOp], *, replaces_all: bool
) -> Tree:
    """Alter each resource by itself; `read_op` reads one entry of a resource."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)

    async def alter_one(resource: Any) -> None:
        if times[resource.resource_type, resource.resource_name] > 1:
            raise InvalidRequest("Each resource must appear at most once.")
        await context.broker.configs.alter(
            resource.resource_type,
            resource.resource_name,
            [read_op(config) for config in resource.configs],
            replaces_all=replaces_all,
            validate_only=request.validate_only,
        )

    return {
        "responses": [
            {
                **error_fields(await outcome(alter_one(resource))),
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            for resource in request.resources
        ]
    }
