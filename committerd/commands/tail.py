"""`committerd tail`: prints outcomes as they are published."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import anyio
import click

from committerd.commands.options import branch_option, config_option, dataset_option, json_option, settings
from committerd.commands.printing import plain, since_ms, when
from committerd.commands.system import wall_clock
from committerd.kafka.operator import TopicOperator, open_operator
from committerd.queue.outcomes import Status, status_name
from committerd.settings.load import Settings
from committerd.waiting import SILENT_SECONDS
from committerd_common.messages import DecodeError, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which outcomes are printed; an empty set chooses all."""

    producers: frozenset[str]
    statuses: frozenset[str]
    reasons: frozenset[str]
    operations: frozenset[str]
    app_ids: frozenset[str]

    def takes(self, outcome: Outcome) -> bool:
        """Whether the outcome is chosen, apart from the application."""
        return all(
            not chosen or value in chosen
            for chosen, value in (
                (self.producers, outcome.producer),
                (self.statuses, status_name(outcome.status)),
                (self.reasons, outcome.reason),
                (self.operations, outcome.operation),
            )
        )


@click.command()
@click.option("--producer", "producers", multiple=True, help="Only of this producer; may be given several times.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([one.value for one in Status], case_sensitive=False),
    help="Only with this status; may be given several times.",
)
@click.option("--reason", "reasons", multiple=True, help="Only with this reason; may be given several times.")
@click.option("--operation", "operations", multiple=True, help="Only of this operation, such as append; several too.")
@click.option(
    "--app-id",
    "app_ids",
    multiple=True,
    help="Only of this application; several too. The staged records say it, so their topic is read as well.",
)
@click.option("--since", help="Begin with the outcomes of the last 90m, 12h or 3d, or since a time.")
@config_option
@dataset_option
@branch_option
@json_option
def tail(
    producers: tuple[str, ...],
    statuses: tuple[str, ...],
    reasons: tuple[str, ...],
    operations: tuple[str, ...],
    app_ids: tuple[str, ...],
    since: str | None,
    as_json: bool,
) -> None:
    """Print each outcome as it is published, a line each, until Ctrl-C or until nobody reads the output any more.

    An outcome may be published more than once, and is then printed again.
    """
    wanted = _Wanted(
        producers=frozenset(producers),
        statuses=frozenset(statuses),
        reasons=frozenset(reasons),
        operations=frozenset(operations),
        app_ids=frozenset(app_ids),
    )
    start_ms = None if since is None else since_ms(since, now_ms=int(wall_clock().timestamp() * 1000))
    try:
        anyio.run(_tail, settings(), wanted, start_ms, as_json)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Nothing may be written to it any more, not even by the interpreter at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _tail(configured: Settings, wanted: _Wanted, start_ms: int | None, as_json: bool) -> None:
    async with open_operator(configured.kafka, configured.dataset.queue) as operator:
        topic = operator.topics.outcomes
        if start_ms is None:
            starts = {partition: end for partition, (_, end) in (await operator.bounds(topic)).items()}
        else:
            starts = {partition: start for partition, (start, _) in (await operator.since(topic, start_ms)).items()}
        servers, was_silent = ",".join(configured.kafka.bootstrap_servers), False
        async with aclosing(operator.follow(topic, starts)) as batches:
            async for records, silent_seconds in batches:
                if silent_seconds > SILENT_SECONDS and not was_silent:
                    click.echo(f"committerd: Kafka at {servers} has not answered for {silent_seconds:.0f} s", err=True)
                was_silent = silent_seconds > SILENT_SECONDS
                outcomes = [
                    (record.timestamp_ms, outcome)
                    for _, record in records
                    if (outcome := _decoded(record.value)) is not None and wanted.takes(outcome)
                ]
                await _print(operator, outcomes, wanted.app_ids, as_json=as_json)
                if not records and _nobody_reads():
                    return


async def _print(
    operator: TopicOperator, outcomes: Sequence[tuple[int, Outcome]], app_ids: Collection[str], *, as_json: bool
) -> None:
    apps: Mapping[int, str] = {}
    topic_id = ""
    if app_ids and outcomes:
        topic_id = (await operator.identity()).topic_id
        apps = await _apps(operator, {outcome.offset for _, outcome in outcomes if outcome.topic_id == topic_id})
    for timestamp_ms, outcome in outcomes:
        # Offsets of a topic that was deleted and made anew are those of other records.
        app_id = apps.get(outcome.offset, "") if outcome.topic_id == topic_id else ""
        if not app_ids or app_id in app_ids:
            click.echo(_json(timestamp_ms, outcome) if as_json else _line(timestamp_ms, outcome))


async def _apps(operator: TopicOperator, offsets: Collection[int]) -> dict[int, str]:
    """The header app-id of the staged records at these offsets, of those that still exist."""
    found = dict[int, str]()
    if not offsets:
        return found
    start, end = (await operator.bounds(operator.topics.staged))[0]
    ranges = {0: (max(start, min(offsets)), min(end, max(offsets) + 1))}
    async with aclosing(operator.stream(operator.topics.staged, ranges)) as batches:
        async for batch in batches:
            for _, record in batch:
                if record.offset in offsets:
                    found[record.offset] = dict(record.headers).get("app-id", b"").decode("utf-8", "replace")
    return found


def _decoded(value: bytes) -> Outcome | None:
    try:
        return Outcome.FromString(value)
    except DecodeError:
        return None


def _line(timestamp_ms: int, outcome: Outcome) -> str:
    where = f"version {outcome.version}" if outcome.version else outcome.reason
    parts = [
        when(timestamp_ms),
        f"{status_name(outcome.status):<12}",
        outcome.operation or "-",
        outcome.uuid or "(no uuid)",
        where,
    ]
    parts += [f"of {outcome.producer}"] * bool(outcome.producer)
    parts += [outcome.message] * bool(outcome.message)
    return plain("  ".join(parts))


def _json(timestamp_ms: int, outcome: Outcome) -> str:
    names = ("uuid", "version", "read_version", "operation", "reason", "message", "conflicting_version")
    more = ("conflicting_operation", "offset", "era", "queued_ms", "commit_ms", "transactions", "producer")
    known = {name: getattr(outcome, name) for name in (*names, *more)}
    return json.dumps({"timestamp_ms": timestamp_ms, "status": status_name(outcome.status)} | known)


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has ended."""
    try:
        looking = select.poll()
        looking.register(sys.stdout.fileno(), select.POLLERR)
        return bool(looking.poll(0))
    except (OSError, ValueError):
        return False
