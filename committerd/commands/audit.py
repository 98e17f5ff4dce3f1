"""`committerd audit`: prove from the table and the topics that nothing was lost, doubled or reported falsely."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from functools import partial
from itertools import takewhile

import anyio
import click

from committerd.audit.audit import Audit, AuditReport, QueueBounds
from committerd.audit.files import HeldFiles
from committerd.audit.history import AuditedHistory, audited_version
from committerd.audit.spill import Spill
from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    settings,
    table_argument,
)
from committerd.commands.printing import ProgressLine, echo_counts, echo_table
from committerd.commands.system import open_history, stores_of
from committerd.concurrency import map_each
from committerd.errors import CommitterError, CorruptTable
from committerd.kafka.operator import Bounds, TopicOperator, open_operator
from committerd.lance.format.manifest_file import TAIL_BYTES, ShallowManifest
from committerd.memory import return_large_blocks
from committerd.queue.start import era_of
from committerd.settings.load import Settings
from committerd.table.versions import Table
from committerd_common.messages import DecodeError, Outcome

_AT_ONCE = 16
"""Number of versions that are read at once, at most."""
_SMALL_AT_ONCE = 256
"""As `_AT_ONCE`, while no object is larger than the 64 KiB that a first read takes."""
_READ_BYTES = 6 * 1024 * 1024
"""The approximate total size of the versions that are read at once."""
_DECODED_FACTOR = 8
"""Bytes of memory that a decoded transaction takes for each serialized byte."""
_SHOWN_MAX = 100
_EVERYTHING_MS = 2**62
"""A time after all records: stands for a partition that has lost every outcome."""


@click.command()
@table_argument
@click.option(
    "--versions",
    type=click.IntRange(1),
    help="How many versions to read, from the newest on; without it, all. Each is read as a whole.",
)
@config_option
@dataset_option
@branch_option
@json_option
def audit(uri: str | None, name: str | None, versions: int | None, as_json: bool) -> None:
    """Prove from the table and the topics that nothing was lost, doubled or reported falsely.

    Exactly one version must give each staged record below the table's position its outcome, every published outcome
    must agree with that version, no transaction and no version of an application may be committed twice, and
    positions must not go back. Versions that were cleaned up, and records and outcomes that have expired, can't be
    checked; the audit counts them. Committers may run meanwhile. The audit writes nothing.

    The dataset is that of the settings, or the table at URI.

    It takes less than 100 MiB of memory, and a temporary file of up to 150 bytes for each record (in TMPDIR).

    The exit code is 1 if anything was found.
    """
    return_large_blocks()
    report = anyio.run(_audit, settings(uri, name), versions)
    _print(report, as_json=as_json)
    sys.exit(1 if report.findings else 0)


async def _audit(configured: Settings, versions: int | None) -> AuditReport:
    async with (
        AsyncExitStack() as closing,
        stores_of(configured) as stores,
    ):
        table = await open_history(stores, configured.dataset, newest=versions)
        operator = await closing.enter_async_context(open_operator(configured.kafka, configured.dataset.queue))
        spill = closing.enter_context(Spill())
        # Before the table: it must hold every outcome that was published before it is read.
        acknowledged = await operator.acknowledged()
        outcomes = await operator.bounds(operator.topics.outcomes)
        outcomes_since = await _kept_since(operator, outcomes)
        history = AuditedHistory(entries=spill.entries, uuids=spill.uuids)
        await _read_history(table, versions, history)
        identity = await operator.identity()
        log_start, log_end = (await operator.bounds(operator.topics.staged))[0]
        if await operator.identity() != identity:
            raise CommitterError("the topic was deleted and recreated during the audit: audit again", code="contended")
        bounds = QueueBounds(
            identity=identity,
            log_start=log_start,
            log_end=log_end,
            acknowledged=acknowledged.offset if acknowledged else None,
            acknowledged_era=era_of(acknowledged),
            outcomes_since_ms=outcomes_since,
        )
        audited = Audit(bounds, history, outcome_numbers=spill.outcome_numbers)
        await _read_outcomes(operator, outcomes, audited)
        await _read_staged(operator, audited)
        return audited.report()


async def _read_history(table: Table, newest: int | None, history: AuditedHistory) -> None:
    """Read the versions into the history, oldest first. Versions that vanish meanwhile count as cleaned up."""
    listed = (await table.versions())[-newest if newest else 0 :]
    progress, held = ProgressLine("versions read", len(listed)), HeldFiles()
    start, at_once, small = 0, 1, True
    while start < len(listed):
        versions = listed[start : start + at_once]
        if small:
            bodies = list(takewhile(lambda body: body is not None, await table.small_bodies(versions)))
            for version, body in zip(versions, bodies, strict=False):
                _take(version, await _read_version(table, version, held.fragments, body), history, held)
            read, small = len(bodies), len(bodies) == len(versions)
            at_once = min(_SMALL_AT_ONCE, 2 * at_once) if small else 1
        else:
            batch = await map_each(versions, partial(_read_version, table, known=held.fragments))
            for version, one in zip(versions, batch, strict=True):
                _take(version, one, history, held)
            # Only a few large versions fit into memory, and reading them one by one takes no longer.
            largest = max(map(_size, batch), default=0)
            read, small = len(batch), largest <= TAIL_BYTES
            at_once = max(1, min(_AT_ONCE, 2 * at_once, _READ_BYTES // max(largest, 1)))
        progress.add(read)
        start += read


def _size(one: ShallowManifest | str | None) -> int:
    """Its approximate memory in bytes."""
    if one is None or isinstance(one, str) or one.transaction is None:
        return 0
    return len(one.fragments) + _DECODED_FACTOR * one.transaction.ByteSize()


def _take(version: int, one: ShallowManifest | str | None, history: AuditedHistory, held: HeldFiles) -> None:
    if one is None:
        return
    if isinstance(one, str):
        history.unreadable(version, one)
        return
    try:
        misplaced = held.misplaced(one.transaction, one.fragments)
        audited = audited_version(one.outline, one.transaction, misplaced)
    except CorruptTable as error:
        history.unreadable(version, str(error))
    else:
        history.add(audited)


async def _read_version(
    table: Table, version: int, known: bytes, body: bytes | None = None
) -> ShallowManifest | str | None:
    """A version; a sentence about the problem if it can't be read, and None if it does not exist."""
    try:
        return await table.examine(version, known, body=body)
    except CorruptTable as error:
        return str(error)


async def _kept_since(operator: TopicOperator, outcomes: Bounds) -> int:
    """Unix milliseconds from which on no partition has lost an outcome; 0 if none has lost any."""
    since = 0
    for partition, (start, end) in outcomes.items():
        if start == 0:
            continue
        first = _EVERYTHING_MS
        async with aclosing(operator.stream(operator.topics.outcomes, {partition: (start, end)})) as batches:
            async for batch in batches:
                first = batch[0][1].timestamp_ms
                break
        since = max(since, first)
    return since


async def _read_outcomes(operator: TopicOperator, bounds: Bounds, audited: Audit) -> None:
    progress = ProgressLine("outcomes read", _records(bounds))
    async with aclosing(operator.stream(operator.topics.outcomes, bounds)) as batches:
        async for batch in batches:
            for partition, record in batch:
                try:
                    outcome = Outcome.FromString(record.value)
                except DecodeError:
                    audited.undecodable_outcome(partition, record.offset)
                else:
                    audited.outcome(outcome)
            progress.add(len(batch))


async def _read_staged(operator: TopicOperator, audited: Audit) -> None:
    bounds = {0: (audited.bounds.log_start, audited.bounds.log_end)}
    progress = ProgressLine("staged records read", _records(bounds))
    async with aclosing(operator.stream(operator.topics.staged, bounds)) as batches:
        async for batch in batches:
            for _, record in batch:
                audited.record(record)
            progress.add(len(batch))


def _records(bounds: Bounds) -> int:
    return sum(end - start for start, end in bounds.values())


def _print(report: AuditReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(
            json.dumps(
                {
                    "good": not report.findings,
                    "findings": [asdict(one) for one in report.findings],
                    "findings_by_code": dict(report.by_code),
                    "counts": dict(report.counts),
                    "unchecked": dict(report.unchecked),
                },
                indent=2,
            )
        )
        return
    click.echo("Looked at:")
    echo_counts(report.counts)
    if report.unchecked:
        click.echo("\nCould not be checked:")
        echo_counts(report.unchecked)
    click.echo("")
    if not report.findings:
        click.echo("Nothing was found: what could be checked is neither lost, doubled nor reported falsely.")
        return
    total = sum(report.by_code.values())
    shown = report.findings[:_SHOWN_MAX]
    click.echo(
        f"Found: {total}" + (f", of which the first {len(shown)} (--json has more)" if total > len(shown) else "")
    )
    echo_table(
        ("what", "version", "offset", "message"),
        [(f.code, _number(f.version), _number(f.offset), f.message) for f in shown],
    )


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
