"""`committerd dead`: shows a dataset's dead letters, stages them again, deletes the oldest."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from typing import Any

import anyio
import click
from google.protobuf import text_format

from committerd.commands.dead.letters import Selection, Summary, letters_below, one_letter, read_summaries, summary_of
from committerd.commands.dead.replay import Replay, replay_letters
from committerd.commands.options import branch_option, config_option, dataset_option, json_option, settings
from committerd.commands.printing import echo_counts, echo_fields, echo_table, plain, since_ms, when
from committerd.commands.system import wall_clock
from committerd.errors import SettingsError
from committerd.kafka.operator import open_operator
from committerd.settings.load import Settings

_LINE_CHARS_MAX = 200

_reason_option = click.option(
    "--reason", "reasons", multiple=True, help="Only letters with this reason (snake case); may be given several times."
)
_since_option = click.option(
    "--since", help="Only letters of the last 90m, 12h or 3d, or since a time (2026-05-31T12:00:00Z)."
)


@click.group()
def dead() -> None:
    """Show the dead letters of a dataset, stage them again, or delete them.

    A record that can never be committed gets INVALID or UNSUPPORTED. The topic {prefix}{name}.dead keeps it as it was,
    with the reason. The offsets that these commands print and take are offsets in that topic.
    """


@dead.command("list")
@_reason_option
@_since_option
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="How many to print at most, from the newest on.",
)
@config_option
@dataset_option
@branch_option
@json_option
def list_(reasons: tuple[str, ...], since: str | None, limit: int, as_json: bool) -> None:
    """Print dead letters, the newest last: offset, time, uuid, operation, reason and message."""
    anyio.run(_list, settings(), _wanted((), reasons, since), limit, as_json)


@dead.command()
@click.argument("offset", type=click.IntRange(0))
@config_option
@dataset_option
@branch_option
@json_option
def show(offset: int, as_json: bool) -> None:
    """Print the dead letter at OFFSET: where and why it was refused, its headers, and its transaction as text."""
    anyio.run(_show, settings(), offset, as_json)


@dead.command()
@click.argument("offsets", nargs=-1, type=click.IntRange(0))
@_reason_option
@_since_option
@click.option("--apply", is_flag=True, help="Stage the letters. Without it, only say what would be staged.")
@config_option
@dataset_option
@branch_option
@json_option
def replay(offsets: tuple[int, ...], reasons: tuple[str, ...], since: str | None, apply: bool, as_json: bool) -> None:
    """Stage the dead letters at OFFSETS again, or the letters that the options choose. The committer judges them anew.

    The command stages the same key, bytes and headers, with the header replay-of. It refuses a letter if its
    transaction was committed since, if its application has already got that far, if a replay of it waits, if its
    deadline has passed, or if the committer would refuse it again for what it contains. Without --apply it stages
    nothing.

    The exit code is 1 if any letter was refused.
    """
    if not offsets and not reasons and since is None:
        raise click.UsageError("name the letters by OFFSETS, --reason or --since")
    good = anyio.run(_replay, settings(), _wanted(offsets, reasons, since), apply, as_json)
    sys.exit(0 if good else 1)


@dead.command()
@click.option(
    "--below", type=click.IntRange(0), required=True, help="The first offset to keep; all letters below it are deleted."
)
@click.option("--apply", is_flag=True, help="Delete the letters. Without it, only say what would be deleted.")
@config_option
@dataset_option
@branch_option
@json_option
def drop(below: int, apply: bool, as_json: bool) -> None:
    """Delete the oldest dead letters for good: all below an offset.

    Kafka can delete only from the front of a topic, so single letters can't be dropped. Kafka itself deletes letters
    after kafka.dead_retention_ms.
    """
    anyio.run(_drop, settings(), below, apply, as_json)


def _wanted(offsets: tuple[int, ...], reasons: tuple[str, ...], since: str | None) -> Selection:
    now_ms = int(wall_clock().timestamp() * 1000)
    return Selection(
        offsets=frozenset(offsets),
        reasons=frozenset(reasons),
        since_ms=None if since is None else since_ms(since, now_ms=now_ms),
    )


async def _list(configured: Settings, wanted: Selection, limit: int, as_json: bool) -> None:
    async with open_operator(configured.kafka, configured.dataset.queue) as operator:
        letters, total = await read_summaries(operator, wanted, newest=limit)
        topic = operator.topics.dead
    if as_json:
        listed = [_summary(letter) for letter in letters]
        click.echo(json.dumps({"topic": topic, "matching": total, "letters": listed}, indent=2))
        return
    if not letters:
        click.echo(f"{topic} has no such letter." if total == 0 else "")
        return
    columns = ("offset", "when", "uuid", "operation", "reason", "message")
    echo_table(columns, [tuple(_summary(letter)[name] for name in _LISTED) for letter in letters])
    if total > len(letters):
        click.echo(f"\nThe newest {len(letters)} of {total}; --limit prints more.")


_LISTED = ("offset", "time", "uuid", "operation", "reason", "message")


def _summary(letter: Summary) -> dict[str, Any]:
    return {
        "offset": letter.offset,
        "time": when(letter.timestamp_ms),
        "timestamp_ms": letter.timestamp_ms,
        "uuid": letter.uuid,
        "operation": letter.operation,
        "status": letter.status,
        "reason": letter.reason,
        "message": letter.message,
        "staged_at": letter.place,
    }


async def _show(configured: Settings, offset: int, as_json: bool) -> None:
    async with open_operator(configured.kafka, configured.dataset.queue) as operator:
        letter = await one_letter(operator, offset)
    try:
        text = text_format.MessageToString(letter.transaction)
    except Exception as error:  # noqa: BLE001  # an error in a letter must not hide the rest of it
        text = f"(it can't be shown as text: {type(error).__name__})"
    headers = [(name, value.decode("utf-8", "backslashreplace")) for name, value in letter.headers]
    if as_json:
        value = {
            "key": None if letter.key is None else letter.key.decode("utf-8", "backslashreplace"),
            "headers": headers,
            "staged_timestamp_ms": letter.staged_timestamp_ms,
            "value_base64": base64.b64encode(letter.value).decode(),
            "dropped_bytes": letter.dropped_bytes,
            "transaction": text,
        }
        click.echo(json.dumps(_summary(summary_of(letter)) | value, indent=2))
        return
    key = "none" if letter.key is None else letter.key.decode("utf-8", "backslashreplace")
    echo_fields(
        [
            ("letter", f"offset {letter.offset}, written {when(letter.timestamp_ms)}"),
            ("staged", f"offset {letter.staged_offset} of {letter.topic}, {when(letter.staged_timestamp_ms)}"),
            ("outcome", f"{letter.status} {letter.reason}"),
            ("message", letter.message),
            ("key", key),
            *((f"header {name}", text) for name, text in headers),
            ("value", f"{len(letter.value)} bytes" + (", the rest did not fit" if letter.dropped_bytes else "")),
        ]
    )
    click.echo("\nThe value as a lance.table.Transaction:\n")
    for line in text.splitlines() or ["(it can't be decoded, or is empty)"]:
        click.echo(f"  {_shortened(plain(line))}")


def _shortened(line: str) -> str:
    """The line, cut for people; --json prints all of it."""
    if len(line) <= _LINE_CHARS_MAX:
        return line
    return f"{line[:_LINE_CHARS_MAX]}... ({len(line)} characters)"


async def _replay(configured: Settings, wanted: Selection, apply: bool, as_json: bool) -> bool:
    async with open_operator(configured.kafka, configured.dataset.queue) as operator:
        replays = await replay_letters(configured, operator, wanted, apply=apply)
    if as_json:
        click.echo(json.dumps({"applied": apply, "letters": [_replay_json(one) for one in replays]}, indent=2))
    else:
        _print_replays(replays, apply=apply)
    return not any(one.refused for one in replays)


def _replay_json(one: Replay) -> dict[str, Any]:
    return _summary(one.letter) | {"refused": one.refused, "staged_offset": one.staged_offset}


def _print_replays(replays: list[Replay], *, apply: bool) -> None:
    if not replays:
        click.echo("There is no such letter.")
        return
    rows = []
    for one in replays:
        staged = "to be staged" if one.staged_offset is None else f"staged at offset {one.staged_offset}"
        letter = one.letter
        rows.append((letter.offset, letter.uuid, letter.reason, "REFUSED" if one.refused else staged))
    echo_table(("offset", "uuid", "reason", "replay"), rows)
    for one in replays:
        if one.refused:
            click.echo(f"  - {one.letter.offset}: {plain(one.refused)}")
    if not apply and not all(one.refused for one in replays):
        click.echo("Nothing was staged. Add --apply to stage what is not refused.")


async def _drop(configured: Settings, below: int, apply: bool, as_json: bool) -> None:
    async with open_operator(configured.kafka, configured.dataset.queue) as operator:
        topic = operator.topics.dead
        start, end = (await operator.bounds(topic))[0]
        if not start <= below <= end:
            raise SettingsError(f"offset {below} is outside {topic}, which holds {start} to {end} (exclusive)")
        reasons = Counter(
            [letter.reason if letter else "(not a dead letter)" async for letter in letters_below(operator, below)]
        )
        left = await operator.delete_letters_below(below) if apply else start
    dropped = sum(reasons.values())
    if as_json:
        click.echo(
            json.dumps({"topic": topic, "applied": apply, "letters": dropped, "reasons": reasons, "log_start": left})
        )
        return
    click.echo(f"{topic}: {dropped} below offset {below}")
    echo_counts(dict(reasons.most_common()))
    click.echo(f"Deleted; the topic starts at {left}." if apply else "Nothing was deleted. Add --apply to delete them.")
