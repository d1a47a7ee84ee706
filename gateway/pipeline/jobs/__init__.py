"""Jobs that come with Tablewire, by name, and jobs of one's own by `module:name`.

A job is a function of topics and options that makes a Job. Its docstring's first line is what `tablewire pipeline list`
says of it, and its keyword arguments are the options.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.errors import PipelineError
from gateway.pipeline.job import Job

__all__ = ["JOBS", "describe_jobs", "make_job"]

JOBS: Mapping[str, str] = {
    "hourly-counts": "gateway.pipeline.jobs.hourly_counts:make_job",
    "latest-values": "gateway.pipeline.jobs.latest_values:make_job",
    "running-balances": "gateway.pipeline.jobs.running_balances:make_job",
    "enrich": "gateway.pipeline.jobs.enrich:make_job",
    "copy-to-parquet": "gateway.pipeline.jobs.copy_to_parquet:make_job",
    "copy-to-topic": "gateway.pipeline.jobs.copy_to_topic:make_job",
}
_REQUIRED = object()


def make_job(name: str, topics: Sequence[str], options: Mapping[str, str]) -> Job:
    """The job called `name`: one of ours, or `module:attribute` that is a Job or a function that makes one."""
    found = _find(name)
    if isinstance(found, Job):
        if topics or options:
            raise PipelineError(f"{name} is a job already: it takes no topics and no options.")
        return found
    known = _options(found)
    if unknown := [option for option in options if option not in known]:
        raise PipelineError(f"Job {name} has no option {unknown[0]}: it has {', '.join(known) or 'none'}.")
    if missing := [option for option, default in known.items() if default is _REQUIRED and option not in options]:
        raise PipelineError(f"Job {name} needs the option {missing[0]}: --set {missing[0]}=…")
    if not topics and name in JOBS:
        raise PipelineError(f"Job {name} needs a topic: --topic NAME.")
    try:
        made = found(list(topics), **options)
    except ValueError as unfit:
        raise PipelineError(f"Job {name} cannot use its options: {unfit}.") from unfit
    if not isinstance(made, Job):
        raise PipelineError(f"{name} returned {type(made).__name__}: it must be a gateway.pipeline.job.Job.")
    return made


def describe_jobs() -> list[dict[str, Any]]:
    """Name, what it does, and options with their defaults (null: none) of the jobs that come along."""
    return [
        {
            "job": name,
            "does": (inspect.getdoc(found) or "").splitlines()[0],
            "options": {key: None if value is _REQUIRED else value for key, value in _options(found).items()},
        }
        for name, found in ((name, _find(name)) for name in JOBS)
    ]


def _find(name: str) -> Any:
    module_name, colon, attribute = JOBS.get(name, name).partition(":")
    if not colon:
        raise PipelineError(f"There is no job {name}: take one of {', '.join(JOBS)}, or module:function of your own.")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as missing:
        raise PipelineError(f"Job {name} cannot be loaded: {missing}. Is its directory in PYTHONPATH?") from missing
    if not callable(found) and not isinstance(found, Job):
        raise PipelineError(f"{name} is {type(found).__name__}: it must be a Job, or a function that makes one.")
    return found


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {
        one.name: _REQUIRED if one.default is inspect.Parameter.empty else one.default
        for one in parameters
        if one.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    }
