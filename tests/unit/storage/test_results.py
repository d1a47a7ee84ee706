"""Rows where libpq holds them: read in place, and never beyond what is there."""

from __future__ import annotations

import struct

import pytest

from gateway.protocol import plain_transcoder, transcoder
from gateway.storage.results import ResultRows
from tests.support.results import GOOD_ROW, message_rows, stored_row
from tests.support.transcoders import compiled_only

ONE_DIMENSION, TEXT = 1, 25


def test_libpq_is_found_where_psycopg_has_it() -> None:
    assert ResultRows(message_rows([GOOD_ROW])).address != 0


@compiled_only
@pytest.mark.parametrize(
    "row",
    [
        stored_row(offset=b"\0\0\0\1"),
        stored_row(offset=None),
        stored_row(timestamp=b""),
        stored_row(producer_id=b"\0"),
        stored_row(is_transactional=None),
        stored_row(header_values=None),
        stored_row(header_values=[b"1", b"2"]),
        stored_row(header_names=b"\0\0\0\1"),
        stored_row(header_names=struct.pack(">iiIii", 2, 0, TEXT, 1, 1)),
        stored_row(header_names=struct.pack(">iiIii", ONE_DIMENSION, 0, TEXT, 2**31 - 1, 1)),
        stored_row(header_names=struct.pack(">iiIiii", ONE_DIMENSION, 0, TEXT, 1, 1, 10) + b"short"),
    ],
)
def test_a_row_that_is_not_as_promised_is_refused(row: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="promises"):
        transcoder.implementation.encode_rows(ResultRows(message_rows([GOOD_ROW, row])), leader_epoch=4)


@compiled_only
def test_python_reads_where_libpq_cannot_be_reached() -> None:
    rows = ResultRows(message_rows([GOOD_ROW, stored_row(offset=8, sequence=4)]))
    expected = transcoder.implementation.encode_rows(rows, leader_epoch=4)
    rows.address = 0
    assert transcoder.implementation.encode_rows(rows, leader_epoch=4) == expected
    assert plain_transcoder.encode_rows(rows, leader_epoch=4) == expected
