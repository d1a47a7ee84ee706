"""Random requests and responses of any API and version, made from the fields of kio's classes.

The numbers come from a `Random`: a seeded one for the fuzzer, Hypothesis's own for tests that shrink what they find.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import uuid
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from gateway.protocol.shapes import entity_of, is_array, is_nullable

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)
MAX_ENTRIES = 3
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
# Python's durations and times end before the wire's numbers do.
MAX_DURATION_MS = 2**46
MAX_TIME_MS = 253_402_300_799_999  # the year 9999

TEXTS = ("", "a", "orders", "a.b_c-d", "Größe", "日本語", "\U0001f40c", "\0", "'; DROP TABLE--", "x" * 130)


def random_entity(entity: type, random: Random) -> Any:
    """A value of one of kio's classes."""
    return entity(**{name: make(random) for name, make in _makers(entity)})


def encoded(entity: Any) -> bytes:
    """As kio writes it."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def random_request(request_class: Any, random: Random, *, correlation_id: int = 1) -> bytes:
    """A whole request without the frame's length: header and body."""
    header = request_class.__header_schema__(
        request_api_key=request_class.__api_key__,
        request_api_version=request_class.__version__,
        correlation_id=correlation_id,
        client_id=None if random.random() < 0.2 else _text(random),
    )
    return encoded(header) + encoded(random_entity(request_class, random))


Make = Callable[[Random], Any]


@cache
def _makers(entity: type) -> tuple[tuple[str, Make], ...]:
    return tuple((part.name, _maker(part)) for part in dataclasses.fields(entity))


def _maker(part: dataclasses.Field[Any]) -> Make:
    nested, nullable = entity_of(part.type), is_nullable(part.type)
    one = _simple(part.metadata["kafka_type"], nullable=nullable) if nested is None else partial(random_entity, nested)

    def many(random: Random) -> Any:
        return tuple(one(random) for _ in range(random.randint(0, MAX_ENTRIES)))

    make = many if is_array(part.type) else one

    def nothing_or_one(random: Random) -> Any:
        return None if random.random() < 0.2 else make(random)

    return nothing_or_one if nullable else make


def _simple(kind: str, *, nullable: bool) -> Make:
    if kind in INTEGER_BITS:
        half = 1 << INTEGER_BITS[kind] - 1
        return lambda random: _integer(random, -half, half - 1)
    if kind == "timedelta_i32":
        return lambda random: _integer(random, -(2**31), 2**31 - 1) * MILLISECOND
    if kind == "timedelta_i64":
        return lambda random: _integer(random, -MAX_DURATION_MS, MAX_DURATION_MS) * MILLISECOND
    if kind == "datetime_i64":  # -1 is null where there is one
        return lambda random: EPOCH + _integer(random, 0 if nullable else -1, MAX_TIME_MS) * MILLISECOND
    return {
        "bool": lambda random: random.random() < 0.5,
        "uint16": lambda random: _integer(random, 0, 0xFFFF),
        "error_code": lambda random: random.choice(ERROR_CODES),
        "float64": lambda random: random.random(),
        "string": _text,
        "bytes": _bytes,
        "records": _bytes,
        # Kafka's zero is kio's null.
        "uuid": lambda random: uuid.UUID(int=random.randint(1, 2**128 - 1)),
    }[kind]


ERROR_CODES = tuple(ErrorCode)


def _integer(random: Random, low: int, high: int) -> int:
    chosen = random.randint(0, 5)
    if chosen == 0:
        return random.choice((low, high))
    if chosen < 4:
        return max(low, min(high, random.randint(-2, 300)))
    return random.randint(low, high)


def _text(random: Random) -> str:
    return random.choice(TEXTS)


def _bytes(random: Random) -> bytes:
    return random.randbytes(random.choice((0, 1, 5, 40, 200)))
