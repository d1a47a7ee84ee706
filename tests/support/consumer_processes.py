"""Members of groups as processes of their own: they can be started, asked what they own, closed, and killed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from tests.support import java

JAVA_SOURCE = Path(__file__).with_name("ConsumerProcess.java")
PYTHON_SOURCE = Path(__file__).with_name("consumer_process.py")

Kind = Literal["java", "confluent-kafka"]


class ConsumerProcess:
    """A consumer of `kind`; what it received and owns is known as of its last word."""

    def __init__(
        self,
        kind: Kind,
        bootstrap: str,
        group_id: str,
        *,
        topics: list[str] | None = None,
        pattern: str | None = None,
        is_held: bool = False,
        **settings: str,
    ) -> None:
        """`is_held`: the process starts, which takes a JVM its time, and joins when it is told to `begin`."""
        self.kind = kind
        self.values: Counter[str] = Counter()
        self.assigned: frozenset[tuple[str, int]] = frozenset()
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            _command(kind), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        all_settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "300",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._task = {"settings": all_settings, "topics": topics, "pattern": pattern}
        if not is_held:
            self.begin()
        self._stderr: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def begin(self) -> None:
        """Join the group."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._task) + "\n")
        self._process.stdin.flush()

    @property
    def partitions(self) -> set[int]:
        return {partition for _, partition in self.assigned}

    @property
    def topics(self) -> set[str]:
        return {topic for topic, _ in self.assigned}

    def log_text(self) -> str:
        return "".join(self._stderr)

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait()
        self.assigned = frozenset()

    def close(self) -> None:
        """Leave the group and end."""
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill9()
                raise AssertionError(f"the member did not end:\n{self.log_text()[-3000:]}") from None
        for reader in self._readers:
            reader.join(5)
        self.assigned = frozenset()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if "assigned" in event:
                self.assigned = frozenset((topic, partition) for topic, partition in event["assigned"])
            self.values.update(event.get("values", ()))
            if "error" in event:
                self.errors.append(event["error"])
        if self._process.wait() > 0:
            self.errors.append(f"the process ended with {self._process.returncode}:\n{self.log_text()[-2000:]}")

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        self._stderr.extend(self._process.stderr)


def _command(kind: Kind) -> list[str]:
    if kind == "confluent-kafka":
        return [sys.executable, str(PYTHON_SOURCE)]
    jars = java.jar_directory()
    digest = hashlib.sha256(JAVA_SOURCE.read_bytes()).hexdigest()[:16]
    classes = jars.parent / f"classes-{digest}"
    if not (classes / ".complete").exists():
        classes.mkdir(exist_ok=True)
        subprocess.run(
            ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(JAVA_SOURCE)],
            check=True,
            capture_output=True,
            text=True,
        )
        (classes / ".complete").touch()
    return ["java", *java.JVM_OPTIONS, "-cp", f"{classes}{os.pathsep}{jars}/*", "ConsumerProcess"]
