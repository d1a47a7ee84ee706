"""The data pipeline: committed records as Spark DataFrames, exactly once. Importing it does not import Spark."""

from __future__ import annotations

from gateway.domain.cuts import Cut, CutChanged, OffsetsUnavailable, PartitionRange, UnknownTopics
from gateway.errors import PipelineError
from gateway.pipeline.cuts import PipelinePosition, check_cut, fix_cut
from gateway.pipeline.database import DatabaseUnavailable, PipelineDatabase
from gateway.pipeline.reading import read_as_of, read_cut, read_topic
from gateway.pipeline.session import JavaMissing, database_of, spark_session
from gateway.pipeline.values import with_json, with_text

__all__ = [
    "Cut",
    "CutChanged",
    "DatabaseUnavailable",
    "JavaMissing",
    "OffsetsUnavailable",
    "PartitionRange",
    "PipelineDatabase",
    "PipelineError",
    "PipelinePosition",
    "UnknownTopics",
    "check_cut",
    "database_of",
    "fix_cut",
    "read_as_of",
    "read_cut",
    "read_topic",
    "spark_session",
    "with_json",
    "with_text",
]
