"""`committerd position`: shows the queue's position in the table, and sets it by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import anyio
import click

from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    require_reason,
    settings,
)
from committerd.commands.printing import ProgressLine, Reading
from committerd.commands.system import monotonic, open_history, open_place, sources, stores_of
from committerd.committer import operate
from committerd.committer.loading import Loaded, Loading
from committerd.committer.operate import Situation
from committerd.concurrency import Concurrently
from committerd.errors import RefusedToRun, SettingsError
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.operator import open_operator
from committerd.queue.position import Position
from committerd.queue.start import QueueFacts
from committerd.settings.load import Settings
from committerd.table.sampling import Sampled, sample
from committerd.table.versions import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A position to set."""

    choose: Callable[[Situation], Position]
    reason: str
    apply: bool


@click.group()
def position() -> None:
    """Show a table's position in its queue, or set it by hand.

    The position says which staged records the table has settled. If table and topic contradict each other, a committer
    refuses to run; these commands are the way out. They change nothing without --apply.
    """


@position.command()
@config_option
@dataset_option
@branch_option
@json_option
def show(as_json: bool) -> None:
    """Print the position, the topic as it is now, and whether a committer would run."""
    configured = settings()
    anyio.run(_show, configured, as_json)


@position.command()
@config_option
@dataset_option
@branch_option
@json_option
@click.option(
    "--offset",
    type=click.IntRange(0),
    help="Next offset to read; without it, the offset that follows from the cause of the refusal.",
)
@click.option("--reason", default="", help="Why, in your words; the version keeps it. Required with --apply.")
@click.option("--apply", is_flag=True, help="Write the version. Without it, only say what would be written.")
def adopt(as_json: bool, offset: int | None, reason: str, apply: bool) -> None:
    """Accept the topic as it is now, and continue at an offset of it.

    Use it for a topic that was deleted and recreated, a log that lost records, or a table that lost its position.
    Without --offset, the committer judges every record that has no known outcome. With it, records below the offset
    that have no outcome get UNDECIDED and are not committed; the output counts them.
    """
    change = _Change(choose=lambda found: operate.adopted(found, offset), reason=reason, apply=apply)
    anyio.run(_set, settings(), change, as_json)


@position.command()
@config_option
@dataset_option
@branch_option
@json_option
@click.option("--offset", type=click.IntRange(0), required=True, help="Next offset to read.")
@click.option("--reason", default="", help="Why, in your words; the version keeps it. Required with --apply.")
@click.option("--apply", is_flag=True, help="Write the version. Without it, only say what would be written.")
def rewind(as_json: bool, offset: int, reason: str, apply: bool) -> None:
    """Go back to an offset: the committer judges the records from there on again.

    Use it for a table that was restored to an older state. Records whose uuid or application version the readable
    history contains are DUPLICATE; the others are committed again, and get a second outcome.
    """
    change = _Change(choose=lambda found: operate.rewound(found, offset), reason=reason, apply=apply)
    anyio.run(_set, settings(), change, as_json)


async def _show(configured: Settings, as_json: bool) -> None:
    async with stores_of(configured) as stores:
        opened = Concurrently(partial(open_place, stores, configured.dataset))
        gone = await opened.of(partial(_gone, configured))
        table = Table(opened.required())
        if gone is not None:
            versions = await table.shown_versions()
            sampled = await sample(table, versions, report=_progress(len(versions)))
            _print(table.uri, sampled, None, gone, as_json=as_json)
            return
        async with open_kafka_queue(configured.kafka, configured.dataset.queue, join=False) as queue:
            found = await operate.show(queue, table, _progress, Loading(monotonic=monotonic, report=Reading()))
    _print(table.uri, found.table, found.facts, found.refusal, as_json=as_json)


async def _gone(configured: Settings) -> RefusedToRun | None:
    """The error if the staged topic does not exist; else None."""
    async with open_operator(configured.kafka, configured.dataset.queue) as operator:
        try:
            await operator.identity()
        except RefusedToRun as refused:
            if refused.code != "topic_gone":
                raise
            return refused
    return None


def _progress(versions: int) -> Callable[[int], None]:
    return ProgressLine("versions read", versions).add


def _print(
    uri: str, table: Sampled | Loaded, facts: QueueFacts | None, refusal: RefusedToRun | None, *, as_json: bool
) -> None:
    """`facts`: None = the staged topic does not exist."""
    if as_json:
        click.echo(json.dumps(_facts(uri, table, facts, refusal), indent=2))
        return
    applications = ", ".join(f"{a} (version {m.version})" for a, m in sorted(table.marks.items()))
    rows = [
        ("table", uri),
        ("version", str(table.version) if table.version else "no table yet"),
        ("position", _text(table.position)),
        ("applications", applications or "none"),
    ]
    if facts is None:
        rows.append(("topic", "gone"))
    else:
        identity, acknowledged = facts.identity, facts.acknowledged(0)
        rows += [
            ("topic", f"{identity.topic}, id {identity.topic_id}, cluster {identity.cluster_id}"),
            ("log", f"offsets {facts.log_start} to {facts.log_end} (exclusive)"),
            ("acknowledged", "nothing" if acknowledged is None else f"below {acknowledged}"),
        ]
    rows.append(("a committer", "runs" if refusal is None else f"refuses: {refusal.code}"))
    for name, value in rows:
        click.echo(f"{name + ':':<14} {value}")
    if refusal is not None:
        click.echo(f"\n{refusal}")


def _facts(uri: str, table: Sampled | Loaded, facts: QueueFacts | None, refusal: RefusedToRun | None) -> dict[str, Any]:
    return {
        "table": uri,
        "version": table.version,
        "position": _json(table.position),
        "applications": {app_id: asdict(mark) for app_id, mark in sorted(table.marks.items())},
        "topic": None
        if facts is None
        else {
            "topic": facts.identity.topic,
            "topic_id": facts.identity.topic_id,
            "cluster_id": facts.identity.cluster_id,
        },
        "log_start": None if facts is None else facts.log_start,
        "log_end": None if facts is None else facts.log_end,
        "acknowledged": None if facts is None else facts.acknowledged(0),
        "refusal": None if refusal is None else {"code": refusal.code, "message": str(refusal)},
    }


async def _set(configured: Settings, change: _Change, as_json: bool) -> None:
    async with _situation(configured) as found:
        if not found.loaded.version:
            raise SettingsError(
                f"there is no table at {found.loaded.table.uri}: create it first, then set its position"
            )
        target = change.choose(found)
        version = None
        if change.apply:
            require_reason(change.reason)
            version = await operate.write(
                found.loaded,
                Loading(monotonic=monotonic, report=Reading()),
                sources(),
                new_position=target,
                change_marks=lambda marks: marks,
                reason=change.reason,
            )
        _print_change(found, target, version, as_json=as_json)


def _print_change(found: Situation, target: Position, version: int | None, *, as_json: bool) -> None:
    unknown = operate.undecided_below(found, target.next_offset)
    if as_json:
        written = {"version": version, "applied": version is not None, "skipped": unknown}
        click.echo(json.dumps({"before": _json(found.loaded.position), "after": _json(target)} | written))
        return
    click.echo(f"before:  {_text(found.loaded.position)}")
    click.echo(f"after:   {_text(target)}")
    if unknown is None:
        click.echo("skips:   an unknown number of records: it is not known which records below it have an outcome")
    elif unknown:
        click.echo(
            f"skips:   {unknown} offsets below {target.next_offset} that have no known outcome: their records get "
            "UNDECIDED, and are not committed"
        )
    if version is None:
        click.echo("Nothing was written. Add --apply and --reason to write it.")
    else:
        click.echo(f"Written as version {version}. A committer that refused to run looks again within seconds.")


@asynccontextmanager
async def _situation(configured: Settings) -> AsyncIterator[Situation]:
    """The stores, and the state of table and queue; both stay open during the block."""
    async with stores_of(configured) as stores:
        table = await open_history(stores, configured.dataset)
        async with open_kafka_queue(configured.kafka, configured.dataset.queue, join=False) as queue:
            yield await operate.look(queue, table, Loading(monotonic=monotonic, report=Reading()))


def _json(one: Position | None) -> dict[str, Any] | None:
    return None if one is None else one.shown()


def _text(one: Position | None) -> str:
    if one is None:
        return "none"
    ahead = f", and {len(one.settled)} settled ahead" if one.settled else ""
    return f"next offset {one.next_offset}{ahead} of {one.topic} (id {one.topic_id}), era {one.era}"
