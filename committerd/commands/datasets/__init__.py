"""`committerd datasets`: lists the datasets of the settings, and who commits to each; finds them by their topics."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import anyio
import click

from committerd.commands.datasets.finding import Found, found, names_in, write
from committerd.commands.options import config_option, json_option, served
from committerd.commands.printing import echo_table
from committerd.concurrency import map_each
from committerd.errors import CommitterError, QueueUnavailable, SettingsError
from committerd.kafka.operator import open_operator
from committerd.kafka.options import topics_of
from committerd.settings.load import DatasetsFile, ServedDatasets, SharedSettings, load_datasets_file


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


@click.group(invoke_without_command=True)
@config_option
@json_option
@click.pass_context
def datasets(context: click.Context, as_json: bool) -> None:
    """List the datasets of the settings: who commits to each, and how many records wait.

    It asks Kafka, and no process of committerd. The exit code is 0 if each dataset has a committer, else 1.
    """
    if context.invoked_subcommand is not None:
        return
    listed = anyio.run(_look, served())
    if as_json:
        click.echo(json.dumps({"datasets": [asdict(one) for one in listed]}, indent=2))
    else:
        _print(listed)
    sys.exit(0 if all(one.committer for one in listed) else 1)


class _Pattern(click.ParamType[re.Pattern[str]]):
    name = "pattern"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        try:
            return re.compile(str(value))
        except re.error as error:
            self.fail(f"{value!r} is no regular expression: {error}", param, ctx)


@datasets.command()
@click.argument("pattern", type=_Pattern())
@click.option("--uri", required=True, help="URI of each table, with {name} in place of the dataset's name.")
@config_option
@click.option("--apply", is_flag=True, help="Write the file. Without it, only say what would change.")
@click.option(
    "--every",
    type=click.FloatRange(1),
    help="Look again after so many seconds, until Ctrl-C or SIGTERM. Needs --apply.",
)
def find(pattern: re.Pattern[str], uri: str, apply: bool, every: float | None) -> None:
    """Find datasets by their topics, and name them in the file daemon.datasets_file.

    Each topic {kafka.topic_prefix}NAME.staged is a dataset if the regular expression PATTERN matches the whole NAME.
    Processes that have the file serve a dataset seconds after its topics are there, and no longer once they are gone.
    Datasets that the settings name themselves, and branches, are passed over. Entries of the file whose names do not
    match stay, and so do the settings of the others. If no topic matches, the file stays as it is.
    """
    if every is not None and not apply:
        raise click.UsageError("--every needs --apply")
    shared, file = load_datasets_file()
    with suppress(KeyboardInterrupt):
        anyio.run(_find_again, shared, file, _Wanted(pattern=pattern, uri=uri, apply=apply), every)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    pattern: re.Pattern[str]
    uri: str
    apply: bool


async def _find_again(shared: SharedSettings, file: DatasetsFile, wanted: _Wanted, every: float | None) -> None:
    """Find them once, or every so many seconds. Raises `SettingsError`, `QueueUnavailable` if it is once."""
    while True:
        try:
            await _find(shared, file, wanted)
        except (QueueUnavailable, SettingsError) as error:
            if every is None:
                raise
            click.echo(f"committerd: {error}", err=True)
        if every is None:
            return
        await anyio.sleep(every)


async def _find(shared: SharedSettings, file: DatasetsFile, wanted: _Wanted) -> None:
    async with open_operator(shared.kafka, "datasets") as operator:
        topics = await operator.all_topics()
    names = names_in(topics, wanted.pattern, topic_prefix=shared.kafka.topic_prefix)
    if not names:
        raise SettingsError(
            f"no topic {shared.kafka.topic_prefix}NAME.staged has a NAME that matches {wanted.pattern.pattern!r}"
        )
    changes = found(names, wanted.uri, file, pattern=wanted.pattern)
    if wanted.apply and (changes.differs or not file.path.exists()):
        write(file, changes.content)
    _print_changes(changes, file, applied=wanted.apply)


def _print_changes(changes: Found, file: DatasetsFile, *, applied: bool) -> None:
    lines = (("added", changes.added), ("removed", changes.removed), ("changed", changes.moved))
    for what, names in lines:
        for name in names:
            click.echo(f"{what}: {name}")
    if changes.differs and not applied:
        click.echo(f"Nothing was written: --apply writes {file.path}.")


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


def _print(listed: Sequence[ListedDataset]) -> None:
    if not listed:
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
        for one in listed
    ]
    echo_table(("dataset", "table", "committer", "wait", ""), rows)
