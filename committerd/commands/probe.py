"""`committerd probe`: tests whether a store keeps a table safe."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict

import anyio
import click

from committerd.commands.options import (
    branch_option,
    config_option,
    dataset_option,
    json_option,
    named_branch,
    settings,
)
from committerd.commands.system import open_branch, stores_of, wall_clock
from committerd.settings.load import Settings, StorageSettings, load_storage_settings
from committerd.stores.probing import Check
from committerd.stores.probing import probe as try_out


@click.command()
@click.argument("uri", required=False)
@config_option
@dataset_option
@branch_option
@json_option
def probe(uri: str | None, as_json: bool) -> None:
    """Try out whether the store at URI (default: the dataset's) keeps a table safe.

    Several writers put one new key at the same time: the store must tell exactly one that it created it. The probe then
    reads a range and the end of an object, and tries the order of a listing, copies and deletes. It creates its objects
    in the table's _versions folder, under names that no reader of Lance takes for a manifest, and deletes them
    afterwards. The table need not exist, but a branch must. `committerd run` does the same when it starts.

    The exit code is 0 if the store did everything right, else 1.
    """
    sys.exit(anyio.run(_main, uri, as_json))


async def _main(uri: str | None, as_json: bool) -> int:
    storage: Settings | StorageSettings
    if uri is None:
        storage = configured = settings()
        uri, branch = configured.dataset.uri, configured.dataset.branch
    else:
        storage, branch = load_storage_settings(), named_branch()
    async with stores_of(storage) as stores:
        store = await open_branch(stores, uri, branch)
        checks = await try_out(store, now=wall_clock(), new_uuid=uuid.uuid4)
        _print(store.uri, checks, advice=stores.versioning_advice, as_json=as_json)
    return 0 if all(check.good for check in checks) else 1


def _print(uri: str, checks: Sequence[Check], *, advice: str, as_json: bool) -> None:
    good = all(check.good for check in checks)
    if as_json:
        shown = [{**asdict(check), "good": check.good} for check in checks]
        click.echo(json.dumps({"uri": uri, "good": good, "versioned": bool(advice), "checks": shown}, indent=2))
        return
    for check in checks:
        click.echo(f"{check.name + ':':<14} {'good' if check.good else check.fault} ({check.seconds * 1000:.0f} ms)")
    if good:
        click.echo(f"{uri} keeps a table safe.")
    else:
        click.echo(f"{uri} must not hold a table that is committed to: `committerd run` would refuse.")
    if advice:
        click.echo(f"Note: {advice}.")
