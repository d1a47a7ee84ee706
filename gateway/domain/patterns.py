"""Patterns that clients send. They are RE2's, as Kafka's are (KIP-848, KIP-1152): they match in linear time and bounded
memory, so no client can keep a gateway busy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from gateway.errors import InvalidRegularExpression

__all__ = ["compile_pattern"]

PATTERN_MAX_BYTES = 1 << 20
"""Memory that RE2 may use for one pattern; what needs more is refused."""


@lru_cache(maxsize=1000)
def compile_pattern(pattern: str, *, field: str) -> Any:
    """The pattern, ready to match whole names; refused if RE2 cannot read it, or needs too much memory for it.

    `field` is what the client calls it.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MAX_BYTES
    try:
        if "\0" in pattern:
            raise InvalidRegularExpression("the pattern holds a NUL, which no name can")
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unreadable"
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"{field} `{pattern}` is not a valid pattern: {text}") from None
