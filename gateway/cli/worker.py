"""One of several workers, started by `tablewire serve --workers N` and by nobody else.

Its order is the first line of standard input; the end of standard input is the end of its parent, and its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import structlog
import uvloop

from gateway.config import Settings
from gateway.errors import StartupError

__all__ = ["main"]

CANNOT_START = 1
STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2


def main() -> None:
    with os.fdopen(os.dup(STANDARD_INPUT), "rb") as source:
        order = json.loads(source.readline())
    # Reports have the pipe for themselves; whatever else is printed goes where the log goes.
    reports = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    threading.Thread(target=_end_with_parent, args=(order["number"],), daemon=True).start()
    # Not read again from its sources: all workers go by what their parent has checked.
    values: dict[str, Any] = order["settings"]
    settings = Settings.model_construct(**{**values, "data_dir": Path(values["data_dir"])})
    is_serving = False

    def announce(host: str, port: int) -> None:
        nonlocal is_serving
        is_serving = True
        _report(reports, serves=[host, port])

    from gateway.server.server import run_gateway

    structlog.contextvars.bind_contextvars(worker=order["number"])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_gateway(settings, order["database_url"], announce=announce))
    except StartupError as refused:
        if is_serving:
            structlog.get_logger().error("this worker cannot go on", reason=str(refused))
        else:
            _report(reports, refused=str(refused))
        sys.exit(CANNOT_START)


def _end_with_parent(number: int) -> None:
    """At once, as a crash: whoever starts the service again finds its ports and node ids free."""
    os.read(STANDARD_INPUT, 1)
    os.write(STANDARD_ERROR, f"tablewire: Worker {number} ends because its parent has gone.\n".encode())
    os._exit(CANNOT_START)


def _report(descriptor: int, **what: object) -> None:
    os.write(descriptor, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
