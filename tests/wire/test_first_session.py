"""What a newcomer does: start everything, paste the lines that are printed, stop with Ctrl-C, start again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.storage.embedded_home import find_home
from tests.support.gateway_process import COMMAND, HOST, REPOSITORY, answers_api_versions, free_port
from tests.support.handmade import HandmadeProducer, make_batch
from tests.support.waiting import wait_for


@contextmanager
def serving(directory: Path, port: int, http_port: int) -> Iterator[Path]:
    """`tablewire serve` with its own PostgreSQL until Ctrl-C; gives the file with what it prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TABLEWIRE_")}
    printed = directory / "printed"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", "--listen", f"{HOST}:{port}"],
            cwd=directory,
            env={**inherited, "PYTHONPATH": str(REPOSITORY), "TABLEWIRE_HTTP_LISTEN": f"{HOST}:{http_port}"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(
            lambda: process.poll() is not None or answers_api_versions(HOST, port),
            wanted=True,
            timeout_s=120,
            explain=printed.read_text,
        )
        assert process.poll() is None, printed.read_text()
        yield printed
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, printed.read_text()
    finally:
        if process.poll() is None:
            process.kill()
    assert "Traceback" not in printed.read_text()
    for stopped in (port, http_port, int((directory / ".tablewire" / "port").read_text())):
        with socket.socket() as probe:
            assert probe.connect_ex((HOST, stopped)) != 0, "gateway and PostgreSQL have stopped"


def lines_to_paste(printed: Path) -> dict[str, str]:
    """By the comment above each."""
    lines = printed.read_text().splitlines()
    return {line[2:]: lines[number + 1] for number, line in enumerate(lines) if line.startswith("# ")}


def paste(line: str) -> str:
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def test_everything_starts_with_one_command_and_stops_with_ctrl_c(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: shutil.rmtree(find_home(tmp_path / ".tablewire")))  # as root it is elsewhere
    port, http_port = free_port(), free_port()
    with serving(tmp_path, port, http_port) as printed:
        wait_for(lambda: len(lines_to_paste(printed)), 4)
        assert f"Tablewire serves Kafka clients at {HOST}:{port}; Ctrl-C stops it." in printed.read_text()
        produce, consume, look, spark = lines_to_paste(printed).values()
        if shutil.which("kcat"):
            paste(produce)
            assert paste(consume) == "hello\n"
        else:
            with HandmadeProducer(f"{HOST}:{port}") as connection:
                connection.create_topic("demo", partitions=1)
                assert connection.produce("demo", make_batch([b"hello"])).code == 0
        assert "hello" in paste(look)
        assert spark.startswith("TABLEWIRE_DATA_DIR=")
        password = (tmp_path / ".tablewire" / "password").read_text().strip()
        assert password
        assert password not in printed.read_text()
    with serving(tmp_path, port, http_port) as printed:
        wait_for(lambda: len(lines_to_paste(printed)), 4)
        assert "hello" in paste(list(lines_to_paste(printed).values())[2]), "started again, all data is there"
