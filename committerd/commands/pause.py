"""`committerd pause`: no committer settles anything until `committerd resume`."""

from __future__ import annotations

import json
from dataclasses import asdict

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
from committerd.commands.system import wall_clock
from committerd.errors import CommitterError
from committerd.queue.outcomes import short
from committerd.queue.position import Pause


@click.command()
@table_argument
@click.option("--reason", required=True, help="Why, in your words; everybody who waits is told.")
@click.option("--by", "who", default="", help="Who pauses it, for whoever asks.")
@config_option
@dataset_option
@branch_option
@json_option
def pause(uri: str | None, name: str | None, reason: str, who: str, as_json: bool) -> None:
    """Pause a queue: committers commit nothing and refuse nothing until `committerd resume`.

    Staged records wait in Kafka, at most for the topic's retention. The pause is one version of the table, so standbys
    and later committers honour it too, and `committerd maintain` begins nothing. When the command returns, no further
    version of the queue follows. Writers that do not use the queue are not stopped: pylance, `committerd commit`,
    `committerd promote`.

    The exit code is 1 if the queue is paused already: its pause stays as it is.
    """
    if not reason.strip():
        raise click.UsageError("--reason needs a text: those who wait want to know why")
    wanted = Pause(reason=short(reason), since_ms=int(wall_clock().timestamp() * 1000), who=short(who))

    def change(before: Pause | None) -> Pause:
        if before is not None:
            raise CommitterError(
                f"the queue is {before}. That pause stays: leave it, or `committerd resume` first", code="paused"
            )
        return wanted

    version = anyio.run(lambda: change_pause(settings(uri, name), change, reason=wanted.reason))
    if as_json:
        click.echo(json.dumps({"version": version, **asdict(wanted)}))
    else:
        click.echo(f"Paused in version {version}: no committer settles a record until `committerd resume`.")
