"""`committerd explain`: what became of one transaction, and what to do next."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import click

from committerd.commands.explain.advice import next_steps
from committerd.commands.explain.trace import Collision, Trace, Tracer, transaction_of
from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    settings,
    table_argument,
)
from committerd.commands.printing import ProgressLine, duration, echo_fields, plain, when
from committerd.commands.system import open_place, stores_of, wall_clock
from committerd.concurrency import Concurrently
from committerd.errors import CommitterError, SettingsError
from committerd.kafka.operator import open_operator
from committerd.queue.outcomes import Status, known_status, status_name
from committerd.settings.load import Settings
from committerd.stores.open import Stores
from committerd.table.sampling import Sampled, sample
from committerd.table.versions import Table
from committerd_common.messages import Member, Refusal

_SHOWN_MAX = 10

IN_TABLE, FAILED, REFUSED, WAITS, UNKNOWN = 0, 1, 3, 4, 5
"""The exit codes; 2 is wrong usage."""
_STATES = {IN_TABLE: "committed", FAILED: "not known", REFUSED: "refused", WAITS: "waiting", UNKNOWN: "no trace"}


@click.command()
@click.argument("transaction")
@table_argument
@config_option
@dataset_option
@branch_option
@json_option
def explain(transaction: str, uri: str | None, name: str | None, as_json: bool) -> None:
    """Say what became of a transaction, by its uuid: what waits before it, where it is, or why it was refused.

    The dataset is that of the settings, or the table at URI. The command looks into the table's versions and the three
    topics, and says which of them no longer reach back far enough. It only reads, and committers may run meanwhile.

    The exit code is 0 if the transaction is in the table, 3 if it was refused, 4 if it waits, 5 if nothing is known of
    it, and 1 if that can't be said because Kafka or the store does not answer.
    """
    found = anyio.run(_look, settings(uri, name), transaction.lower())
    code = _code(found)
    if as_json:
        click.echo(json.dumps(_json(found, code), indent=2))
    else:
        _print(found, code)
    sys.exit(code)


async def _look(configured: Settings, uuid: str) -> Trace:
    trace = Trace(uuid=uuid)
    tracer = Tracer(trace)
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(stores_of(configured))
        seen = Concurrently(partial(_sampled, stores, configured))
        connected = Concurrently(
            partial(stack.enter_async_context, open_operator(configured.kafka, configured.dataset.queue))
        )
        await seen.of(connected.run)
        table: Table | None = None
        versions: Sequence[int] = ()
        try:
            table, versions, queue = seen.required()
            trace.latest, trace.position, trace.pause = queue.version, queue.position, queue.pause
        except SettingsError:
            raise
        except CommitterError as error:
            _unreachable(trace, "table", error)
        try:
            operator = connected.required()
            await tracer.ask_queue(operator)
            status = _status(trace)
            if trace.letter is None and status is not None and status.is_dead_letter:
                await tracer.ask_letter(operator)
        except SettingsError:
            raise
        except CommitterError as error:
            _unreachable(trace, "topics", error)
        if table is not None and "table" not in trace.reach:
            try:
                await tracer.ask_table(table, versions)
                conflicting, operation = _conflict(trace)
                if conflicting:
                    await tracer.compare(table, transaction_of(trace), conflicting, operation)
            except CommitterError as error:
                _unreachable(trace, "table", error)
    return trace


async def _sampled(stores: Stores, configured: Settings) -> tuple[Table, Sequence[int], Sampled]:
    table = Table(await open_place(stores, configured.dataset))
    versions = await table.shown_versions()
    return table, versions, await sample(table, versions, report=ProgressLine("versions read", len(versions)).add)


def _unreachable(trace: Trace, source: str, error: Exception) -> None:
    trace.reach[source] = str(error)
    trace.unreachable = True


def _status(trace: Trace) -> Status | None:
    """The status of the last outcome; None if there is no outcome, or if only a later committerd knows its status."""
    return known_status(trace.answers[-1].outcome.status) if trace.answers else None


def _is_of_later_version(trace: Trace) -> bool:
    """Whether only a later committerd knows what became of the transaction."""
    if trace.answers:
        return _status(trace) is None
    entry = trace.place.entry if trace.place is not None else None
    return isinstance(entry, Refusal) and known_status(entry.status) is None


def _conflict(trace: Trace) -> tuple[int, str]:
    refused = _refusal(trace)
    return (0, "") if refused is None else (refused.conflicting_version, refused.conflicting_operation)


def _refusal(trace: Trace) -> Any:
    """The outcome or the entry by which the transaction was not committed; None if it was, or has none."""
    if trace.answers:
        return None if _status(trace) in (Status.COMMITTED, Status.DUPLICATE) else trace.answers[-1].outcome
    entry = trace.place.entry if trace.place is not None else None
    if isinstance(entry, Refusal) and known_status(entry.status) is not Status.DUPLICATE:
        return entry
    return None


def _code(trace: Trace) -> int:
    if trace.waiting is not None:
        return WAITS
    if _is_of_later_version(trace):
        return FAILED
    if _refusal(trace) is not None:
        return REFUSED
    if trace.answers or trace.place is not None:
        return IN_TABLE
    return FAILED if trace.unreachable else UNKNOWN


def _json(trace: Trace, code: int) -> dict[str, Any]:
    refused, place = _refusal(trace), trace.place
    status, reason = _outcome(trace)
    return {
        "uuid": trace.uuid,
        "state": _STATES[code].replace(" ", "_"),
        "status": status,
        "reason": reason,
        "message": refused.message if refused is not None else "",
        "latest_version": trace.latest,
        "waiting": None
        if trace.waiting is None
        else {
            "offset": trace.waiting.record.offset,
            "timestamp_ms": trace.waiting.record.timestamp_ms,
            "ahead": trace.waiting.ahead,
            "held_back": trace.waiting.held_back,
            "paused": None if trace.pause is None else str(trace.pause),
        },
        "outcomes": [
            {
                "status": status_name(one.outcome.status),
                "reason": one.outcome.reason,
                "message": one.outcome.message,
                "version": one.outcome.version,
                "read_version": one.outcome.read_version,
                "operation": one.outcome.operation,
                "producer": one.outcome.producer,
                "offset": one.outcome.offset,
                "timestamp_ms": one.timestamp_ms,
                "queued_ms": one.outcome.queued_ms,
                "commit_ms": one.outcome.commit_ms,
            }
            for one in trace.answers
        ],
        "version": None
        if place is None
        else {
            "version": place.version,
            "timestamp_ms": place.timestamp_ms,
            "operation": _operation(trace),
            "offset": place.entry.offset if place.entry is not None else None,
            "read_version": place.entry.read_version if place.entry is not None else None,
            "from_queue": place.settled.ours,
            "together_with": [
                {"uuid": one.uuid, "operation": one.operation or place.settled.operation, "producer": one.producer}
                for one in _others(trace)
            ],
        },
        "collision": None
        if trace.collision is None
        else {name: getattr(trace.collision, name) for name in Collision.__dataclass_fields__},
        "dead_letter": trace.letter.offset if trace.letter is not None else None,
        "next_steps": _next(trace, code),
        "not_searched": trace.reach,
    }


def _outcome(trace: Trace) -> tuple[str, str]:
    """Status and reason; empty where there are none."""
    if trace.answers:
        return status_name(trace.answers[-1].outcome.status), trace.answers[-1].outcome.reason
    if trace.place is None:
        return "", ""
    entry = trace.place.entry
    return (status_name(entry.status), entry.reason) if isinstance(entry, Refusal) else (Status.COMMITTED.value, "")


def _operation(trace: Trace) -> str:
    assert trace.place is not None
    entry = trace.place.entry
    return (entry.operation if entry is not None else "") or trace.place.settled.operation


def _others(trace: Trace) -> Sequence[Member]:
    if trace.place is None or not isinstance(trace.place.entry, Member):
        return ()
    return [one for one in trace.place.settled.members if one.uuid != trace.uuid]


def _next(trace: Trace, code: int) -> list[str]:
    status, reason = _outcome(trace)
    if trace.waiting is not None:
        if trace.waiting.held_back:
            return ["see which Kafka transaction is open: `committerd topics transactions`"]
        if trace.pause is not None:
            return ["end the pause: `committerd resume`"]
        return ["wait; `committerd status` says whether a committer runs, and how long the oldest record has waited"]
    if code == UNKNOWN:
        return [
            "see whether the producer stages to this queue, and whether Kafka has acknowledged the record. It is safe "
            "to stage the same bytes again, unless the sources above no longer reach back to when it was staged"
        ]
    if _is_of_later_version(trace):
        return [
            f"ask with the committerd that commits to this table: it knows status {status}, which this one does not"
        ]
    if not status:
        return ["ask again when all sources answer"]
    steps = next_steps(Status(status), reason)
    if trace.letter is not None:
        steps.append(f"see the record: `committerd dead show {trace.letter.offset}`")
    return steps


def _print(trace: Trace, code: int) -> None:
    now_ms = int(wall_clock().timestamp() * 1000)
    status, reason = _outcome(trace)
    fields = [
        ("transaction", trace.uuid),
        ("state", f"{_STATES[code]} {f'({status} {reason}'.rstrip()})" if status else _STATES[code]),
    ]
    if trace.waiting is not None:
        one = trace.waiting
        age = duration(max(now_ms - one.record.timestamp_ms, 0))
        fields.append(("waits", f"at offset {one.record.offset} for {age}, behind {one.ahead} records"))
        if one.held_back:
            fields.append(("held back", "an open Kafka transaction must end before a committer can read it"))
        if trace.pause is not None:
            fields.append(("paused", f"the queue is {trace.pause}"))
    for answer in trace.answers:
        outcome = answer.outcome
        said = f"{status_name(outcome.status)} {outcome.reason}".rstrip()
        fields.append(("outcome", f"{said}, of the record at offset {outcome.offset}, {when(answer.timestamp_ms)}"))
        if outcome.message:
            fields.append(("message", outcome.message))
    fields += _place_fields(trace)
    if trace.collision is not None:
        fields += _collision_fields(trace.collision)
    if trace.letter is not None:
        fields.append(("dead letter", f"offset {trace.letter.offset}, written {when(trace.letter.timestamp_ms)}"))
    fields += [(f"not all of {source}" if source != "table" else "table", why) for source, why in trace.reach.items()]
    echo_fields(fields)
    click.echo("\nWhat to do:")
    for step in _next(trace, code):
        click.echo(f"  - {plain(step)}")


def _place_fields(trace: Trace) -> list[tuple[str, str]]:
    place = trace.place
    if place is None:
        return []
    entry = place.entry
    did = "was refused by" if isinstance(entry, Refusal) and _refusal(trace) is not None else "is in"
    by = "" if place.settled.ours else ", which another writer has committed without the queue"
    fields = [
        (
            "version",
            f"it {did} version {place.version}, of {when(place.timestamp_ms)}, as {_operation(trace) or 'unknown'}{by}",
        )
    ]
    if entry is None:
        return fields
    if entry.producer:
        fields.append(("producer", entry.producer))
    fields.append(("read version", f"{entry.read_version}; {_judged(entry.read_version, place.version)}"))
    if isinstance(entry, Member):
        if entry.note:
            fields.append(("rebased", entry.note))
        if not trace.answers:
            fields.append(("record", f"offset {entry.offset}"))
    elif not trace.answers:
        fields.append(("message", entry.message))
    others = _others(trace)
    if others:
        shown = ", ".join(f"{one.uuid}{f' of {one.producer}' if one.producer else ''}" for one in others[:_SHOWN_MAX])
        more = f" and {len(others) - _SHOWN_MAX} more (--json has all)" if len(others) > _SHOWN_MAX else ""
        fields.append(("together with", f"{len(others)} others: {shown}{more}"))
    return fields


def _judged(read_version: int, version: int) -> str:
    if read_version == 0:
        return "an Append of any version, or a create"
    if read_version >= version - 1:
        return "nothing was committed between"
    first, last = read_version + 1, version - 1
    return f"judged against version {first}" if first == last else f"judged against versions {first} to {last}"


def _collision_fields(one: Collision) -> list[tuple[str, str]]:
    if one.gone:
        return [("conflict", f"with version {one.version} ({one.operation}), which was cleaned up since")]
    who = f" of {', '.join(one.producers)}" if one.producers else ""
    whose = f", transaction {one.uuids[0]}" if len(one.uuids) == 1 else f", {len(one.uuids)} transactions"
    fields = [("conflict", f"with version {one.version}: {one.operation}{who}{whose}")]
    both = []
    if one.fragments:
        more = ", ..." if len(one.fragments) > _SHOWN_MAX else ""
        both.append(f"fragments {', '.join(map(str, one.fragments[:_SHOWN_MAX]))}{more}")
    if one.keys:
        both.append(f"{one.keys} keys")
    both += [f"configuration {', '.join(one.config_keys)}"] * bool(one.config_keys)
    both += [f"indices {', '.join(one.indices)}"] * bool(one.indices)
    return [*fields, ("both touch", "; ".join(both))] if both else fields
