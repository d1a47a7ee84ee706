"""`tablewire serve --workers`: what happens when a worker dies, when their parent dies, and when one cannot start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gateway.storage.embedded_home import find_home
from tests.faults.conftest import children_of
from tests.support.auditor import audit
from tests.support.gateway_process import COMMAND, HOST, REPOSITORY, GatewayProcess, answers_api_versions, free_port
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient
from tests.support.workload import Workload

StartGateway = Callable[..., GatewayProcess]
NewTopic = Callable[..., str]

PARTITIONS = 8


def _worker_pids(parent: int) -> dict[int, int]:
    """By the number each has on its command line."""
    found = {}
    for pid in children_of(parent):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"gateway.cli.worker" in words:
                found[int(words[words.index(b"gateway.cli.worker") + 1])] = pid
    return found


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _free_ports() -> int:
    """A port that is free together with the next one."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port + 1))
                return port


@contextmanager
def _taken(port: int) -> Iterator[None]:
    """Somebody else's port: whoever connects is sent away."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, port))
        other.listen()

        def send_away() -> None:
            with suppress(OSError):
                while True:
                    other.accept()[0].close()

        thread = threading.Thread(target=send_away, daemon=True)
        thread.start()
        yield
        other.shutdown(socket.SHUT_RDWR)
        thread.join()


def _start(start_gateway: StartGateway, database_url: str) -> GatewayProcess:
    gateway = start_gateway(database_url, port=_free_ports(), http_listen=f"{HOST}:{_free_ports()}", workers=2)
    wait_for(lambda: gateway.log_text().count("Tablewire serves Kafka clients at"), wanted=1, timeout_s=60)
    return gateway


def _leaders(port: int, topic: str) -> set[int]:
    """As the worker on this port tells its clients. Each learns of the others with its own heartbeats, and a client
    that was told of one only has nobody to ask when that one dies."""
    with WireClient(f"{HOST}:{port}") as wire:
        answer = wire.call("Metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=False)
    return {partition["leader_id"] for partition in answer["topics"][0]["partitions"]}


@pytest.mark.timeout(300)
def test_partitions_of_a_killed_worker_move_and_it_comes_back(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = _start(start_gateway, database_url)
    second_port = gateway.port + 1
    assert f"clients at {gateway.bootstrap}, {HOST}:{second_port};" in gateway.log_text()
    topic = new_topic(gateway, partitions=PARTITIONS)
    for port in (gateway.port, second_port):
        wait_for(lambda port=port: _leaders(port, topic), wanted={1, 2}, timeout_s=60)
    bootstraps = [f"{gateway.bootstrap},{HOST}:{second_port}", f"{HOST}:{second_port},{gateway.bootstrap}"]
    with Workload(bootstraps, topic, partitions=PARTITIONS) as producers:
        producers.wait_for_more()
        # The parent sees it only once somebody else has the port, so that there is no race for it.
        os.kill(gateway.pid, signal.SIGSTOP)
        os.kill(_worker_pids(gateway.pid)[2], signal.SIGKILL)
        wait_for(lambda: _is_listening(second_port), wanted=False)
        with _taken(second_port):
            os.kill(gateway.pid, signal.SIGCONT)
            wait_for(lambda: _leaders(gateway.port, topic), wanted={1}, timeout_s=60)
            producers.wait_for_more(timeout_s=120)
            wait_for(lambda: "a worker could not be started" in gateway.log_text(), wanted=True, timeout_s=60)
        wait_for(lambda: answers_api_versions(HOST, second_port), wanted=True, timeout_s=60)
        wait_for(lambda: _leaders(gateway.port, topic), wanted={1, 2}, timeout_s=60)
        producers.wait_for_more()
        audit(database_url, producers.stop())
    wait_for(lambda: "a worker serves again" in gateway.log_text(), wanted=True)
    log = gateway.log_text()
    assert "ended_with=SIGKILL" in log
    assert f"Cannot listen on {HOST}:{second_port}" in log
    gateway.stop_cleanly()
    assert not _is_listening(gateway.port)
    assert not _is_listening(second_port)
    assert log.count("Tablewire serves Kafka clients at") == 1


def test_workers_end_with_their_parent_and_leave_nothing_in_the_way_of_the_next(
    database_url: str, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = _start(start_gateway, database_url)
    topic = new_topic(gateway, partitions=PARTITIONS)
    pids = _worker_pids(gateway.pid).values()
    assert len(pids) == 2
    with Workload([gateway.bootstrap], topic, partitions=PARTITIONS) as producers:
        producers.wait_for_more()
        gateway.kill9()
        wait_for(lambda: [pid for pid in pids if Path(f"/proc/{pid}").exists()], wanted=[])
        assert [port for port in (gateway.port, gateway.port + 1) if _is_listening(port)] == []
        gateway.restart()
        wait_for(lambda: _leaders(gateway.port, topic), wanted={1, 2}, timeout_s=60)
        producers.wait_for_more()
        audit(database_url, producers.stop())


def test_a_busy_port_of_one_worker_is_one_sentence_and_the_end_of_all(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the embedded PostgreSQL, which the parent has started by then and stops again."""
    request.addfinalizer(lambda: shutil.rmtree(find_home(tmp_path / "data")))  # as root it is elsewhere
    port = _free_ports()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TABLEWIRE_")}
    with _taken(port + 1):
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "serve", "--workers", "2", "--listen", f"{HOST}:{port}"],
            cwd=tmp_path,
            env={
                **inherited,
                "PYTHONPATH": str(REPOSITORY),
                "TABLEWIRE_HTTP_LISTEN": f"{HOST}:0",
                "TABLEWIRE_DATA_DIR": str(tmp_path / "data"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "Tablewire serves" not in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("tablewire: ")]
    assert len(said) == 1
    assert said[0].startswith(f"tablewire: Cannot listen on {HOST}:{port + 1}: ")
    assert "traceback" not in done.stderr.lower()
    assert not _is_listening(port)
    assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists()
