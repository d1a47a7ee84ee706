"""DescribeConfigs: what is in force for topics and gateways, and where each value comes from.

v1 synonyms (KIP-226) · v3 types and documentation · v4 flexible
"""

from __future__ import annotations

from gateway.broker.configs import Asked
from gateway.domain.configs import DescribedConfig
from gateway.errors import KafkaError
from gateway.handlers.registry import RequestContext, error_fields, handles, outcome
from gateway.protocol.messages import ApiKey, Request, Tree, field


@handles(ApiKey.DESCRIBE_CONFIGS, versions=range(1, 5))
async def describe_configs(request: Request, context: RequestContext) -> Tree:
    asked = [
        # As in Kafka, an empty list asks for all keys too.
        Asked(one.resource_type, one.resource_name, frozenset(one.configuration_keys or ()) or None)
        for one in request.resources
    ]
    described = await outcome(context.broker.configs.describe(asked))
    results = [described] * len(asked) if isinstance(described, KafkaError) else described
    return {"results": [_result(one, result, request) for one, result in zip(asked, results, strict=True)]}


def _result(asked: Asked, result: list[DescribedConfig] | KafkaError, request: Request) -> Tree:
    configs = [] if isinstance(result, KafkaError) else [_config(config, request) for config in result]
    return {
        **error_fields(result),
        "resource_type": asked.kind,
        "resource_name": asked.name,
        "configs": configs,
    }


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
