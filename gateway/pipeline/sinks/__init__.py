"""Sinks: where a pipeline's rows go. One's own is a class with the methods of gateway.pipeline.job.Sink."""

from __future__ import annotations

from gateway.pipeline.sinks.files import WriteParquet, read_files
from gateway.pipeline.sinks.state import PutState, read_state
from gateway.pipeline.sinks.tables import AddToTable, AppendToTable, UpsertTable, output_id
from gateway.pipeline.sinks.topics import WriteTopic

__all__ = [
    "AddToTable",
    "AppendToTable",
    "PutState",
    "UpsertTable",
    "WriteParquet",
    "WriteTopic",
    "output_id",
    "read_files",
    "read_state",
]
