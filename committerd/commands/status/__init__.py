"""`committerd status`: prints the state of one dataset, from its table and its queue."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

import anyio
import click

from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    settings,
    table_argument,
)
from committerd.commands.printing import duration, echo_counts, echo_fields, echo_table, plain, size, when
from committerd.commands.status.queue import QueueState
from committerd.commands.status.table import TableSummary, VersionSummary, look_at_table
from committerd.commands.system import open_place, stores_of, wall_clock
from committerd.concurrency import Concurrently
from committerd.errors import CommitterError, SettingsError
from committerd.kafka.operator import open_operator
from committerd.maintenance.left_alone import Failure
from committerd.memory import return_large_blocks
from committerd.settings.load import Settings
from committerd.stores.open import Stores
from committerd.table.versions import Table

_FRAGMENTS_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    """The known state of the dataset."""

    name: str
    now_ms: int
    table: TableSummary | None
    """None = the store did not respond, or the table can't be read."""
    queue: QueueState | None
    """None = Kafka did not respond."""
    problems: list[str]


@click.command()
@table_argument
@click.option(
    "--versions",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many versions to read; outcomes and growth come from them.",
)
@config_option
@dataset_option
@branch_option
@json_option
def status(uri: str | None, name: str | None, versions: int, as_json: bool) -> None:
    """Print where a dataset stands: version, position, lag, age of what waits, last commits, growth, members.

    The dataset is that of the settings, or the table at URI.

    The command only reads, and committers may run meanwhile. If Kafka or the store can't be reached, it prints the
    state of the other.

    The exit code is 0 if the whole state is known and nothing is wrong, else 1. It is wrong if no committer runs, if
    a committer would refuse to run, or if settings of the topics are wrong.
    """
    return_large_blocks()
    found = anyio.run(_look, settings(uri, name), versions)
    if as_json:
        click.echo(json.dumps(_json(found), indent=2))
    else:
        _print(found)
    sys.exit(1 if found.problems or (found.queue is not None and found.queue.refusal is not None) else 0)


async def _look(configured: Settings, versions: int) -> _Status:
    problems: list[str] = []
    table, queue = None, None

    async def look_at(stores: Stores) -> TableSummary:
        return await look_at_table(Table(await open_place(stores, configured.dataset)), versions)

    async with AsyncExitStack() as stack:
        try:
            operator = await stack.enter_async_context(open_operator(configured.kafka, configured.dataset.queue))
            queue = QueueState(operator)
            # Before the table: it must hold every outcome that was published before it is read.
            await queue.look_first()
        except SettingsError:
            raise
        except CommitterError as error:
            problems.append(str(error))
        stores = await stack.enter_async_context(stores_of(configured))
        queue_part = Concurrently(queue.look_then if queue is not None else _nothing)
        try:
            table = await queue_part.of(lambda: look_at(stores))
            problems += table.damaged
        except CommitterError as error:
            problems.append(f"{configured.dataset.place}: {error.code}: {error}")
        if queue_part.failed is not None:
            raise queue_part.failed
        if queue is not None:
            if table is not None:
                await queue.compare(table.position, table_exists=bool(table.versions))
            problems += queue.problems
    now_ms = int(wall_clock().timestamp() * 1000)
    return _Status(name=configured.dataset.queue, now_ms=now_ms, table=table, queue=queue, problems=problems)


async def _nothing() -> None:
    """Stands for the queue when Kafka does not respond."""


def _json(found: _Status) -> dict[str, Any]:
    return {
        "dataset": found.name,
        "table": None if found.table is None else _table_json(found.table),
        "queue": None if found.queue is None else _queue_json(found, found.queue),
        "problems": found.problems,
    }


def _table_json(table: TableSummary) -> dict[str, Any]:
    position, growth = table.position, _growth(table)
    return {
        "uri": table.uri,
        "version": table.versions[0].version if table.versions else 0,
        "position": None if position is None else position.shown(),
        "paused": None if table.pause is None else asdict(table.pause),
        "versions": [
            {
                "version": one.version,
                "timestamp_ms": one.timestamp_ms,
                "operation": one.operation,
                "from_queue": one.from_queue,
                "committed": one.committed,
                "refused": one.refused,
                "manifest_bytes": one.manifest_bytes,
                "fragments": one.fragments,
                "data_bytes": one.data_bytes,
            }
            for one in table.versions
        ],
        "answers": [
            {"status": status, "reason": reason, "count": count} for (status, reason), count in table.outcomes().items()
        ],
        "growth": growth,
        "versions_in_all": table.versions_in_all,
        "maintenance": table.maintenance,
        "left_alone": [asdict(one) for one in table.left_alone],
    }


def _growth(table: TableSummary) -> dict[str, int] | None:
    """The growth from the oldest of the versions to the newest; None if there are fewer than two."""
    if len(table.versions) < 2:
        return None
    new, old = table.versions[0], table.versions[-1]
    return {
        "versions": new.version - old.version,
        "milliseconds": new.timestamp_ms - old.timestamp_ms,
        "manifest_bytes": new.manifest_bytes - old.manifest_bytes,
        "fragments": new.fragments - old.fragments,
        "data_bytes": new.data_bytes - old.data_bytes,
    }


def _queue_json(found: _Status, queue: QueueState) -> dict[str, Any]:
    oldest, position = queue.oldest, found.table.position if found.table is not None else None
    return {
        "topic": None if queue.identity is None else asdict(queue.identity),
        "log_start": queue.bounds[0] if queue.bounds else None,
        "log_end": queue.bounds[1] if queue.bounds else None,
        "acknowledged": queue.acknowledged.offset if queue.acknowledged else None,
        "oldest_read_version": queue.oldest_read_version,
        "pending": queue.pending(position) if found.table is not None else None,
        "held_back": queue.held_back,
        "open_transactions": [asdict(one) for one in queue.transactions],
        "oldest_unread": oldest
        and {
            "offset": oldest.offset,
            "timestamp_ms": oldest.timestamp_ms,
            "age_ms": found.now_ms - oldest.timestamp_ms,
        },
        "most_waiting": [{"producer": name, "records": count} for name, count in queue.most_waiting.items()],
        "retention_ms": queue.retention_ms,
        "group": None if queue.group is None else asdict(queue.group),
        "refusal": queue.refusal and {"code": queue.refusal.code, "message": str(queue.refusal)},
    }


def _print(found: _Status) -> None:
    fields = [("dataset", found.name)]
    if found.table is not None:
        fields += _table_fields(found.table, found.now_ms)
    if found.queue is not None:
        fields += _queue_fields(found, found.queue)
    echo_fields(fields)
    if found.table is not None and found.table.versions:
        click.echo("")
        echo_table(
            ("version", "when", "operation", "by", "committed", "refused", "manifest", "fragments"),
            [_line(one) for one in found.table.versions],
        )
        outcomes = found.table.outcomes()
        if outcomes:
            click.echo("\nOutcomes in these versions:")
            echo_counts({f"{status} {reason}".rstrip(): count for (status, reason), count in outcomes.items()})
    if found.queue is not None and found.queue.refusal is not None:
        click.echo(f"\nA committer refuses to run: {found.queue.refusal}")
    if found.problems:
        click.echo("\nProblems:")
    for problem in found.problems:
        click.echo(f"  - {problem}")


def _line(one: VersionSummary) -> tuple[object, ...]:
    by = "queue" if one.from_queue else "others"
    operation = one.operation or "unknown"
    counts = (one.committed, one.refused)
    return (one.version, when(one.timestamp_ms), operation, by, *counts, size(one.manifest_bytes), one.fragments)


def _table_fields(table: TableSummary, now_ms: int) -> list[tuple[str, str]]:
    if not table.versions:
        return [("table", table.uri), ("version", "no table yet: records wait until somebody creates it")]
    latest, position, growth = table.versions[0], table.position, _growth(table)
    ago = duration(max(now_ms - latest.timestamp_ms, 0))
    fields = [
        ("table", table.uri),
        ("version", f"{latest.version}, committed {when(latest.timestamp_ms)} ({ago} ago)"),
        (
            "size",
            f"manifest {size(latest.manifest_bytes)}, {latest.fragments} fragments, data {size(latest.data_bytes)}",
        ),
    ]
    if growth is not None:
        fields.append(
            (
                "growth",
                f"manifest {size(growth['manifest_bytes'])}, {growth['fragments']} fragments, data "
                f"{size(growth['data_bytes'])} in {growth['versions']} versions and {duration(growth['milliseconds'])}",
            )
        )
    if table.pause is not None:
        fields.append(("paused", f"the queue is {plain(str(table.pause))}. `committerd resume` ends that"))
    fields.append(("maintenance", _maintenance(table, now_ms)))
    fields += [("left alone", _left_alone(one, now_ms)) for one in table.left_alone]
    if position is None:
        return [*fields, ("position", "none: no committer has committed to this table")]
    ahead = f", and {len(position.settled)} settled ahead" if position.settled else ""
    where = f"{position.topic} (id {position.topic_id}), era {position.era}"
    return [*fields, ("position", f"next offset {position.next_offset}{ahead} of {where}")]


def _maintenance(table: TableSummary, now_ms: int) -> str:
    last = table.maintenance
    if last is None:
        return f"none yet; {table.versions_in_all} versions"

    def ago(name: str) -> str:
        return f"{duration(max(now_ms - last[name], 0))} ago" if name in last else "unknown"

    passed_over = last.get("passed_over", 0)
    left = f", {passed_over} objects that it could not read or delete (its output names them)" if passed_over else ""
    return (
        f"cleanup {ago('time_ms')}: {last.get('fragments', 0)} fragments, {last.get('unindexed_rows', 0)} unindexed "
        f"rows, {size(last.get('bytes_in_all', 0))} of files, {size(last.get('unneeded_bytes', 0))} that nothing "
        f"needs{left}; {table.versions_in_all} versions now. When it ended, the last work on fragments was "
        f"{ago('rewrite_ms')}, on indices {ago('index_ms')}"
    )


def _left_alone(one: Failure, now_ms: int) -> str:
    ids = ", ".join(map(str, one.fragments[:_FRAGMENTS_SHOWN_MAX]))
    more = ", ..." if len(one.fragments) > _FRAGMENTS_SHOWN_MAX else ""
    what = f"index {plain(one.index)}" if one.index else f"fragments {ids}{more}"
    wait = duration(one.until_ms - now_ms) if one.until_ms > now_ms else ""
    return f"{what}: {plain(one.why)}; tried again {f'in {wait}' if wait else 'by the next run'}"


def _queue_fields(found: _Status, queue: QueueState) -> list[tuple[str, str]]:
    fields = []
    if queue.bounds is not None:
        fields.append(("log", f"offsets {queue.bounds[0]} to {queue.bounds[1]} (exclusive)"))
    if found.table is not None:
        fields.append(("pending", _pending(found, queue)))
    if queue.most_waiting:
        fields.append(("most waiting", _most_waiting(queue)))
    if queue.held_back:
        fields.append(("held back", _held_back(found, queue)))
    fields.append(("acknowledged", f"below {queue.acknowledged.offset}" if queue.acknowledged else "nothing"))
    if queue.group is not None:
        members = ", ".join(
            f"{one.client_id} at {one.host} ({'active' if one.active else 'standby'})" for one in queue.group.members
        )
        active = next((one for one in queue.group.members if one.active), None)
        fields.append(("active", f"{active.machine} at {active.host}" if active is not None else "none"))
        fields.append(("group", f"{queue.group.name} is {queue.group.state}: {members or 'no members'}"))
    if queue.refusal is not None:
        fields.append(("a committer", f"refuses: {queue.refusal.code}"))
    elif queue.idle:
        fields.append(("a committer", "none runs"))
    elif found.table is not None and queue.identity is not None:
        pause = found.table.pause
        fields.append(
            ("a committer", "runs" if pause is None else f"commits nothing: the queue is {plain(str(pause))}")
        )
    return fields


def _held_back(found: _Status, queue: QueueState) -> str:
    text = f"{queue.held_back} records, by an open Kafka transaction"
    if not queue.transactions:
        return text
    first = queue.transactions[0]
    named = f"of {first.transactional_id!r}" if first.transactional_id is not None else "that no coordinator names"
    since = first.last_timestamp_ms if first.started_ms is None else first.started_ms
    abort = f" --abort {first.producer_id}` ends it" if not first.unknown else "` says why it can't be ended yet"
    return (
        f"{text} {named} (producer {first.producer_id}), open for {duration(max(found.now_ms - since, 0))}: "
        f"`committerd topics transactions{abort}"
    )


def _most_waiting(queue: QueueState) -> str:
    named = ", ".join(f"{plain(name)} {count}" for name, count in queue.most_waiting.items())
    counted = sum(queue.most_waiting.values())
    return f"{named} (of the first {counted} records)"


def _pending(found: _Status, queue: QueueState) -> str:
    assert found.table is not None
    pending = queue.pending(found.table.position)
    if pending is None:
        return "unknown"
    if queue.oldest is None:
        return f"{pending} records"
    age = max(found.now_ms - queue.oldest.timestamp_ms, 0)
    text = f"{pending} records; the oldest waits for {duration(age)}"
    if queue.retention_ms is None or queue.retention_ms <= 0:
        return text
    return f"{text}, {age / queue.retention_ms:.1%} of the {duration(queue.retention_ms)} that the topic keeps"
