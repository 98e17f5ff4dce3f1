"""Says where a split of a reader goes on, in the table, where the table itself does not say it."""

from __future__ import annotations

import asyncio
import json

import click

from committerd.commands.ingest.moving import release
from committerd.commands.ingest.parts import client_of, reader_of, reader_pipeline_of, reading_table, table_of
from committerd.commands.lance_options import client_access
from committerd.commands.options import require_reason
from committerd.errors import SettingsError
from committerd.settings.load import Settings
from committerd_client.headers import App
from committerd_ingest.progress import GoOn, Progress, app_id_of_split, where_to_go_on
from committerd_ingest.table import now_ms


def settle(configured: Settings, split: str, rows: str, *, as_json: bool, reason: str, apply: bool) -> int:
    """Run the command; returns the exit code. Raises `SettingsError`, and the errors of the client."""
    if apply:
        require_reason(reason)
    if configured.ingest.source == "kafka":
        raise SettingsError("ingest.source is kafka, whose partitions have offsets: committerd ingest move")
    return asyncio.run(_settle(configured, split, rows, as_json=as_json, reason=reason if apply else None))


async def _settle(configured: Settings, split: str, rows: str, *, as_json: bool, reason: str | None) -> int:
    access = client_access(configured)
    reader = reader_of(configured, access)
    app_id = app_id_of_split(reader_pipeline_of(configured).name, reader.name, split)
    client = client_of(configured, access)
    table = table_of(configured, access, client)
    with reading_table(configured):
        said = await table.says_of_split(app_id)
    if said is None:
        raise SettingsError(f"there is no table at {configured.dataset.place}")
    found = where_to_go_on(said.mark, said.note)
    if isinstance(found, GoOn):
        raise SettingsError(f"the table says where split {split!r} goes on: there is nothing to settle")
    note = said.note
    token = None if note is None else note.after if rows == "there" else note.before
    if note is None and rows == "there":
        raise SettingsError(
            "the table has no note of a token, so the split can only be read from its beginning: missing"
        )
    if not as_json:
        click.echo(f"{found.text[0].upper()}{found.text[1:]}.")
    if reason is not None:
        plan = 1 if note is None else note.plan + 2
        new = Progress(
            plan=plan,
            before=token,
            after=token,
            at_ms=now_ms(),
            of=f"{reader.name} {split}",
            by="committerd ingest settle",
        )
        async with client:
            if said.mark is not None and said.mark.version >= 0:
                await release(configured, app_id, reason)
            await table.write_note(app_id, new, App(app_id, plan, "", 0), reason=reason)
    if as_json:
        shown = {"split": split, "app_id": app_id, "rows": rows, "token": token, "written": reason is not None}
        click.echo(json.dumps(shown))
    elif reason is None:
        click.echo("Nothing was written. Add --apply and --reason to go on.")
    else:
        click.echo("The split goes on.")
    return 0
