"""Requests of sound form with senseless content (P11, P12, P14 of the test matrix), of every API and version served.

Names with NUL, quotes and other scripts, numbers at both ends of their type, nulls wherever they may be: each request
is answered in its own form, nothing unexpected is logged, and an ordinary client is served afterwards.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from gateway.handlers import HANDLERS
from gateway.protocol.framing import frame
from gateway.protocol.messages import ApiKey
from tests.support.attack import Target
from tests.support.gateway_process import GatewayProcess
from tests.support.random_messages import random_request
from tests.support.raw_connection import RawConnection
from tests.support.wire_client import message_class

REQUESTS_PER_VERSION = 60 if os.environ.get("TABLEWIRE_TEST_FULL") else 6
MAY_WAIT = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""For records, for the group's other members, for the assignment."""
NEED_NOT_BE_ANSWERED = {ApiKey.PRODUCE}
"""With acks=0; and a refusal closes the connection then."""


@pytest.fixture(scope="module")
def target(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("bad-values")
    with GatewayProcess(module_database_url, directory=directory) as process:
        target = Target(process)
        target.require_service()
        yield target


@pytest.mark.parametrize("api_key", sorted(HANDLERS), ids=lambda key: ApiKey(key).name.lower())
def test_senseless_requests_are_answered(target: Target, api_key: int) -> None:
    seed = 1 if os.environ.get("CI") else int.from_bytes(os.urandom(4), "big")
    random = Random(seed)
    asked: dict[RawConnection, tuple[int, bytes]] = {}
    logged_before = len(target.process.log_text())
    for version in HANDLERS[api_key].versions:
        for _ in range(REQUESTS_PER_VERSION):
            request = random_request(load_request_schema(api_key, version), random, correlation_id=len(asked) + 1)
            connection = target.connect()
            connection.send(frame(request))
            asked[connection] = version, request
    try:
        for connection in answered(list(asked), deadline_s=3 if api_key in MAY_WAIT | NEED_NOT_BE_ANSWERED else 60):
            version, request = asked.pop(connection)
            what = f"{ApiKey(api_key).name} v{version}, seed {seed}: {request.hex()}"
            try:
                answer = connection.receive()
            except ConnectionError:
                assert api_key in NEED_NOT_BE_ANSWERED, f"closed: {what}"
            else:
                assert_answer(api_key, version, answer, request)
            finally:
                connection.close()
    finally:
        for connection in asked:
            connection.close()
    unanswered = [f"v{version}: {request.hex()}" for version, request in asked.values()]
    assert api_key in MAY_WAIT | NEED_NOT_BE_ANSWERED or unanswered == [], f"seed {seed}"
    assert "Traceback" not in target.process.log_text()[logged_before:], f"seed {seed}"
    target.require_service()


def answered(connections: list[RawConnection], *, deadline_s: float) -> Iterator[RawConnection]:
    """Those on which something comes, as it comes."""
    ends_at = time.monotonic() + deadline_s
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while selector.get_map() and (left_s := ends_at - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                selector.unregister(key.fileobj)
                yield key.data


def assert_answer(api_key: int, version: int, answer: bytes, request: bytes) -> None:
    """It is a whole response of the version asked for, and nothing more."""
    assert answer[:4] == request[4:8], "the correlation id"
    name = ApiKey(api_key).name.title().replace("_", "")
    try:
        decoded = message_class(f"{name}Response").decode(answer, version=version, header=True)
    except LookupError:  # kafka-python has no schema of it
        response_class: Any = load_response_schema(api_key, version)
        header_bytes = entity_reader(response_class.__header_schema__)(answer, 0)[1]
        assert header_bytes + entity_reader(response_class)(answer, header_bytes)[1] == len(answer)
    else:
        assert bytes(decoded.encode(header=True)) == answer
