"""DescribeConfigs: what is in force for topics and gateways, and where each value comes from.

v1 synonyms (KIP-226) · v3 types and documentation · v4 flexible
"""

from __future__ import annotations

from gateway.domain.configs import DescribedConfig
from gateway.errors import KafkaError
from gateway.handlers.registry import RequestContext, error_fields, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field


@handles(ApiKey.DESCRIBE_CONFIGS, versions=range(1, 5))
async def describe_configs(request: Request, context: RequestContext) -> Tree:
    results = []
    for resource in request.resources:
        # As in Kafka, an empty list asks for all keys too.
        keys = frozenset(resource.configuration_keys) if resource.configuration_keys else None
        described = await outcome(context.broker.configs.describe(resource.resource_type, resource.resource_name, keys))
        results.append(
            {
                **error_fields(described),
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": []
                if isinstance(described, KafkaError)
                else [_config(config, request) for config in described],
            }
        )
    return {"results": results}


def _config(config: DescribedConfig, request: Request) -> Tree:
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": config.source,
        "is_sensitive": config.is_sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source}
            for synonym in (config.synonyms if request.include_synonyms else ())
        ],
        "config_type": config.type,
        "documentation": config.documentation if field(request, "include_documentation", None) else None,
    }
