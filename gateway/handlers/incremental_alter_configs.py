"""IncrementalAlterConfigs: set, delete, append to or subtract from single configs of topics and gateways.

v1 flexible · KIP-339 · all changes of a resource hold or none
"""

from __future__ import annotations

from gateway.domain.configs import ConfigOp, parse_op_type
from gateway.handlers.alter_configs import alter
from gateway.handlers.registry import RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=range(0, 2))
async def incremental_alter_configs(request: Request, context: RequestContext) -> Tree:
    return await alter(
        request,
        context,
        lambda config: ConfigOp(config.name, parse_op_type(config.config_operation), config.value),
        replaces_all=False,
    )
