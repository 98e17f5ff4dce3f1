"""`committerd recreate`: drops a table and makes it anew, empty, under the same queue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import click

from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    require_reason,
    settings,
    table_argument,
)
from committerd.commands.printing import ProgressLine, Reading, echo_fields, size
from committerd.commands.system import monotonic, open_history, sources, stores_of
from committerd.committer import operate
from committerd.committer.loading import Loading
from committerd.committer.operate import Situation
from committerd.concurrency import for_each, map_each
from committerd.errors import CommitterError, SettingsError
from committerd.kafka.member import open_kafka_queue
from committerd.kafka.operator import open_operator
from committerd.lance.versions.draft import CreateOptions
from committerd.settings.load import Settings
from committerd.stores.port import ObjectEntry, ObjectStore
from committerd.table.versions import Table
from committerd_common.messages import Transaction
from committerd_common.paths import NamingScheme, manifest_key

_FOLDERS = ("data", "_deletions", "_indices", "_transactions", "_refs", "tree", "_maintenance", "_versions")
"""All that Lance and committerd write into a table's folder; other files there are left alone."""
_AT_ONCE = 32
_STABLE_ROW_IDS = 2  # Lance: feature_flags.rs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    like: str | None
    stable_row_ids: bool | None
    storage_version: str | None
    discard: bool
    reason: str
    apply: bool


@click.command()
@table_argument
@click.option(
    "--like",
    metavar="FILE",
    help="Give the new table the columns of this file (Parquet, Arrow, CSV, JSON lines or Lance) instead of "
    "those of the old table. Needed if the table is gone. Needs pylance.",
)
@click.option("--stable-row-ids/--no-stable-row-ids", default=None, help="By default as in the old table.")
@click.option("--data-storage-version", "storage_version", help="Of Lance's files. By default as in the old table.")
@click.option("--discard-waiting", is_flag=True, help="Go on even if staged records wait; the new table settles them.")
@click.option("--reason", default="", help="Why, in your words; the version keeps it. Required with --apply.")
@click.option("--apply", is_flag=True, help="Drop the table and create it. Without it, only say what would be done.")
@config_option
@dataset_option
@branch_option
@json_option
def recreate(
    uri: str | None,
    name: str | None,
    like: str | None,
    stable_row_ids: bool | None,
    storage_version: str | None,
    discard_waiting: bool,
    reason: str,
    apply: bool,
    as_json: bool,
) -> None:
    """Drop the table, and create it anew: empty, at version 1, with the same columns and configuration.

    All versions, rows, indices, tags and branches of the old table are deleted for good; clones of it elsewhere lose
    the files that they share with it. Its queue is kept: the new table carries the position in it, so committers go on
    with the next record, and each record gets one outcome. Records that wait are counted, and the command does nothing
    while there are any, unless --discard-waiting says that their rows may go. Marks of applications and jobs are
    dropped with the rows that they are about.

    Stop the committers and the maintenance of the table first. To replace rows and columns while everything runs, use
    `overwrite` of the client; `recreate` is for what an Overwrite can't change.
    """
    asked = _Asked(
        like=like,
        stable_row_ids=stable_row_ids,
        storage_version=storage_version,
        discard=discard_waiting,
        reason=reason,
        apply=apply,
    )
    anyio.run(_recreate, settings(uri, name), asked, as_json)


async def _recreate(configured: Settings, asked: _Asked, as_json: bool) -> None:
    if configured.dataset.branch:
        raise SettingsError(
            f"a branch is not recreated: delete {configured.dataset.branch!r} with pylance "
            "(dataset.branches.delete), create it again, and run `committerd position adopt`"
        )
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(stores_of(configured))
        table = await open_history(stores, configured.dataset)
        async with open_operator(configured.kafka, configured.dataset.queue) as operator:
            members = len((await operator.group()).members)
        queue = await stack.enter_async_context(
            open_kafka_queue(configured.kafka, configured.dataset.queue, join=False)
        )
        found = await operate.look(queue, table, Loading(monotonic=monotonic, report=Reading()))
        position = operate.recreated(found)
        waiting = found.facts.log_end - position.next_offset - len(position.settled)
        transaction, create = _new_table(found, asked, configured)
        files = await _files(table.store)
        facts = {
            "table": table.uri,
            "version": found.loaded.version,
            "files": len(files),
            "bytes": sum(one.size for one in files),
            "waiting": waiting,
            "committers": members,
            "next_offset": position.next_offset,
            "era": position.era,
            "columns": sum(one.parent_id == -1 for one in transaction.overwrite.schema),
        }
        version = None
        if asked.apply:
            _require_may(asked, members=members, waiting=waiting, name=configured.dataset.queue)
            scheme = found.loaded.table.scheme or NamingScheme.V2
            last = manifest_key(found.loaded.version, scheme) if found.loaded.version else None
            await _drop(table, files, last)
            version = await operate.create(
                Table(table.store),
                sources(),
                transaction=transaction,
                options=create,
                position=position,
                pause=found.loaded.pause,
                reason=asked.reason,
            )
    if as_json:
        click.echo(json.dumps({**facts, "applied": version is not None}))
    else:
        _print(facts, applied=version is not None)


def _require_may(asked: _Asked, *, members: int, waiting: int, name: str) -> None:
    require_reason(asked.reason)
    if members:
        raise CommitterError(
            f"dataset {name!r} has committers that run ({members}): stop them, and the table's maintenance, and try "
            "again",
            code="committers_run",
        )
    if waiting and not asked.discard:
        raise CommitterError(
            f"the queue has records without an outcome ({waiting}): start a committer and let it settle them, or add "
            "--discard-waiting: then they get their outcomes on the new table, and records that name files or versions "
            "of the old table are refused, as dead letters",
            code="records_wait",
        )


def _new_table(found: Situation, asked: _Asked, configured: Settings) -> tuple[Transaction, CreateOptions]:
    """The Overwrite that creates the new table, and how."""
    transaction, manifest = Transaction(), found.loaded.manifest
    overwrite = transaction.overwrite
    overwrite.SetInParent()
    outline = None if manifest is None else manifest.outline
    if outline is not None:
        overwrite.schema.extend(outline.fields)
        for key, value in outline.schema_metadata.items():
            overwrite.schema_metadata[key] = value
        overwrite.config_upsert_values.update(outline.config)
    elif asked.like is None:
        raise SettingsError(f"there is no table at {found.loaded.table.uri}: give its columns with --like FILE")
    version = asked.storage_version or (outline.data_format.version if outline is not None else None)
    if asked.like is not None:
        like = _like(asked.like, configured, storage_version=version)
        del overwrite.schema[:]
        overwrite.schema.extend(like.schema)
        overwrite.schema_metadata.clear()
        for key, value in like.schema_metadata.items():
            overwrite.schema_metadata[key] = value
    stable = bool(outline is not None and outline.reader_feature_flags & _STABLE_ROW_IDS)
    return transaction, CreateOptions(
        enable_stable_row_ids=stable if asked.stable_row_ids is None else asked.stable_row_ids,
        data_storage_version=version or None,
    )


def _like(path: str, configured: Settings, *, storage_version: str | None) -> Transaction.Overwrite:
    """The schema of a file, as pylance makes it. Raises `SourceError`."""
    from committerd.commands.append.formats import SourceRows
    from committerd.commands.append.sources import sources
    from committerd.commands.lance_options import client_access
    from committerd_client import staging

    access = client_access(configured)
    (source, *_) = sources([path], chosen=None, settings=configured, storage_options=access.storage_options)
    staged = staging.create([], SourceRows(source, None).schema, data_storage_version=storage_version)
    return staged.transaction.overwrite


async def _files(store: ObjectStore) -> list[ObjectEntry]:
    """What the table consists of; the manifests last, and the latest of them as the very last."""

    async def within(folder: str) -> list[ObjectEntry]:
        return [one async for batch in store.walk(f"{folder}/") for one in batch]

    return [one for found in await map_each(_FOLDERS, within) for one in found]


async def _drop(table: Table, files: Sequence[ObjectEntry], last: str | None) -> None:
    """Delete the files. `last`: the latest manifest, which goes last.

    Until then the command can be repeated: the manifest says what the table was, and where the queue is.
    """
    progress = ProgressLine("deleted files", len(files))

    async def delete(one: ObjectEntry) -> None:
        await table.store.delete(one.key)
        progress.add(1)

    await for_each((one for one in files if one.key != last), delete, at_once=_AT_ONCE)
    if last is not None:
        await table.store.delete(last)


def _print(facts: dict[str, object], *, applied: bool) -> None:
    version = facts["version"]
    echo_fields(
        [
            ("table", str(facts["table"])),
            ("drops", f"version {version} and all before it: {facts['files']} files, {size(int(str(facts['bytes'])))}"),
            ("creates", f"version 1, without rows, with {facts['columns']} columns"),
            ("queue", f"goes on at offset {facts['next_offset']}, in era {facts['era']}"),
            ("waiting", f"{facts['waiting']} records without an outcome"),
            ("committers", f"{facts['committers']} run"),
        ]
    )
    click.echo(
        "Done: the table is at version 1. Start its committer."
        if applied
        else "Nothing was changed. Add --apply and --reason to do it."
    )
