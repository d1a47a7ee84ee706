"""One file per Kafka API: translate, call the broker, translate back. The list of files is the support matrix."""

from __future__ import annotations

import importlib
import pkgutil

from gateway.handlers.registry import HANDLERS

__all__ = ["HANDLERS"]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("__"):
        importlib.import_module(f"{__name__}.{_module.name}")
