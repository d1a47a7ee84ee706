"""A pipeline whose driver, executors or database are killed at each step and at random ends as an undisturbed one does.

It writes to tables, to kafka.state, to another topic and to Parquet in every batch: all of it, and its positions, must
be the same. By default each step is tried once; TABLEWIRE_TEST_FULL=1 kills 50 times.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import failpoints
from gateway.pipeline.session import JavaMissing, require_java
from gateway.storage.schema import migrate
from tests.faults.conftest import CrashingServer
from tests.support.gateway_process import GatewayProcess
from tests.support.pipeline_driver import MAX_ROWS, TABLES
from tests.support.waiting import wait_for

IS_FULL = bool(os.environ.get("TABLEWIRE_TEST_FULL"))
KILLS = 50
PARTITIONS = 3
RECORDS = (15 if IS_FULL else 7) * MAX_ROWS
WAIT_S = 100.0
BATCHES_PER_KILL = 5
"""A pipeline with fewer batches left is compared, and the next kill meets a new one."""
pytestmark = pytest.mark.timeout(3_600 if IS_FULL else 280)


class Killed:
    """What the tests of this file share: a database and a gateway that are theirs, a topic, and drivers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._server_directory = Path(tempfile.mkdtemp(prefix="tablewire-kills-"))
        self.server = CrashingServer(self._server_directory)
        migrate(self.server.url)
        self.gateway = GatewayProcess(self.server.url, directory=directory).start()
        self.topic = "payments"
        self._create(self.topic, partitions=PARTITIONS)
        self._produce()
        self._log = (directory / "drivers.log").open("w+")
        self._forks = self._start("serve")
        self._read_line(wanted="ready")

    def close(self) -> None:
        self._forks.stdin.close()  # type: ignore[union-attr]
        self._forks.wait(60)
        self.gateway.kill9()
        self.server.stop()
        shutil.rmtree(self._server_directory)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    # --- the topic: payments, some of them in transactions, some of those aborted -----------------

    def _create(self, topic: str, *, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.gateway.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def _produce(self) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.gateway.bootstrap, "transactional.id": "payer"})
        producer.init_transactions(30)
        for start in range(0, RECORDS, 10):
            producer.begin_transaction()
            for number in range(start, start + 10):
                account = f"account-{number % 7}"
                value = json.dumps({"account": account, "amount": number % 100 - 20})
                producer.produce(self.topic, value, account, number % PARTITIONS)
            if start % 40 == 30:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)

    # --- drivers -------------------------------------------------------------------------------------

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TABLEWIRE_")}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.pipeline_driver", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            start_new_session=True,
            env={
                **inherited,
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                "TABLEWIRE_DATABASE_URL": self.server.url,
            },
        )

    def _read_line(self, process: subprocess.Popen[str] | None = None, *, wanted: str | None = None) -> str:
        out = (process or self._forks).stdout
        assert out is not None
        # structlog's lines go to stdout as well while nobody has configured it.
        while line := out.readline():
            if line.strip() == wanted or (wanted is None and line.strip().lstrip("-").isdigit()):
                return line.strip()
        raise AssertionError(f"the driver has ended\n{self.log()[-5000:]}")

    def begin(self, name: str, failpoint: str = "none", mode: str = "UNTIL_CAUGHT_UP") -> int:
        """Begin a run in a forked driver; its process id."""
        words = failpoint, mode, self.topic, name, str(self.directory / name), self.gateway.bootstrap
        self._forks.stdin.write(f"{' '.join(words)}\n")  # type: ignore[union-attr]
        return int(self._read_line())

    def end(self) -> int:
        """Wait for the run; its exit status."""
        return int(self._read_line())

    def start_process(self, name: str, master: str) -> subprocess.Popen[str]:
        """A run in a process of its own, with its own JVM."""
        process = self._start(self.topic, name, str(self.directory / name), self.gateway.bootstrap, master)
        self._read_line(process, wanted="ready")
        return process

    # --- what pipelines leave ---------------------------------------------------------------------------

    def new_pipeline(self) -> str:
        name = f"p{uuid4().hex[:8]}"
        self._create(f"{name}.out", partitions=2)
        self.query(TABLES.format(name=name))
        return name

    def query(self, text: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def batch_id(self, name: str) -> int:
        try:
            found = self.query("SELECT batch_id FROM kafka.pipelines WHERE name = %s", name)
        except psycopg.OperationalError:
            return -1
        return found[0][0] if found else 0

    def result(self, name: str) -> dict[str, Any]:
        """All that a pipeline has written, as its readers see it."""
        paths = self.query("SELECT path FROM kafka.output_files WHERE pipeline = %s", name)
        return {
            "log": self.query(f'SELECT partition, "offset", account, amount FROM {name}_log ORDER BY 1, 2'),
            "latest": self.query(f"SELECT * FROM {name}_latest ORDER BY 1"),
            "sums": self.query(f"SELECT * FROM {name}_sums ORDER BY 1"),
            "state": self.query("SELECT key, value FROM kafka.state WHERE namespace = %s ORDER BY 1", name),
            "topic": self.query(
                "SELECT key, value FROM kafka.committed_messages WHERE topic = %s ORDER BY 1, 2", f"{name}.out"
            ),
            "files": read_parquet([path.removeprefix("file:") for (path,) in paths]),
            "positions": self.query(
                "SELECT partition, next_offset FROM kafka.pipeline_positions WHERE pipeline = %s ORDER BY 1", name
            ),
            "batch": self.batch_id(name),
        }

    def require_tidy(self, name: str) -> None:
        """Nothing of killed runs is left once a run got through."""
        assert self.query("SELECT relname FROM pg_class WHERE relnamespace = 'kafka_staging'::regnamespace") == []
        assert self.query("SELECT transactional_id FROM kafka.open_transactions") == []
        counted = self.query("SELECT count(DISTINCT batch_id) FROM kafka.output_files WHERE pipeline = %s", name)
        assert counted == [(len(list((self.directory / name).iterdir())),)]


def read_parquet(paths: list[str]) -> list[tuple[Any, ...]]:
    from pyarrow import parquet

    rows = [tuple(row.values()) for path in paths for row in parquet.ParquetFile(path).read().to_pylist()]
    return sorted(rows)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    harness = Killed(tmp_path_factory.mktemp("kills"))
    try:
        yield harness
    finally:
        harness.close()
        shutil.rmtree(harness.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(killed: Killed) -> dict[str, Any]:
    """What a pipeline that nobody kills leaves: every committed payment once."""
    name = killed.new_pipeline()
    killed.begin(name)
    assert killed.end() == 0, killed.log()[-5000:]
    result = killed.result(name)
    ((records,),) = killed.query("SELECT count(*) FROM kafka.committed_messages WHERE topic = %s", killed.topic)
    assert 0 < records < RECORDS
    assert len(result["log"]) == len(result["files"]) == len(result["topic"]) == records
    assert result["batch"] >= records // MAX_ROWS
    killed.require_tidy(name)
    return result


def require_same(killed: Killed, name: str, undisturbed: dict[str, Any]) -> None:
    killed.begin(name)
    assert killed.end() == 0, killed.log()[-5000:]
    found = killed.result(name)
    assert {part: found[part] == undisturbed[part] for part in undisturbed} == dict.fromkeys(undisturbed, True)
    killed.require_tidy(name)


def test_a_driver_that_dies_at_any_step_changes_nothing(killed: Killed, undisturbed: dict[str, Any]) -> None:
    name = killed.new_pipeline()
    outputs = 6
    for number, step in enumerate(failpoints.PIPELINE_STEPS):
        # Of the steps that come once per output, another one each time the file is run through; all but the first
        # kill come in the second batch of their run, so that the pipeline gets on.
        repeats = outputs if step in (failpoints.PIPELINE_STAGED, failpoints.PIPELINE_MERGED) else 1
        if step == failpoints.PIPELINE_PREPARED:
            point = step
        else:
            point = f"{step}:{repeats * (number % 2) + random.randint(1, repeats)}"
        before = killed.batch_id(name)
        killed.begin(name, point)
        assert killed.end() == -signal.SIGKILL, f"{point} was not reached\n{killed.log()[-5000:]}"
        gained = killed.batch_id(name) - before
        assert gained == (step != failpoints.PIPELINE_PREPARED and number % 2) + (step == failpoints.PIPELINE_COMMITTED)
    require_same(killed, name, undisturbed)


def kill_at_random(killed: Killed, name: str, rng: random.Random) -> str:
    """The driver, at any moment of a batch or two."""
    pid = killed.begin(name, mode="CONTINUOUSLY")
    time.sleep(rng.uniform(0, 3))
    os.kill(pid, signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    return "driver at random"


def kill_at_a_step(killed: Killed, name: str, rng: random.Random) -> str:
    step = rng.choice(failpoints.PIPELINE_STEPS)
    point = step if step == failpoints.PIPELINE_PREPARED else f"{step}:{rng.randint(1, 3)}"
    killed.begin(name, point)
    assert killed.end() == -signal.SIGKILL, killed.log()[-5000:]
    return step


def kill_the_database(killed: Killed, name: str, rng: random.Random) -> str:
    """The runner ends with a sentence, and leaves nothing by halves."""
    wanted = killed.batch_id(name) + 1
    killed.begin(name)
    wait_for(lambda: killed.batch_id(name) >= wanted, wanted=True, timeout_s=WAIT_S)
    time.sleep(rng.uniform(0, 1.5))
    killed.server.kill9()
    assert killed.end() == 1
    killed.server.start_again()
    said = killed.log().strip().splitlines()[-1]
    assert "atabase" in said or "gateway" in said or "connection" in said.lower(), said
    return "database"


def kill_the_database_under_a_continuous_run(killed: Killed, name: str, rng: random.Random) -> str:
    """The runner waits, and goes on by itself when the database is back."""
    pid = killed.begin(name, mode="CONTINUOUSLY")
    wanted = killed.batch_id(name) + 1
    wait_for(lambda: killed.batch_id(name) >= wanted, wanted=True, timeout_s=WAIT_S)
    time.sleep(rng.uniform(0, 1.5))
    killed.server.kill9()
    killed.server.start_again()
    wanted += 1
    wait_for(lambda: killed.batch_id(name) >= wanted, wanted=True, timeout_s=WAIT_S)
    os.kill(pid, signal.SIGTERM)
    assert killed.end() == 0
    return "database under a continuous run"


def kill_everything(killed: Killed, name: str, rng: random.Random) -> str:
    """Python, the JVM and all, of a driver of its own."""
    process = killed.start_process(name, "local[1]")
    time.sleep(rng.uniform(0, 8))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return "driver and JVM"


def kill_an_executor(killed: Killed, name: str, rng: random.Random) -> str:
    """Spark runs the lost tasks again elsewhere; the driver is killed later, with everything it has."""
    process = killed.start_process(name, "local-cluster[2,1,640]")
    try:
        wanted = killed.batch_id(name) + 1
        wait_for(lambda: killed.batch_id(name) >= wanted, wanted=True, timeout_s=WAIT_S)
        time.sleep(rng.uniform(0, 1))
        executors = processes_of(process.pid, "CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        os.kill(rng.choice(executors), signal.SIGKILL)
        wanted = killed.batch_id(name) + 1
        wait_for(lambda: killed.batch_id(name) >= wanted, wanted=True, timeout_s=WAIT_S)
        assert process.poll() is None or process.returncode == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in processes_of(process.pid, "CoarseGrainedExecutorBackend"):
            os.kill(pid, signal.SIGKILL)
        process.communicate()
    return "executor"


def processes_of(session: int, word: str) -> list[int]:
    """The processes of a session, which is ours, whose command has a word in it."""
    command = ["ps", "-ww", "-o", "pid=", "-o", "args=", "-s", str(session)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if word in line]


ONLY_IN_FULL = pytest.mark.skipif(not IS_FULL, reason="takes a minute or more: TABLEWIRE_TEST_FULL=1 does it")


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(kill_at_random, marks=ONLY_IN_FULL),
        kill_the_database,
        pytest.param(kill_the_database_under_a_continuous_run, marks=ONLY_IN_FULL),
        pytest.param(kill_an_executor, marks=ONLY_IN_FULL),
    ],
)
def test_whatever_is_killed_changes_nothing(
    killed: Killed, undisturbed: dict[str, Any], kill: Callable[[Killed, str, random.Random], str]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    name = killed.new_pipeline()
    kill(killed, name, random.Random(seed))
    require_same(killed, name, undisturbed)


@pytest.mark.skipif(not IS_FULL, reason="50 kills take many minutes: TABLEWIRE_TEST_FULL=1 does them")
def test_fifty_kills_change_nothing(killed: Killed, undisturbed: dict[str, Any]) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    name = killed.new_pipeline()
    kills = [kill_an_executor] * 3 + [kill_everything] * 5 + [kill_the_database] * 4
    kills += [kill_the_database_under_a_continuous_run] * 4 + [kill_at_random] * 12
    kills += [kill_at_a_step] * (KILLS - len(kills))
    rng.shuffle(kills)
    done: Counter[str] = Counter()
    for number, kill in enumerate(kills, start=1):
        done[kill(killed, name, rng)] += 1
        at = killed.batch_id(name)
        print(
            f"seed {seed}, kill {number}: {kill.__name__}, {name} at batch {at} of {undisturbed['batch']}", flush=True
        )
        assert at <= undisturbed["batch"]
        if at > undisturbed["batch"] - BATCHES_PER_KILL or number == len(kills):
            require_same(killed, name, undisturbed)
            name = killed.new_pipeline()
    print(f"{done.total()} kills: {dict(done)}")
