"""ApiVersions: which APIs, versions and features are served.

v3 flexible · an unknown version is answered as v0 with UNSUPPORTED_VERSION (KIP-511), by the dispatcher
"""

from __future__ import annotations

from gateway.errors import ErrorCode
from gateway.handlers.registry import HANDLERS, RequestContext, handles
from gateway.protocol.messages import ApiKey, Request, Tree

METADATA_VERSION_MIN, METADATA_VERSION = 7, 25
"""metadata.version levels 3.3-IV3 and 4.0-IV3: tells consoles which admin calls to expect."""

FEATURES = {
    "metadata.version": (METADATA_VERSION_MIN, METADATA_VERSION),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
}
"""Finalized features with their lowest and highest level."""


@handles(ApiKey.API_VERSIONS, versions=range(0, 5))
async def api_versions(request: Request, context: RequestContext) -> Tree:
    return announcement(ErrorCode.none)


def announcement(error_code: ErrorCode) -> Tree:
    return {
        "error_code": error_code,
        "api_keys": [
            {
                "api_key": handler.api_key,
                "min_version": handler.announced_min,
                "max_version": handler.versions[-1],
            }
            for handler in sorted(HANDLERS.values(), key=lambda handler: handler.api_key)
        ],
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high} for name, (low, high) in FEATURES.items()
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "min_version_level": high, "max_version_level": high} for name, (_, high) in FEATURES.items()
        ],
    }
