"""Named points where a test lets the process die as if by kill -9. Without the variable they cost one comparison.

TABLEWIRE_TEST_FAILPOINT=<name> dies the first time the point is reached, <name>:<n> the n-th time.
"""

from __future__ import annotations

import itertools
import os
import signal

__all__ = ["END_BEFORE", "END_COMMITTED", "END_WRITTEN", "PRODUCE_COMMITTED", "reach"]

PRODUCE_COMMITTED = "produce.committed"
"""After COMMIT of a group of batches, before anybody is told."""

END_BEFORE = "end.before"
"""EndTxn has arrived, nothing is done."""

END_WRITTEN = "end.written"
"""Everything of EndTxn is written, before COMMIT."""

END_COMMITTED = "end.committed"
"""After COMMIT of EndTxn, before anybody is told."""

_wanted, _, _count = os.environ.get("TABLEWIRE_TEST_FAILPOINT", "").partition(":")
_times = itertools.count(1)


def reach(name: str) -> None:
    if name == _wanted and next(_times) == int(_count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
