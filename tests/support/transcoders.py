"""The transcoders to test: Python's always, the compiled one where it was built."""

from __future__ import annotations

import pytest

from gateway.protocol import plain_transcoder, transcoder

WAS_BUILT = transcoder.implementation.IS_COMPILED

compiled_only = pytest.mark.skipif(
    not WAS_BUILT, reason="gateway/protocol/_transcoder was not built: a C compiler or Python's headers are missing"
)

TRANSCODERS = [
    pytest.param(plain_transcoder, id="plain"),
    pytest.param(transcoder.implementation, id="compiled", marks=compiled_only),
]
