"""`committerd resume`: ends the pause of a queue."""

from __future__ import annotations

import json

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
from committerd.commands.pausing import change_pause
from committerd.errors import CommitterError
from committerd.queue.position import Pause


class _NotPaused(CommitterError):
    """There is no pause to end."""

    code = "not_paused"


@click.command()
@table_argument
@click.option("--reason", default="resumed", show_default=True, help="Why, in your words; the version keeps it.")
@config_option
@dataset_option
@branch_option
@json_option
def resume(uri: str | None, name: str | None, reason: str, as_json: bool) -> None:
    """End the pause of a queue: committers go on with the first record that waits.

    The active committer goes on within store.recheck_seconds (10 s by default). If the queue is not paused, the command
    says so, writes nothing, and the exit code is 0.
    """
    ended: list[Pause] = []

    def change(before: Pause | None) -> None:
        if before is None:
            raise _NotPaused("the queue is not paused")
        ended[:] = [before]

    version = None
    try:
        version = anyio.run(lambda: change_pause(settings(uri, name), change, reason=reason))
    except _NotPaused:
        ended.clear()
    if as_json:
        click.echo(json.dumps({"version": version, "ended": str(ended[0]) if ended else None}))
    elif version is None:
        click.echo("The queue is not paused. Nothing was written.")
    else:
        click.echo(f"Resumed in version {version}. It was {ended[0]}")
