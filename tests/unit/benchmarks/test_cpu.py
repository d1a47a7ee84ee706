"""CPU time of process trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks.cpu import CpuHistory, tree_cpu_seconds

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_what_ended_and_what_runs_both_count() -> None:
    """A shell whose first child has burnt and ended, and whose second has burnt and waits."""
    wait = f"{BURN}print('done', flush=True)\ninput()"
    script = f'"{sys.executable}" -c "$1"; "{sys.executable}" -c "$2"; true'
    shell = subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", BURN, wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with shell:
        assert shell.stdout is not None
        assert shell.stdin is not None
        assert shell.stdout.readline() == "done\n"
        used = tree_cpu_seconds(shell.pid)
        shell.stdin.close()
    assert 0.55 < used < 5


def test_what_a_process_used_is_known_of_any_stretch_of_time() -> None:
    """One that burns, tells, and then waits; also when it has ended."""
    wait = f"{BURN}print('done', flush=True)\ninput()"
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as burner:
        assert burner.stdout is not None
        assert burner.stdin is not None
        with CpuHistory(burner.pid) as history:
            assert burner.stdout.readline() == "done\n"
            burnt = time.monotonic()
            burner.stdin.close()
            while burner.poll() is None:
                time.sleep(0.01)
    assert 0.25 < history.seconds(since=started, until=burnt) < 5
    assert history.seconds(since=burnt, until=time.monotonic()) < 0.25


def test_other_processes_do_not_count() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeper:
        before = tree_cpu_seconds(sleeper.pid)
        subprocess.run([sys.executable, "-c", BURN], check=True)
        assert tree_cpu_seconds(sleeper.pid) - before < 0.1
        assert tree_cpu_seconds(os.getpid()) >= 0.3
        sleeper.kill()


def test_a_process_that_ended_is_said_to_have() -> None:
    done = subprocess.Popen(["/bin/true"])
    done.wait()
    with pytest.raises(ProcessLookupError, match="has ended"):
        tree_cpu_seconds(done.pid)
