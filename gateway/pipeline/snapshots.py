"""Snapshot files of a namespace: written and read in one pass each, a row at a time, whatever their size.

A file is the line `tablewire-state 1`, a line of JSON that says what it holds, records, an end mark with their count,
and the SHA-256 of all that. Equal states are equal bytes. docs/state.md has the format for other languages.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import psycopg
from psycopg import sql

from gateway.domain.state import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Ordering,
    StateError,
    UnknownNamespace,
    Version,
    as_version,
)
from gateway.pipeline.database import Connection
from gateway.pipeline.state import temporary_table, transaction
from gateway.storage.statements import statement

__all__ = ["CorruptSnapshot", "Header", "SnapshotDiffers", "read_header", "restore_snapshot", "write_snapshot"]

MAGIC = b"tablewire-state "
FORMAT = 1
MAX_HEADER_BYTES = 4_096
CHUNK_BYTES = 2**20
DIGEST_BYTES = hashlib.sha256().digest_size

# kind, epoch, round, length of the key, length of the value
RECORD = struct.Struct(">cqqHI")
END = struct.Struct(">cQ")
APPLIED, BUFFERED, ENDED = b"A", b"B", b"E"
DELETED = 0xFFFFFFFF
"""Length of the value that is not there."""

COLUMNS = "is_buffered boolean, key bytea, epoch bigint, round bigint, value bytea"


class CorruptSnapshot(StateError):
    """The file is not a snapshot, or not all of one."""


class SnapshotDiffers(StateError):
    """The snapshot is sound, but does not fit the namespace."""


class Header(NamedTuple):
    """What a snapshot holds."""

    namespace: str
    """Where it was taken; it may be restored elsewhere."""
    ordering: Ordering
    seal: Version | None
    is_whole: bool
    """Whether it holds all keys, not chosen ones only."""


class Record(NamedTuple):
    is_buffered: bool
    key: bytes
    epoch: int
    round: int
    value: bytes | None


# --- writing ---------------------------------------------------------------------------------


def write_snapshot(
    connection: Connection, namespace: str, path: str | os.PathLike[str], keys: list[bytes] | None
) -> int:
    """Write what a namespace holds at one instant. The file appears, or is replaced, when it is complete."""
    target = Path(path)
    if not target.parent.is_dir():
        raise StateError(f"There is no directory {target.parent} to write a snapshot to.")
    try:
        with transaction(connection), _replacing(target) as file:
            return _write(connection, namespace, file, keys)
    except OSError as failed:
        raise StateError(f"The snapshot {target} cannot be written: {failed.strerror}.") from failed


def _write(connection: Connection, namespace: str, file: _Digesting, keys: list[bytes] | None) -> int:
    query = sql.SQL("COPY (") + sql.SQL(statement("state/load_entries")) + sql.SQL(") TO STDOUT (FORMAT binary)")
    records = 0
    has_header = False
    with connection.cursor() as cursor, cursor.copy(query, {"namespace": namespace, "keys": keys}) as copy:
        copy.set_types(["text", "int8", "int8", "bool", "bytea", "int8", "int8", "bytea"])
        for ordering, sealed_epoch, sealed_round, is_buffered, key, epoch, number, value in copy.rows():
            if not has_header:
                seal = None if sealed_epoch is None else Version(sealed_epoch, sealed_round)
                file.write(_encode_header(Header(namespace, Ordering(ordering), seal, is_whole=keys is None)))
                has_header = True
            if key is None:
                continue  # not `break`: COPY is read to its end
            length = DELETED if value is None else len(value)
            file.write(RECORD.pack(BUFFERED if is_buffered else APPLIED, epoch, number, len(key), length))
            file.write(key)
            file.write(value or b"")
            records += 1
    if not has_header:
        raise UnknownNamespace(f"There is no namespace {namespace}: State.create makes one.")
    file.write(END.pack(ENDED, records))
    file.write(file.digest())
    return records


def _encode_header(header: Header) -> bytes:
    fields = {
        "keys": "all" if header.is_whole else "chosen",
        "namespace": header.namespace,
        "ordering": header.ordering.value,
        "sealed": header.seal,
    }
    return MAGIC + b"%d\n" % FORMAT + json.dumps(fields, sort_keys=True).encode() + b"\n"


class _Digesting:
    """A file that knows the SHA-256 of what went through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)

    def read(self, size_bytes: int, *, what: str) -> bytes:
        data = self._file.read(size_bytes)
        if len(data) < size_bytes:
            raise CorruptSnapshot(f"The snapshot ends in the middle of {what}: it was cut short.")
        self._hash.update(data)
        return data

    def line(self, *, what: str) -> bytes:
        data = self._file.readline(MAX_HEADER_BYTES)
        if not data.endswith(b"\n"):
            raise CorruptSnapshot(f"The snapshot has no {what}: it was cut short or is no snapshot.")
        self._hash.update(data)
        return data

    def digest(self) -> bytes:
        return self._hash.digest()


@contextmanager
def _replacing(target: Path) -> Iterator[_Digesting]:
    """A new file beside `target` that takes its place once it is complete and on disk; else it is removed."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    unfinished = Path(name)
    try:
        with open(descriptor, "wb", buffering=CHUNK_BYTES) as file:  # noqa: PTH123 - a descriptor has no path
            yield _Digesting(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
        _sync_directory(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading ---------------------------------------------------------------------------------


def read_header(path: str | os.PathLike[str]) -> Header:
    """What a file says that it holds. Its checksum is not looked at."""
    with _opened(path) as file:
        return _decode_header(_Digesting(file))


def restore_snapshot(
    connection: Connection, namespace: str, path: str | os.PathLike[str], keys: Collection[bytes] | None
) -> int:
    """Make a namespace, or chosen keys of it, what a file says; a key that is not in the file is then gone.

    The whole file is verified first. All of it is applied, or nothing; how many entries were.
    """
    with _opened(path) as file:
        _verify(file)
        file.seek(0)
        with transaction(connection):
            return _restore(connection, namespace, _Digesting(file), None if keys is None else frozenset(keys))


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below
    except OSError as missing:
        raise StateError(f"The snapshot {os.fspath(path)} cannot be read: {missing.strerror}.") from None
    with file:
        yield file


def _verify(file: IO[bytes]) -> None:
    """The checksum stands at the end: all before it is read once, in pieces."""
    _decode_header(_Digesting(file))
    remaining = file.seek(0, os.SEEK_END) - DIGEST_BYTES
    file.seek(0)
    found = hashlib.sha256()
    while remaining > 0:
        data = file.read(min(CHUNK_BYTES, remaining))
        if not data:
            break
        found.update(data)
        remaining -= len(data)
    if file.read(DIGEST_BYTES) != found.digest():
        raise CorruptSnapshot("The snapshot's checksum is wrong: it was damaged or cut short. Nothing was restored.")


def _decode_header(file: _Digesting) -> Header:
    first = file.line(what="first line")
    if not first.startswith(MAGIC):
        raise CorruptSnapshot("The file is no snapshot: it does not begin with `tablewire-state`.")
    if first != MAGIC + b"%d\n" % FORMAT:
        raise CorruptSnapshot(
            f"The snapshot has format {first[len(MAGIC) : -1].decode(errors='replace')}; this version reads {FORMAT}."
        )
    try:
        fields = json.loads(file.line(what="header"))
        sealed = fields["sealed"]
        return Header(
            str(fields["namespace"]),
            Ordering(fields["ordering"]),
            None if sealed is None else as_version((sealed[0], sealed[1])),
            is_whole={"all": True, "chosen": False}[fields["keys"]],
        )
    except (ValueError, KeyError, TypeError, IndexError):
        raise CorruptSnapshot("The snapshot's header cannot be understood.") from None


def _restore(connection: Connection, namespace: str, file: _Digesting, keys: frozenset[bytes] | None) -> int:
    header = _decode_header(file)
    _require_fit(connection, namespace, header, is_whole=keys is None)
    chosen = None if keys is None else sorted(keys)
    with temporary_table(connection, "tablewire_restored", COLUMNS) as table:
        entries = _copy(connection, table, file, header, keys)
        parameters: dict[str, Any] = {"namespace": namespace, "staging": table, "keys": chosen}
        parameters["epoch"], parameters["round"] = header.seal or (None, None)
        try:
            connection.execute(statement("state/replace_entries"), parameters)
        except psycopg.errors.UniqueViolation:
            raise CorruptSnapshot("The snapshot holds a key twice. Nothing was restored.") from None
    return entries


def _require_fit(connection: Connection, namespace: str, header: Header, *, is_whole: bool) -> None:
    row = connection.execute(statement("state/lock_namespace"), {"namespace": namespace}).fetchone()
    assert row is not None
    ordering, epoch, number = row
    if ordering != header.ordering:
        raise SnapshotDiffers(
            f"The snapshot is of a namespace with ordering {header.ordering}; {namespace} has {ordering}."
        )
    if is_whole and not header.is_whole:
        raise SnapshotDiffers("The snapshot holds chosen keys only: name the keys to restore.")
    seal = None if epoch is None else Version(epoch, number)
    if not is_whole and seal != header.seal:
        raise SnapshotDiffers(
            f"The snapshot was sealed up to {_show(header.seal)} and {namespace} up to {_show(seal)}: keys of one do "
            "not fit the other. Restore all of it."
        )


def _show(seal: Version | None) -> str:
    return "nothing" if seal is None else f"({seal.epoch}, {seal.round})"


def _copy(connection: Connection, table: str, file: _Digesting, header: Header, keys: frozenset[bytes] | None) -> int:
    entries = 0
    with (
        connection.cursor() as cursor,
        cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(sql.Identifier(table))) as copy,
    ):
        copy.set_types(["bool", "bytea", "int8", "int8", "bytea"])
        for record in _records(file, header):
            if keys is None or record.key in keys:
                copy.write_row(record)
                entries += 1
    return entries


def _records(file: _Digesting, header: Header) -> Iterator[Record]:
    """All records, each checked; the end of the file must be where they end."""
    records = 0
    while (kind := file.read(1, what="its records")) != ENDED:
        if kind not in (APPLIED, BUFFERED):
            raise CorruptSnapshot(f"The snapshot has a record of unknown kind {kind!r}.")
        _, epoch, number, key_length, value_length = RECORD.unpack(kind + file.read(RECORD.size - 1, what="a record"))
        if key_length > MAX_KEY_BYTES or (value_length > MAX_VALUE_BYTES and value_length != DELETED):
            raise CorruptSnapshot("The snapshot has a record that is too large.")
        key = file.read(key_length, what="a key")
        value = None if value_length == DELETED else file.read(value_length, what="a value")
        _require_place(Version(epoch, number), header, is_buffered=kind == BUFFERED)
        records += 1
        yield Record(kind == BUFFERED, key, epoch, number, value)
    (counted,) = struct.unpack(">Q", file.read(END.size - 1, what="its end mark"))
    if counted != records:
        raise CorruptSnapshot(f"The snapshot says that it has {counted} records, and has {records}.")
    expected = file.digest()
    if file.read(DIGEST_BYTES, what="its checksum") != expected:
        raise CorruptSnapshot("The snapshot changed while it was read. Nothing was restored.")


def _require_place(version: Version, header: Header, *, is_buffered: bool) -> None:
    """Below the seal everything is applied, above it everything waits; without order nothing does."""
    waits = header.ordering is Ordering.SEALED and (header.seal is None or version > header.seal)
    if version.epoch < 0 or version.round < 0 or waits != is_buffered:
        raise CorruptSnapshot(f"The snapshot has version ({version.epoch}, {version.round}) where it cannot be.")
