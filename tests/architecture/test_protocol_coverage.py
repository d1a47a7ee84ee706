"""The page that says what is served, and the table it comes from."""

from __future__ import annotations

import pytest
from kafka.protocol.api_key import ApiKey as KafkaPythonApiKey

from gateway.handlers import HANDLERS
from gateway.handlers.__main__ import FILE, coverage
from gateway.handlers.registry import Handler
from gateway.protocol.messages import newest_version


def test_the_page_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == coverage(), "run `make docs` and commit the page"


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=lambda handler: handler.api_key.name)
def test_every_handler_is_described_and_named_as_kafka_names_it(handler: Handler) -> None:
    module_text = handler.function.__globals__["__doc__"]
    name = handler.api_key.name.title().replace("_", "")
    assert handler.summary, "a handler's file opens with `Name: what it does.`"
    assert module_text.startswith(f"{name}: ")
    assert KafkaPythonApiKey(handler.api_key).name.lower() == name.lower()


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=lambda handler: handler.api_key.name)
def test_what_is_announced_can_be_decoded(handler: Handler) -> None:
    assert handler.announced_min <= handler.versions[0]
    assert handler.versions[-1] <= newest_version(handler.api_key)
