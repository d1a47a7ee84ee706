"""Named points where a test lets the process die as if by kill -9. Without the variable they cost one comparison.

TABLEWIRE_TEST_FAILPOINT=<name> dies the first time the point is reached, <name>:<n> the n-th time.
"""

from __future__ import annotations

import itertools
import os
import signal

__all__ = [
    "END_BEFORE",
    "END_COMMITTED",
    "END_WRITTEN",
    "PIPELINE_COMMITTED",
    "PIPELINE_CUT",
    "PIPELINE_HELD",
    "PIPELINE_MERGED",
    "PIPELINE_PREPARED",
    "PIPELINE_PRODUCED",
    "PIPELINE_STAGED",
    "PIPELINE_STAGED_ALL",
    "PIPELINE_STEPS",
    "PIPELINE_WRITTEN",
    "PRODUCE_COMMITTED",
    "arm",
    "reach",
]

PRODUCE_COMMITTED = "produce.committed"
"""After COMMIT of a group of batches, before anybody is told."""

END_BEFORE = "end.before"
"""EndTxn has arrived, nothing is done."""

END_WRITTEN = "end.written"
"""Everything of EndTxn is written, before COMMIT."""

END_COMMITTED = "end.committed"
"""After COMMIT of EndTxn, before anybody is told."""

PIPELINE_PREPARED = "pipeline.prepared"
"""A runner has checked its targets and cleared left-overs away."""

PIPELINE_CUT = "pipeline.cut"
"""The batch's cut is fixed, nothing is read."""

PIPELINE_STAGED = "pipeline.staged"
"""The executors have written one output of the batch; others may follow."""

PIPELINE_STAGED_ALL = "pipeline.staged-all"
"""The executors have written all outputs."""

PIPELINE_HELD = "pipeline.held"
"""The batch's transaction has begun and holds the pipeline."""

PIPELINE_PRODUCED = "pipeline.produced"
"""Records for another topic are written in a Kafka transaction that is still open."""

PIPELINE_MERGED = "pipeline.merged"
"""One sink has written in the batch's transaction; others and the position may follow."""

PIPELINE_WRITTEN = "pipeline.written"
"""Everything is written, the position too, before COMMIT."""

PIPELINE_COMMITTED = "pipeline.committed"
"""After COMMIT of the batch, before anything is tidied up or said."""

PIPELINE_STEPS = (
    PIPELINE_PREPARED,
    PIPELINE_CUT,
    PIPELINE_STAGED,
    PIPELINE_STAGED_ALL,
    PIPELINE_HELD,
    PIPELINE_PRODUCED,
    PIPELINE_MERGED,
    PIPELINE_WRITTEN,
    PIPELINE_COMMITTED,
)

_wanted, _, _count = os.environ.get("TABLEWIRE_TEST_FAILPOINT", "").partition(":")
_times = itertools.count(1)


def arm(point: str) -> None:
    """Set the point where this process dies, as the variable does, once it runs; for forks of a test's process."""
    global _wanted, _count, _times  # noqa: PLW0603 - there is one process to end
    _wanted, _, _count = point.partition(":")
    _times = itertools.count(1)


def reach(name: str) -> None:
    if name == _wanted and next(_times) == int(_count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
