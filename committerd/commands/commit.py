"""`committerd commit`: commits staged files to a table, without Kafka."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import click

from committerd.commands.committing import pylance_for
from committerd.commands.options import branch_option, config_option, json_option, named_branch
from committerd.commands.system import open_branch, sources
from committerd.committer import direct
from committerd.errors import CommitterError, InvalidRequest, RequestError
from committerd.lance.operations.permissions import ANYTHING
from committerd.queue.outcomes import Status
from committerd.settings.load import load_storage_settings
from committerd.stores.clouds import cloud_settings
from committerd.stores.open import Stores
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions
from committerd.table.fetching import BuildWithPylance
from committerd.table.judge import explain
from committerd.table.knowledge import Knowledge
from committerd.table.prepare import create_options
from committerd.table.refusals import refused_by
from committerd.table.versions import Table
from committerd_common.branches import branch_uri
from committerd_common.request import decode_transaction

TRANSACTION_BYTES_MAX = 2**31 - 1
"""Protobuf's limit of a message."""


@click.command()
@click.argument("dataset")
@click.argument("staged", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--options",
    "options_json",
    default="{}",
    help="JSON for creates, as in the header create-options: "
    "enable_stable_row_ids, enable_v2_manifest_paths, data_storage_version.",
)
@click.option(
    "--create-only", is_flag=True, help="If the table exists, refuse with a retryable conflict (header create-only)."
)
@click.option(
    "--verify-files/--no-verify-files",
    default=True,
    help="Check before the commit that the staged files exist and have the size that the record gives; the default.",
)
@click.option(
    "--trust-rewrites",
    type=click.Choice(["marked", "all"]),
    default="marked",
    help="As setting commit.trust_rewrites: through which Rewrites rows are followed; the default is marked.",
)
@click.option(
    "--mixed-file-versions",
    type=click.Choice(["refuse", "allow"]),
    default="refuse",
    help="As setting commit.mixed_file_versions: whether a transaction may bring the first data files of another "
    "data_storage_version than the table's; the default is refuse.",
)
@click.option(
    "--unknown",
    type=click.Choice(["refuse", "pylance"]),
    default="refuse",
    help="As setting commit.unknown: what to do where committerd's knowledge of Lance ends; the default is refuse.",
)
@click.option("--no-durable", is_flag=True, help="Don't sync to disk: a crash of the machine may lose the commit.")
@click.option(
    "--explain", "explained", is_flag=True, help="Print each version that was checked, the rule and its verdict."
)
@config_option
@branch_option
@json_option
def commit(
    dataset: str,
    staged: tuple[Path, ...],
    options_json: str,
    create_only: bool,
    verify_files: bool,
    trust_rewrites: str,
    mixed_file_versions: str,
    unknown: str,
    no_durable: bool,
    explained: bool,
    as_json: bool,
) -> None:
    """Commit STAGED files to the table at DATASET, without Kafka.

    Each file holds one serialized lance.table.Transaction, as a staged record's value or a .txn file does. They are
    committed in the order given, each on its own. The queue's position in the table stays as it is.

    The exit code is 0 if each is in the table now (committed or duplicate), else 1.
    """
    options = PrepareOptions(
        allowed=replace(ANYTHING, mixed_file_versions=mixed_file_versions == "allow"),
        verify_files=verify_files,
        create=create_options(_object(options_json)),
        create_only=create_only,
        copy_clone=True,
        trusts_rewrites=trust_rewrites == "all",
    )

    branch = named_branch()

    async def main() -> bool:
        storage = load_storage_settings()
        good = True
        durable, clouds = storage.store.durable and not no_durable, cloud_settings(storage)
        async with (
            pylance_for(branch_uri(dataset, branch), unknown) as pylance,
            Stores(storage.s3, storage.dynamodb, clouds=clouds, durable=durable) as stores,
        ):
            table = Table(await open_branch(stores, dataset, branch))
            for path in staged:
                outcome = await _commit(table, path, options, stores, pylance=pylance)
                good = good and outcome.status in (Status.COMMITTED, Status.DUPLICATE)
                _print(path, outcome, explained=explained, as_json=as_json)
        return good

    try:
        good = anyio.run(main)
    except CommitterError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"outcome": "error", "version": 0, "reason": error.code, "message": str(error)}))
        sys.exit(1)
    sys.exit(0 if good else 1)


async def _commit(
    table: Table, path: Path, options: PrepareOptions, stores: Stores, *, pylance: BuildWithPylance | None
) -> direct.DirectOutcome:
    body = await anyio.Path(path).read_bytes()
    try:
        transaction = decode_transaction(body, bytes_max=TRANSACTION_BYTES_MAX)
        return await direct.commit(
            table,
            transaction,
            options=options,
            sources=replace(sources(), knowledge=Knowledge() if pylance is not None else None),
            open_store=stores.open,
            pylance=pylance,
            backoff=Backoff(random.Random()),
        )
    except RequestError as error:
        refused = refused_by(error)
        return direct.DirectOutcome(status=refused.status, reason=refused.reason, message=refused.message)


def _print(path: Path, outcome: direct.DirectOutcome, *, explained: bool, as_json: bool) -> None:
    lines = explain(outcome.checked) if explained else []
    if as_json:
        shown: dict[str, Any] = {
            "outcome": outcome.status.value.lower(),
            "version": outcome.version,
            "reason": outcome.reason,
            "message": outcome.message,
        }
        if outcome.conflicting_version:
            shown["conflicting_version"] = outcome.conflicting_version
            shown["conflicting_operation"] = outcome.conflicting_operation
        if outcome.reserved[1]:
            shown["reserved_first"], shown["reserved_count"] = outcome.reserved
        if explained:
            shown["checked"] = lines
        click.echo(json.dumps(shown))
        return
    for line in lines:
        click.echo(line)
    where = f" version {outcome.version}" if outcome.version else ""
    why = f" ({outcome.reason})" if outcome.reason else ""
    click.echo(f"{path}: {outcome.status.value}{where}{why}")
    if outcome.message:
        click.echo(f"  {outcome.message}")
    if outcome.reserved[1]:
        click.echo(f"  reserved fragment ids {outcome.reserved[0]} to {sum(outcome.reserved) - 1}")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    except (ValueError, RecursionError):
        pass
    raise InvalidRequest(f"--options is {text[:100]!r}; a JSON object is needed", code="create_options")
