"""What the annotations of kio's dataclasses say: arrays, nested structures, nulls."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

__all__ = ["entity_of", "is_array", "is_nullable"]


def is_array(annotation: Any) -> bool:
    return typing.get_origin(_unwrapped(annotation)) is tuple


def is_nullable(annotation: Any) -> bool:
    return _is_union(annotation) and types.NoneType in typing.get_args(annotation)


def entity_of(annotation: Any) -> type | None:
    """The class of a nested structure, or of an array's entries; None for plain values."""
    inner = _unwrapped(annotation)
    if typing.get_origin(inner) is tuple:
        inner = typing.get_args(inner)[0]
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def _unwrapped(annotation: Any) -> Any:
    if _is_union(annotation):
        (annotation,) = [option for option in typing.get_args(annotation) if option is not types.NoneType]
    return annotation


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
