"""`committerd ingest`: from Kafka's topics, files or another source into a table, each row once."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import click

from committerd.commands.options import branch_option, config_option, dataset_option, json_option, settings
from committerd.errors import SettingsError
from committerd_common.extras import install_line


def require_packages(of: str) -> None:
    """Raises `SettingsError` if the packages of the extra are not installed. `of`: what needs them."""
    if find_spec("lance") is None or find_spec("fastavro") is None:
        raise SettingsError(f"{of} needs pylance and fastavro: {install_line('ingest', distribution='committerd')}")


@click.group(invoke_without_command=True)
@config_option
@dataset_option
@branch_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Decode up to 100 records, show the rows, and write nothing.",
)
@click.pass_context
def ingest(context: click.Context, dry_run: bool) -> None:
    """Bring the records of Kafka's topics, the files of a folder or the rows of another source (ingest.source) into the
    table until SIGTERM, each exactly once.

    Start as many as you like for topics: they share the partitions. A process holds no state and may be killed at any
    moment, because the table says how far it has each partition. The settings are those of group `ingest`;
    `committerd run --help` lists them. With ingest.routes, the process brings topics into several tables, or, with
    --dataset, into this one of them. `committerd run` must serve the table, which must exist unless
    ingest.create_from is set.

    Port 9464 (http.port) serves /metrics, /livez and /readyz. Needs pylance and fastavro (extra `ingest`).
    """
    require_packages("`committerd ingest`")
    if context.invoked_subcommand is not None:
        return
    from committerd.commands.ingest import members, running  # they need pylance

    running.run(members.members(), dry_run=dry_run)


@ingest.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.option("--offset", required=True, help="Offset of the record to go on with; or earliest, or latest.")
@config_option
@dataset_option
@branch_option
@json_option
@click.option("--reason", default="", help="Why, in your words; the version keeps it. Required with --apply.")
@click.option("--apply", is_flag=True, help="Write it. Without it, only say what the table has, and what would change.")
def move(topic: str, partition: int, offset: str, as_json: bool, reason: str, apply: bool) -> None:
    """Say where a partition goes on: after a bad record, or when Kafka has lost records that the table has or lacks.

    Records before the offset are passed over, and those from it on are appended, whether the table has them or not:
    find that out first. With ingest.routes, --dataset says which table. Works while the pipeline runs; its log says
    when the partition goes on.
    """
    from committerd.commands.ingest import members, moving  # they need pylance

    sys.exit(
        moving.move(members.only_settings(), topic, partition, offset, as_json=as_json, reason=reason, apply=apply)
    )


@ingest.command()
@click.argument("split")
@click.option(
    "--rows",
    type=click.Choice(("there", "missing")),
    required=True,
    help="Whether the table has the last rows that were planned.",
)
@config_option
@dataset_option
@branch_option
@json_option
@click.option("--reason", default="", help="Why, in your words; the version keeps it. Required with --apply.")
@click.option("--apply", is_flag=True, help="Write it. Without it, only say why the split is stopped.")
def settle(split: str, rows: str, as_json: bool, reason: str, apply: bool) -> None:
    """Say where a split of a reader goes on, when the table does not say it (`mark_lost`, `mark_released`).

    A folder of files has the split `files`. Look first whether the table has the last rows. Works while the pipeline
    runs; it goes on by itself.
    """
    from committerd.commands.ingest import settling  # needs pylance

    sys.exit(settling.settle(settings(), split, rows, as_json=as_json, reason=reason, apply=apply))


@ingest.command()
@click.option(
    "--reason", "reasons", multiple=True, help="Only records whose reason has this text; may be given several times."
)
@click.option("--topic", "topics", multiple=True, help="Only records that came from this topic; several times too.")
@config_option
@dataset_option
@branch_option
@json_option
@click.option("--apply", is_flag=True, help="Add the rows. Without it, only say which records make rows now.")
def replay(reasons: tuple[str, ...], topics: tuple[str, ...], as_json: bool, apply: bool) -> None:
    """Decode the records in the topic for bad records again, and add their rows to the table, each exactly once.

    Run it when what was wrong is mended: the table has the column, the settings fit, the registry has the schema. A
    record that is bad still stays where it is, with its reason, for the next run. The table says which records were
    replayed; so the command may be killed and run again, and copies of a record make one row. It works while the
    pipeline runs. With ingest.mode upsert, delete or cdc it replays nothing: a later change of the key may be in the
    table.

    The exit code is 1 if a record that is chosen is bad still.
    """
    from committerd.commands.ingest import members, replaying  # they need pylance

    chosen = replaying.Chosen(reasons=reasons, topics=topics)
    sys.exit(replaying.replay(members.only_member(), chosen, as_json=as_json, apply=apply))
