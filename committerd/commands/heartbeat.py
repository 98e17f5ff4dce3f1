"""`committerd heartbeat`: commits one harmless change in the same way as a producer.

Where the settings don't let the committer commit such a change, it would become a dead letter, and an alert. There the
change is staged after its deadline: it takes the same way, and its outcome is EXPIRED.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import anyio
import click

from committerd.commands.options import branch_option, config_option, dataset_option, json_option, settings
from committerd.commands.system import open_place, stores_of, wall_clock
from committerd.daemon.producers_file import producer_of_command
from committerd.errors import SettingsError
from committerd.kafka.options import topics_of, writer_options
from committerd.lance.format.kind import Kind
from committerd.settings.load import Settings
from committerd.table.versions import Table
from committerd_client import CommitClient, CommitResult, Expired
from committerd_client.reexecution import Reexecution
from committerd_common.messages import Transaction

KEY = "heartbeat"
"""The key of table_metadata that each heartbeat overwrites."""
PRODUCER = "committerd-heartbeat"
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@click.command()
@config_option
@dataset_option
@branch_option
@json_option
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for all of it. A change without an outcome by then is not committed later.",
)
def heartbeat(as_json: bool, timeout: float) -> None:
    """Stage one change of the dataset's table, as a producer does, and await its outcome.

    The change sets the key `heartbeat` of the table's metadata to the time, and makes one version. The table must
    exist. Run the command after a change to brokers, credentials or policies; `helm test` does.

    If update_config is not allowed (commit.allowed_operations, commit.producers_file), the change is staged after its
    deadline: the committer answers that it has expired, and commits nothing but its position.
    """
    configured = settings()
    started = time.monotonic()
    result = anyio.run(_beat, configured, timeout)
    seconds = time.monotonic() - started
    name, version = configured.dataset.queue, None if result is None else result.version
    if as_json:
        uuid = None if result is None else result.uuid
        click.echo(json.dumps({"dataset": name, "version": version, "uuid": uuid, "seconds": seconds}))
    elif version is None:
        click.echo(
            f"{name}: answered {seconds:.1f} s after the start. Nothing was committed, because "
            f"{Kind.UPDATE_CONFIG} is not allowed (commit.allowed_operations, commit.producers_file)"
        )
    else:
        click.echo(f"{name}: committed in version {version}, {seconds:.1f} s after the start")


async def _beat(configured: Settings, timeout: float) -> CommitResult | None:
    """Commit the change; returns None if the committer may not, and has answered that it has expired."""
    topics_of(configured.kafka, configured.dataset.queue)  # raises for a name that Kafka does not allow
    producer = producer_of_command(configured.commit.producers_file, PRODUCER)
    deadline = wall_clock() + timedelta(seconds=timeout)
    async with (
        stores_of(configured) as stores,
        CommitClient(
            configured.kafka.bootstrap_servers,
            dataset=configured.dataset.name,
            topic_prefix=configured.kafka.topic_prefix,
            group_prefix=configured.kafka.group_prefix,
            group=configured.kafka.group,
            dataset_uri=configured.dataset.uri,
            branch=configured.dataset.branch,
            producer=PRODUCER,
            producer_key=None if producer is None else producer.key,
            client_id="committerd-heartbeat",
            connect_timeout=timeout,
            kafka_options=writer_options(configured.kafka),
        ) as client,
    ):
        table = Table(await open_place(stores, configured.dataset))

        async def change(_: Reexecution | None = None) -> Transaction:
            version = await table.latest_version()
            if version is None:
                raise SettingsError(
                    f"there is no table at {configured.dataset.place}: a heartbeat changes an existing table. Create "
                    "it, or correct dataset.uri"
                )
            return _transaction(version)

        first = await change()
        left = max((deadline - wall_clock()).total_seconds(), 0.0)
        allowed = configured.commit.allowed_operations
        if Kind.UPDATE_CONFIG in (allowed if producer is None else producer.of(allowed)):
            return await client.commit(first, timeout=left, deadline=deadline, reexecute=change)
        with suppress(Expired):
            return await client.commit(first, timeout=left, deadline=_LONG_AGO)
        return None


def _transaction(read_version: int) -> Transaction:
    made = Transaction(uuid=str(uuid.uuid4()), read_version=read_version)
    entries = made.update_config.table_metadata_updates.update_entries
    entries.add(key=KEY, value=wall_clock().isoformat(timespec="seconds"))
    return made
