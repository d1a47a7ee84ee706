"""`tablewire groups`: list and describe consumer groups, reset their offsets, delete them; in the database itself."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any

import typer

from gateway.cli.data import AsJson, Row, parse_time, print_rows, run_on_database
from gateway.cli.refusals import refusals
from gateway.errors import StartupError
from gateway.storage import group_admin, offsets
from gateway.storage.database import Database, Transaction
from gateway.storage.group_admin import PartitionEnds
from gateway.storage.groups import list_all
from gateway.storage.offsets import OffsetToCommit

__all__ = ["groups"]

Choose = Callable[[Transaction, PartitionEnds], Coroutine[Any, Any, int]]

groups = typer.Typer(help="Consumer groups: list, describe, reset offsets, delete.", no_args_is_help=True)

GroupName = Annotated[str, typer.Argument(help="The group's id.")]


@groups.command("list")
def list_groups(json: AsJson = False) -> None:
    """List all groups with their state."""

    async def run(database: Database) -> list[Row]:
        return [one._asdict() for one in await list_all(database)]

    rows = run_on_database(run)
    print_rows(rows, ("group_id", "group_type", "state", "protocol_type"), as_json=json)


@groups.command()
def describe(group: GroupName, json: AsJson = False) -> None:
    """Show a group's state, its members and its lag."""

    async def run(database: Database) -> Row:
        found = await group_admin.describe(database, group)
        if found is None:
            raise _unknown(group)
        return {
            "group_id": group,
            **found._asdict(),
            "members": [one._asdict() for one in await group_admin.list_members(database, group)],
            "offsets": [one._asdict() for one in await group_admin.load_lag(database, group)],
        }

    described = run_on_database(run)
    if json:
        typer.echo(json_format.dumps(described))
        return
    print_rows([described], ("group_id", "group_type", "state", "protocol", "generation", "coordinator"))
    if described["members"]:
        print_rows(described["members"], ("member_id", "instance_id", "client_id", "host", "topics", "pattern"))
    if described["offsets"]:
        print_rows(described["offsets"], ("topic", "partition", "offset", "end_offset", "lag", "stable_lag"))


@groups.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic, or topic:0,1 for some partitions; several times for several.")
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Every topic the group has an offset for.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first offset there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False,
    to_offset: Annotated[int | None, typer.Option(help="To this offset.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="Forwards, or backwards if negative.")] = None,
    to_datetime: Annotated[str | None, typer.Option(help="To the first record at or after, as ISO 8601.")] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this, only show what it would do.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Move a group's committed offsets. The group must have no members."""
    with refusals():
        choose = _mode(
            to_earliest=to_earliest,
            to_latest=to_latest,
            to_offset=to_offset,
            shift_by=shift_by,
            to_datetime=to_datetime,
        )
        if bool(topic) == all_topics:
            raise StartupError("Say which topics: --topic NAME, or --all-topics.")
        wanted = None if all_topics else dict(_parse_topic(text) for text in topic or ())

    async def run(database: Database) -> list[Row]:
        async with database.transaction() as transaction:
            await _require_empty(transaction, group)
            found = await group_admin.load_ends(transaction, group, None if wanted is None else list(wanted))
            _require_topics(found, wanted)
            rows = []
            for ends in found:
                partitions = None if wanted is None else wanted[ends.topic]
                if partitions is None or ends.key.partition in partitions:
                    offset = min(max(await choose(transaction, ends), ends.start_offset), ends.end_offset)
                    rows.append((ends, offset))
            if execute and rows:
                new = [OffsetToCommit(ends.key, offset) for ends, offset in rows]
                await offsets.upsert_offsets(transaction, group, new)
        return [
            {"topic": ends.topic, "partition": ends.key.partition, "offset": ends.committed, "new_offset": offset}
            for ends, offset in rows
        ]

    print_rows(run_on_database(run), ("topic", "partition", "offset", "new_offset"), as_json=json)
    if not execute:
        typer.echo("Nothing was changed: add --execute to do it.", err=True)


@groups.command()
def delete(group: GroupName, json: AsJson = False) -> None:
    """Delete a group and its offsets. It must have no members."""

    async def run(database: Database) -> None:
        async with database.transaction() as transaction:
            if await group_admin.lock_state(transaction, group) is None:
                raise _unknown(group)
            await _require_empty(transaction, group)
            await group_admin.drop(transaction, group)

    run_on_database(run)
    typer.echo(json_format.dumps({"deleted": group}) if json else f"Group {group} is deleted.")


def _mode(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
) -> Choose:
    """Where each partition goes; exactly one way must be given."""
    if sum((to_earliest, to_latest, to_offset is not None, shift_by is not None, to_datetime is not None)) != 1:
        raise StartupError(
            "Say where to: one of --to-earliest, --to-latest, --to-offset, --shift-by and --to-datetime."
        )
    time_ms = 0 if to_datetime is None else parse_time(to_datetime)

    async def choose(transaction: Transaction, ends: PartitionEnds) -> int:
        if to_datetime is not None:
            return await group_admin.find_offset_at(transaction, ends, time_ms)
        if to_offset is not None:
            return to_offset
        if shift_by is not None:
            return (ends.start_offset if ends.committed is None else ends.committed) + shift_by
        return ends.start_offset if to_earliest else ends.end_offset

    return choose


def _parse_topic(text: str) -> tuple[str, set[int] | None]:
    name, colon, numbers = text.partition(":")
    try:
        return name, {int(number) for number in numbers.split(",")} if colon else None
    except ValueError:
        raise StartupError(f"{text!r} is no topic with partitions: write it as topic:0,1.") from None


def _require_topics(found: Sequence[PartitionEnds], wanted: Mapping[str, set[int] | None] | None) -> None:
    known = {(ends.topic, ends.key.partition) for ends in found}
    for name, partitions in (wanted or {}).items():
        if not any(topic == name for topic, _ in known):
            raise StartupError(f"There is no topic {name}.")
        for partition in partitions or ():
            if (name, partition) not in known:
                raise StartupError(f"Topic {name} has no partition {partition}.")


async def _require_empty(transaction: Transaction, group: str) -> None:
    found = await group_admin.lock_state(transaction, group)
    if found is not None and (found[0] != "Empty" or found[1]):
        raise StartupError(f"Group {group} is {found[0]} with {found[1]} members: stop them first.")


def _unknown(group: str) -> StartupError:
    return StartupError(f"There is no group {group}.")
