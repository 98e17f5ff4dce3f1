"""`committerd promote`: brings what happened on a branch to the main branch."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from typing import Any

import anyio
import click

from committerd.branches.promoting import Promoted, Promoting
from committerd.branches.reference import base_path_of
from committerd.branches.refusal import PromotionConflict
from committerd.commands.options import config_option, dataset_option, json_option, settings
from committerd.commands.system import sources, stores_of
from committerd.errors import CommitterError
from committerd.settings.load import load_storage_settings
from committerd.table.backoff import Backoff
from committerd_common.uris import canonical_uri


@click.command()
@click.argument("branch")
@click.argument("uri", required=False)
@click.option("--into", type=click.Choice(["main"]), default="main", help="The branch that gets it; only main can.")
@click.option("--dry-run", is_flag=True, help="Say what would land, or what conflicts; write nothing.")
@click.option(
    "--trust-rewrites",
    type=click.Choice(["marked", "all"]),
    default="marked",
    help="As setting commit.trust_rewrites: through which Rewrites of main rows are followed; the default is marked.",
)
@config_option
@dataset_option
@json_option
def promote(branch: str, uri: str | None, into: str, dry_run: bool, trust_rewrites: str, as_json: bool) -> None:
    """Bring what happened on BRANCH to the main branch of its table, as one version: all of it or nothing.

    URI is the table; without it the table of the settings. Everything that was committed to the branch since it left
    main is brought: rows, schema and configuration; its indices follow if they hold for main. A second run goes on
    after the first. If main has changed what the branch changed too, the command says which transactions conflict, and
    commits nothing.

    It needs no Kafka, and committers may run meanwhile.

    Afterwards main reads data files in the branch's folder: do not delete the branch.
    """
    table = _absolute(uri) if uri is not None else settings().dataset.uri

    async def main() -> Promoted:
        async with stores_of(load_storage_settings()) as stores:
            promoting = Promoting(
                uri=table,
                name=branch,
                open_store=stores.open,
                sources=sources(),
                backoff=Backoff(random.Random()),
                trusts_rewrites=trust_rewrites == "all",
                progress=lambda text: click.echo(text, err=True),
            )
            return await promoting.run(dry=dry_run)

    try:
        done = anyio.run(main)
    except CommitterError as error:
        if not as_json:
            raise
        click.echo(json.dumps(_refusal(error)))
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(_shown(done, dry=dry_run)))
    else:
        _print(done, folder=base_path_of(table, branch), dry=dry_run)


def _absolute(uri: str) -> str:
    place = canonical_uri(uri)
    return uri if "://" in place else os.path.abspath(place)


def _refusal(error: CommitterError) -> dict[str, Any]:
    shown: dict[str, Any] = {"outcome": "refused", "reason": error.code, "message": str(error)}
    if isinstance(error, PromotionConflict):
        shown |= {
            "branch_version": error.branch_version,
            "branch_operation": error.branch_operation,
            "conflicting_version": error.version,
            "conflicting_operation": error.operation,
            "rule": error.rule,
        }
    return shown


def _shown(done: Promoted, *, dry: bool) -> dict[str, Any]:
    outcome = "nothing" if not done.version else "would_promote" if dry else "promoted"
    return {
        "outcome": outcome,
        "version": done.version or done.earlier_version,
        "first": done.first,
        "last": done.last or done.earlier,
        "fast_forward": done.fast_forward and bool(done.version),
        "transactions": len(done.steps),
        "fragments_in_branch": done.needed,
        "indices": list(done.indices_brought),
        "index_version": done.index_version,
        "indices_left_out": list(done.indices),
    }


def _print(done: Promoted, *, folder: str, dry: bool) -> None:
    name = done.branch.name
    if not done.version:
        if done.earlier:
            click.echo(
                f"Nothing to promote: branch {name!r} is in main up to its version {done.earlier}, as version "
                f"{done.earlier_version} of main."
            )
        else:
            click.echo(f"Nothing to promote: branch {name!r} has changed no row, column or setting since it left main.")
    else:
        counts = Counter(str(step.kind) for step in done.steps)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        verb = "would be" if dry else "are"
        moved = "main had not moved" if done.fast_forward else f"judged against main up to version {done.main}"
        click.echo(f"Versions {done.first} to {done.last} of branch {name!r} {verb} version {done.version} of main")
        click.echo(f"  {len(done.steps)} transactions: {kinds}; {moved}")
    if done.indices_brought:
        verb = "would follow" if dry else "followed"
        where = f" in version {done.index_version}" if done.index_version else ""
        click.echo(f"  indices that {verb}{where}: {', '.join(done.indices_brought)}")
    if done.indices:
        click.echo(f"  indices that main does not get: {', '.join(done.indices)}. Build them on main")
    if done.needed:
        click.echo(
            f"  main has {done.needed} fragments with data files in {folder}: deleting the branch would lose their "
            "rows. A compaction of main moves rows home; run this command again to see how many are left"
        )
