"""Versioned state in kafka.state: exactly-once puts, bulk puts, seals. The rule is in gateway/domain/state.py.

Everything runs in the caller's transaction where one is open, and then never commits by itself; a refusal undoes only
the call that was refused. Otherwise each call is a transaction of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from gateway.domain.state import (
    Encoding,
    InvalidState,
    LateVersion,
    Ordering,
    Outcome,
    Put,
    StateConflict,
    UnknownNamespace,
    Version,
    as_version,
    check_put,
    decode,
    encode,
    require_name,
)
from gateway.pipeline.database import Connection
from gateway.storage.failures import translate_state
from gateway.storage.statements import statement

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame

__all__ = ["Change", "Namespace", "State", "Stored", "apply_staged", "temporary_table", "transaction"]

AnyVersion = Version | tuple[int, int] | int
Outcomes = Mapping[Outcome, int]
"""How many puts had which outcome."""

ARRAY_PUTS = 1_000
ARRAY_BYTES = 4 * 2**20
"""More than this is copied to a temporary table first, so that memory stays bounded."""

PUT_COLUMNS = "key bytea, value bytea, epoch bigint, round bigint"


class Namespace(NamedTuple):
    """What a namespace is."""

    ordering: Ordering
    pipeline: str | None
    seal: Version | None


class Stored(NamedTuple):
    """What a key holds; a deleted one has a version and no value."""

    version: Version
    value: Any
    is_deleted: bool


class Change(NamedTuple):
    """A put that a seal applied."""

    key: Any
    version: Version
    value: Any
    is_deleted: bool


class State:
    """A namespace of versioned values, through one connection."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        *,
        keys: Encoding | str = Encoding.BYTES,
        values: Encoding | str = Encoding.BYTES,
    ) -> None:
        """`keys` and `values` say how they become bytes: bytes, text or json. Who reads must say the same."""
        self._connection = connection
        self._namespace = require_name(namespace, of="namespace")
        self._keys, self._values = Encoding(keys), Encoding(values)

    @classmethod
    def create(
        cls,
        connection: Connection,
        namespace: str,
        *,
        ordering: Ordering | str = Ordering.LATEST,
        pipeline: str | None = None,
        keys: Encoding | str = Encoding.BYTES,
        values: Encoding | str = Encoding.BYTES,
    ) -> State:
        """Make the namespace unless it is there; the checkpoints of `pipeline` then cover it.

        NamespaceDiffers if it is there with another ordering or pipeline.
        """
        state = cls(connection, namespace, keys=keys, values=values)
        if pipeline is not None:
            require_name(pipeline, of="pipeline")
        with transaction(connection):
            parameters = {"namespace": namespace, "ordering": Ordering(ordering).value, "pipeline": pipeline}
            connection.execute(statement("state/create_namespace"), parameters)
        return state

    @property
    def namespace(self) -> str:
        return self._namespace

    def describe(self) -> Namespace:
        with transaction(self._connection):
            row = self._row("state/load_namespace")
        if row is None:
            raise self._unknown()
        ordering, pipeline, epoch, number = row
        return Namespace(Ordering(ordering), pipeline, None if epoch is None else Version(epoch, number))

    def drop(self) -> None:
        """Remove the namespace and all it holds."""
        with transaction(self._connection):
            self._row("state/drop_namespace")

    # --- one key -----------------------------------------------------------------------------

    def put(self, key: object, value: object, version: AnyVersion, *, strict: bool = True) -> Outcome:
        """Put a value at a version: only a newer one is applied, the same again changes nothing.

        One version with another value is a StateConflict, a version that was sealed a LateVersion; unless `strict`,
        these are reported as outcomes like the rest.
        """
        if value is None and self._values is not Encoding.JSON:
            raise InvalidState("None is no value: delete the key, or keep JSON values.")
        return self._put(key, encode(value, self._values), version, strict=strict)

    def delete(self, key: object, version: AnyVersion, *, strict: bool = True) -> Outcome:
        """Delete a key at a version, by the rules of `put`."""
        return self._put(key, None, version, strict=strict)

    def _put(self, key: object, value: bytes | None, version: AnyVersion, *, strict: bool) -> Outcome:
        put = self._checked(key, value, version)
        parameters = {"key": put.key, "value": put.value, "epoch": put.version.epoch, "round": put.version.round}
        with transaction(self._connection):
            row = self._row("state/put_value", **parameters)
            assert row is not None
            outcome = Outcome(row[0])
            if strict:
                _refuse(self._namespace, {outcome: 1}, {outcome: (put.key, put.version)})
        return outcome

    def get(self, key: object, default: object = None) -> Any:
        """The value of a key; `default` if there is none or it was deleted."""
        stored = self.entry(key)
        return default if stored is None or stored.is_deleted else stored.value

    def entry(self, key: object) -> Stored | None:
        """What a key holds, with its version, a deletion too; None if it was never put."""
        with transaction(self._connection):
            row = self._row("state/load_entry", key=self._key(key))
        if row is None:
            raise self._unknown()
        epoch, number, value = row
        return None if epoch is None else Stored(Version(epoch, number), self._value(value), value is None)

    # --- many keys ---------------------------------------------------------------------------

    def put_many(self, puts: Iterable[tuple[object, object, AnyVersion]], *, strict: bool = True) -> Outcomes:
        """Put many (key, value, version), judged together; a value of None deletes the key. All of them, or none."""
        checked = (
            self._checked(key, None if value is None else encode(value, self._values), version)
            for key, value, version in puts
        )
        with transaction(self._connection):
            return _outcomes(self._namespace, self._write(checked), strict=strict)

    def _write(self, puts: Iterator[Put]) -> list[tuple[Any, ...]]:
        first: list[Put] = []
        size_bytes = 0
        for put in puts:
            first.append(put)
            size_bytes += len(put.key) + len(put.value or b"")
            if len(first) > ARRAY_PUTS or size_bytes > ARRAY_BYTES:
                return self._write_by_copy(chain(first, puts))
        parameters = {
            "keys": [put.key for put in first],
            "values": [put.value for put in first],
            "epochs": [put.version.epoch for put in first],
            "rounds": [put.version.round for put in first],
        }
        return self._rows("state/put_values", **parameters)

    def _write_by_copy(self, puts: Iterable[Put]) -> list[tuple[Any, ...]]:
        with temporary_table(self._connection, "tablewire_puts", PUT_COLUMNS) as table:
            with (
                self._connection.cursor() as cursor,
                cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(sql.Identifier(table))) as copy,
            ):
                copy.set_types(["bytea", "bytea", "int8", "int8"])
                for put in puts:
                    copy.write_row((put.key, put.value, put.version.epoch, put.version.round))
            return self._rows("state/apply_staging", staging=table)

    def put_all(
        self, rows: DataFrame, *, version: str | tuple[str, str] = ("epoch", "round"), strict: bool = True
    ) -> Outcomes:
        """Put the rows of a DataFrame with columns `key`, `value` and the named ones of the version.

        Executors write them to a staging table by JDBC, then one statement applies them. Keys and values are binary,
        or strings where the encoding is text or json; a null value deletes the key. Not inside a transaction, which
        would hold the staging table for longer than it lives: use `staged_puts` around it and `apply_staged` in it.
        """
        from gateway.pipeline.state_frames import staged_puts

        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            raise InvalidState(
                "put_all cannot be part of an open transaction: stage the rows before it with "
                "gateway.pipeline.state_frames.staged_puts, and call apply_staged in it."
            )
        with staged_puts(rows, version=version, keys=self._keys, values=self._values) as staged:
            return apply_staged(self._connection, self._namespace, staged.table, strict=strict, expected=staged.rows)

    # --- seals -------------------------------------------------------------------------------

    def seal(self, up_to: AnyVersion) -> int:
        """Say that versions up to this one are complete: those that wait are applied. How many there were.

        Sealing again, or less than before, changes nothing.
        """
        with transaction(self._connection):
            row = self._row("state/count_sealed", **self._bound(up_to))
        return 0 if row is None else int(row[0])

    def seal_in_order(self, up_to: AnyVersion) -> list[Change]:
        """Seal, and get what was applied in version order, for whoever folds over it."""
        with transaction(self._connection):
            rows = self._rows("state/seal_versions", **self._bound(up_to))
        return [
            Change(decode(key, self._keys), Version(epoch, number), self._value(value), value is None)
            for key, epoch, number, value in rows
        ]

    @staticmethod
    def _bound(up_to: AnyVersion) -> dict[str, int]:
        epoch, number = as_version(up_to)
        return {"epoch": epoch, "round": number}

    # --- files -------------------------------------------------------------------------------

    def snapshot(self, path: str | PathLike[str], keys: Iterable[object] | None = None) -> int:
        """Write all of it, or chosen keys, to a file. How many entries there were; see gateway.pipeline.snapshots."""
        from gateway.pipeline.snapshots import write_snapshot

        return write_snapshot(self._connection, self._namespace, path, self._chosen(keys))

    def restore(self, path: str | PathLike[str], keys: Iterable[object] | None = None) -> int:
        """Make the namespace, or chosen keys, what a file says. How many entries it has; all of them, or none."""
        from gateway.pipeline.snapshots import restore_snapshot

        return restore_snapshot(self._connection, self._namespace, path, self._chosen(keys))

    def _chosen(self, keys: Iterable[object] | None) -> list[bytes] | None:
        if isinstance(keys, str | bytes):
            raise InvalidState("`keys` is a list of keys, not a single one.")
        return None if keys is None else [self._key(key) for key in keys]

    # --- within ------------------------------------------------------------------------------

    def _checked(self, key: object, value: bytes | None, version: AnyVersion) -> Put:
        put = Put(self._key(key), as_version(version), value)
        check_put(put.key, put.value)
        return put

    def _key(self, key: object) -> bytes:
        return encode(key, self._keys)

    def _value(self, value: bytes | None) -> Any:
        return None if value is None else decode(value, self._values)

    def _rows(self, name: str, /, **parameters: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor(binary=True) as cursor:
            return cursor.execute(statement(name), {"namespace": self._namespace, **parameters}).fetchall()

    def _row(self, name: str, /, **parameters: object) -> tuple[Any, ...] | None:
        rows = self._rows(name, **parameters)
        return rows[0] if rows else None

    def _unknown(self) -> UnknownNamespace:
        return UnknownNamespace(f"There is no namespace {self._namespace}: State.create makes one.")


def apply_staged(
    connection: Connection, namespace: str, staging_table: str, *, strict: bool = True, expected: int | None = None
) -> Outcomes:
    """Put all rows (key, value, epoch, round) of a table, judged together, in one statement.

    The table's name is as SQL writes it. Unless `strict`, conflicts and late versions are counted instead of refused.
    `expected` is how many different puts there must be at least, where the caller knows.
    """
    parameters = {"namespace": require_name(namespace, of="namespace"), "staging": staging_table}
    try:
        with transaction(connection), connection.cursor(binary=True) as cursor:
            rows = cursor.execute(statement("state/apply_staging"), parameters).fetchall()
            outcomes = _outcomes(namespace, rows, strict=strict)
            if expected is not None and sum(outcomes.values()) < expected:
                raise InvalidState(
                    f"{staging_table} holds {sum(outcomes.values())} of {expected} rows: put them again."
                )
            return outcomes
    except psycopg.ProgrammingError as wrong:
        said = (str(wrong).splitlines() or [""])[0]
        raise InvalidState(
            f"{staging_table} cannot be applied: a staging table has the columns key and value (bytea), epoch and "
            f"round (bigint); PostgreSQL says: {said}."
        ) from wrong


def _outcomes(namespace: str, rows: Sequence[tuple[Any, ...]], *, strict: bool) -> Outcomes:
    outcomes: Counter[Outcome] = Counter()
    firsts = {}
    for outcome, puts, key, epoch, number in rows:
        outcomes[Outcome(outcome)] += puts
        if key is not None:
            firsts[Outcome(outcome)] = (key, Version(epoch, number))
    if strict:
        _refuse(namespace, outcomes, firsts)
    return outcomes


REFUSALS: dict[Outcome, tuple[Callable[[str], Exception], str]] = {
    Outcome.CONFLICT: (StateConflict, "came with another value than before"),
    Outcome.LATE: (LateVersion, "came after it was sealed"),
}


def _refuse(namespace: str, outcomes: Outcomes, firsts: Mapping[Outcome, tuple[bytes, Version]]) -> None:
    for outcome, (refusal, what) in REFUSALS.items():
        if outcomes.get(outcome):
            key, (epoch, number) = firsts[outcome]
            more = f", and {outcomes[outcome] - 1} more puts like it" if outcomes[outcome] > 1 else ""
            shown = f"{key[:60]!r}…" if len(key) > 60 else repr(key)
            raise refusal(f"In namespace {namespace}, version ({epoch}, {number}) of key {shown} {what}{more}.")


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """The caller's transaction, or one of this block's own. What PostgreSQL says of state leaves as a StateError."""
    try:
        with connection.transaction():
            yield
    except psycopg.Error as error:
        refusal = translate_state(error)
        if refusal is None:
            raise
        raise refusal from error


@contextmanager
def temporary_table(connection: Connection, name: str, columns: LiteralString) -> Iterator[str]:
    """A table that only this transaction sees, gone at the end of the block."""
    text = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP")
    connection.execute(text.format(sql.Identifier(name), sql.SQL(columns)))
    yield name
    connection.execute(sql.SQL("DROP TABLE pg_temp.{}").format(sql.Identifier(name)))
