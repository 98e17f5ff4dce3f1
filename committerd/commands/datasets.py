"""`committerd datasets`: lists the datasets of the settings, and who commits to each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import anyio
import click

from committerd.commands.options import config_option, json_option, served
from committerd.commands.printing import echo_table
from committerd.concurrency import map_each
from committerd.errors import CommitterError
from committerd.kafka.operator import open_operator
from committerd.kafka.options import topics_of
from committerd.settings.load import ServedDatasets


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDataset:
    """What the list says of one dataset."""

    dataset: str
    uri: str
    committer: str | None
    """The client of Kafka that owns the staged topic, and its address; None = nobody commits."""
    unacknowledged: int | None
    """Records without an acknowledged outcome; None = not known."""
    problem: str
    """Why it is not known; empty if it is."""


@click.command()
@config_option
@json_option
def datasets(as_json: bool) -> None:
    """List the datasets of the settings: who commits to each, and how many records wait.

    It asks Kafka, and no process of committerd. The exit code is 0 if each dataset has a committer, else 1.
    """
    found = anyio.run(_look, served())
    if as_json:
        click.echo(json.dumps({"datasets": [asdict(one) for one in found]}, indent=2))
    else:
        _print(found)
    sys.exit(0 if all(one.committer for one in found) else 1)


async def _look(of: ServedDatasets) -> Sequence[ListedDataset]:
    kafka = of.shared.kafka
    async with open_operator(kafka, of.name) as operator:
        owners = await operator.owners()

        async def look(queue: str) -> ListedDataset:
            owner, count, problem = None, None, ""
            try:
                owner = owners.get(topics_of(kafka, queue).staged)
                count = await operator.unacknowledged(queue)
            except CommitterError as error:  # also for a name that is too long for a topic
                problem = str(error)
            return ListedDataset(
                dataset=queue,
                uri=of.datasets[queue].dataset.place,
                committer=None if owner is None else f"{owner.client_id} at {owner.host}",
                unacknowledged=count,
                problem=problem,
            )

        return await map_each(sorted(of.datasets), look)


def _print(found: Sequence[ListedDataset]) -> None:
    if not found:
        click.echo("The settings name no dataset.")
        return
    rows = [
        (
            one.dataset,
            one.uri,
            one.committer or "NOBODY",
            "?" if one.unacknowledged is None else one.unacknowledged,
            one.problem,
        )
        for one in found
    ]
    echo_table(("dataset", "table", "committer", "wait", ""), rows)
