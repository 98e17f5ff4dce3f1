"""`committerd app`: the marks of replayable applications."""

from __future__ import annotations

import json
from datetime import UTC, datetime

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
from committerd.commands.printing import ProgressLine, Reading, tell_history
from committerd.commands.system import monotonic, open_place, sources, stores_of
from committerd.committer import operate
from committerd.committer.loading import Loaded, Loading, load
from committerd.errors import SettingsError
from committerd.queue.position import AppMark, Marks
from committerd.table.sampling import Sampled, sample
from committerd.table.versions import Table


@click.group()
def app() -> None:
    """Applications that count their units of work (header app-id), such as Spark streaming queries."""


@app.command("list")
@config_option
@dataset_option
@branch_option
@json_option
def list_marks(as_json: bool) -> None:
    """List the applications that the table remembers, with what each has committed last, the newest first."""
    configured = settings()

    async def main() -> Marks:
        async with stores_of(configured) as stores:
            return (await _sampled(Table(await open_place(stores, configured.dataset)))).marks

    marks = [(app_id, mark) for app_id, mark in anyio.run(main).items() if not mark.released]
    if not marks and not as_json:
        click.echo("The table remembers no application.")
    for app_id, mark in sorted(marks, key=lambda item: (-item[1].used_ms, item[0])):
        used = datetime.fromtimestamp(mark.used_ms / 1000, UTC).isoformat(timespec="seconds")
        if as_json:
            known = {"app_id": app_id, "run": mark.run, "app_version": mark.version, "version": mark.table_version}
            click.echo(json.dumps(known | {"used": used}))
        else:
            click.echo(f"{app_id}: version {mark.version} of run {mark.run or '(none)'}, committed {used}")


@app.command()
@click.argument("app_id")
@config_option
@dataset_option
@branch_option
@json_option
@click.option("--reason", default="", help="Why, in your words; the version keeps it. Required with --apply.")
@click.option("--apply", is_flag=True, help="Write the version. Without it, only say what would be written.")
def release(app_id: str, as_json: bool, reason: str, apply: bool) -> None:
    """Let a new run of APP_ID count from 0 again.

    Use it for an application that has lost its checkpoint, or has given it up on purpose. Its next records are
    committed even if an earlier run has committed the same work: make sure that it does not read its input from the
    start.
    """
    configured = settings()

    async def main() -> tuple[AppMark, int | None]:
        async with stores_of(configured) as stores:
            table = Table(await open_place(stores, configured.dataset))
            if not apply:
                return _released(await _sampled(table), table.uri, app_id), None
            require_reason(reason)
            tell_history(await table.latest_version() or 0)
            loading = Loading(monotonic=monotonic, report=Reading(), later=True)
            loaded = await load(table, loading)
            mark = _released(loaded, table.uri, app_id)
            return mark, await operate.write_released(loaded, loading, sources(), app_id, reason=reason)

    mark, version = anyio.run(main)
    if as_json:
        click.echo(json.dumps({"app_id": app_id, "run": mark.run, "app_version": mark.version, "version": version}))
        return
    click.echo(f"{app_id}: run {mark.run or '(none)'} has committed version {mark.version} of its work")
    click.echo(
        "Nothing was written. Add --apply and --reason to release it."
        if version is None
        else f"Released in version {version}: the next run may count from 0."
    )


async def _sampled(table: Table) -> Sampled:
    versions = await table.shown_versions()
    return await sample(table, versions, report=ProgressLine("versions read", len(versions)).add)


def _released(found: Sampled | Loaded, uri: str, app_id: str) -> AppMark:
    """The mark that is to be released. Raises `SettingsError` if there is none."""
    if not found.version:
        raise SettingsError(f"there is no table at {uri}")
    operate.released(found.marks, app_id)
    return found.marks[app_id]
