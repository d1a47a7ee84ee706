"""The primary dies and its standby takes over, with all that was acknowledged or without it; or the standby is lost and
the primary may not acknowledge (F16, F17, F25)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.storage.embedded import EmbeddedPostgres
from gateway.storage.embedded_home import find_programs, server_user
from gateway.storage.schema import migrate
from tests.faults.conftest import CrashingServer, run_sql
from tests.faults.test_database_faults import RETRIABLE, both_kinds_of_load
from tests.support.attack import fetch_on
from tests.support.auditor import number_of
from tests.support.gateway_process import HOST, GatewayProcess
from tests.support.handmade import HandmadeProducer, Outcome, make_batch, stored_rows
from tests.support.raw_connection import RawConnection
from tests.support.waiting import wait_for

StartGateway = Callable[..., GatewayProcess]
NewTopic = Callable[..., str]

OFFSET_OUT_OF_RANGE = 1
WAITING_COMMITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class Replicated:
    """A primary that acknowledges what its standby has, and that standby."""

    def __init__(self, directory: Path, cleanup: ExitStack) -> None:
        # The standby stops last: the primary's shutdown waits for it.
        self.standby = EmbeddedPostgres(directory / "standby")
        cleanup.callback(self.standby.stop)
        self.primary = CrashingServer(directory / "primary")
        cleanup.callback(self.primary.stop)
        migrate(self.primary.url)
        _copy_cluster(self.primary, directory)
        self.standby.start()
        run_sql(self.primary.superuser_url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        run_sql(self.primary.superuser_url, "SELECT pg_reload_conf()")
        self.wait_until_synchronous()

    @property
    def url(self) -> str:
        """Of whichever is the primary."""
        primary, _, database = self.primary.url.rpartition("/")
        return f"{primary},{HOST}:{self.standby.port}/{database}?target_session_attrs=read-write"

    def wait_until_synchronous(self) -> None:
        state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_for(lambda: number_of(self.primary.superuser_url, state), 1, timeout_s=30)

    def part(self) -> None:
        """From now on the primary acknowledges what the standby never gets."""
        run_sql(self.primary.superuser_url, "ALTER SYSTEM RESET synchronous_standby_names")
        run_sql(self.standby.superuser_url, "ALTER SYSTEM SET primary_conninfo = ''")
        for server in (self.primary, self.standby):
            run_sql(server.superuser_url, "SELECT pg_reload_conf()")
        following = "SELECT count(*) FROM pg_stat_replication"
        wait_for(lambda: number_of(self.primary.superuser_url, following), 0, timeout_s=30)

    def fail_over(self) -> None:
        self.primary.kill9()
        run_sql(self.standby.superuser_url, "SELECT pg_promote(true, 60)")


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    directory = Path(tempfile.mkdtemp(prefix="tablewire-failover-"))
    directory.chmod(0o711)  # the server runs as another user than root
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, directory)
        yield Replicated(directory, cleanup)


def test_nothing_acknowledged_is_lost_when_the_standby_takes_over(
    replicated: Replicated, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """Retries of what the old primary had committed and not said find it on the new one."""
    gateway = start_gateway(replicated.url)
    with both_kinds_of_load(gateway, new_topic, replicated.url):  # more is acknowledged afterwards
        replicated.fail_over()


def test_commit_that_no_standby_has_is_not_acknowledged_and_found_by_a_retry(
    replicated: Replicated, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    gateway = start_gateway(replicated.url, database_timeout_ms=1500)
    topic = new_topic(gateway, partitions=1)
    with HandmadeProducer(gateway.bootstrap) as connection:
        _, producer_id, _ = connection.init_producer_id()
        batches = [make_batch([b"%d" % n], producer_id=producer_id, epoch=0, sequence=n) for n in range(3)]
        wait_for(lambda: connection.produce(topic, batches[0]), Outcome(0, 0))
        replicated.standby.stop()
        # Whatever comes back meanwhile: the commit that waits, and those that wait for its locks.
        assert {connection.produce(topic, batches[1]).code for _ in range(3)} <= RETRIABLE
        assert number_of(replicated.primary.superuser_url, WAITING_COMMITS) >= 1
        assert [row.value for row in stored_rows(replicated.primary.url, topic)] == [b"0"]
        replicated.standby.start()
        replicated.wait_until_synchronous()
        for n, batch in enumerate(batches):
            wait_for(lambda batch=batch: connection.produce(topic, batch), Outcome(0, n), timeout_s=30)
    assert [row.value for row in stored_rows(replicated.url, topic)] == [b"0", b"1", b"2"]


def test_records_that_the_new_primary_never_had_are_not_served_any_more(
    replicated: Replicated, start_gateway: StartGateway, new_topic: NewTopic
) -> None:
    """They were acknowledged and are lost, which is the operator's choice of an asynchronous standby. Neither are they
    read from memory where others have their offsets now, nor does a consumer beyond the end wait for ever."""
    gateway = start_gateway(replicated.url)
    topic = new_topic(gateway, partitions=1)
    with HandmadeProducer(gateway.bootstrap) as connection, RawConnection(gateway.port) as reader:
        assert [connection.produce(topic, make_batch([b"kept-%d" % n])) for n in range(2)] == [
            Outcome(0, 0),
            Outcome(0, 1),
        ]
        replicated.part()
        assert [connection.produce(topic, make_batch([b"lost-%d" % n])).base_offset for n in (2, 3)] == [2, 3]
        assert b"lost-3" in _fetch(reader, topic, 2)[1]
        replicated.fail_over()
        wait_for(lambda: _fetch(reader, topic, 4)[0], OFFSET_OUT_OF_RANGE, timeout_s=30)
        assert _fetch(reader, topic, 2) == (0, b"")
        wait_for(lambda: connection.produce(topic, make_batch([b"new-2"])), Outcome(0, 2), timeout_s=30)
        code, records = _fetch(reader, topic, 1)
        assert (code, b"kept-1" in records, b"new-2" in records, b"lost" in records) == (0, True, True, False)
    assert "another history" in gateway.log_text()


def _fetch(reader: RawConnection, topic: str, offset: int) -> tuple[int, bytes]:
    """The partition's error and records."""
    (answer,) = fetch_on(reader, [(topic, 0, offset)])
    return int(answer["error_code"]), bytes(answer["records"] or b"")


def _copy_cluster(primary: CrashingServer, directory: Path) -> None:
    """Where the standby looks for its own; it follows the primary, with the same roles and passwords."""
    home = directory / "standby"
    home.mkdir(mode=0o711)
    for name in ("password", "superuser-password"):
        shutil.copy(directory / "primary" / name, home / name)
    user = server_user(directory / "primary" / "postgres")
    user.take(home)
    command = [str(find_programs(user) / "pg_basebackup"), "--pgdata", str(home / "postgres")]
    command += ["--write-recovery-conf", "--checkpoint", "fast", "--dbname", primary.superuser_url]
    subprocess.run(
        command, cwd="/", env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, check=True, **user.popen_arguments
    )
