"""Says where a partition goes on, in the table."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import click
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from committerd.commands.ingest.parts import client_of, open_admin, pipeline_name, reading_table, table_of
from committerd.commands.lance_options import client_access
from committerd.commands.options import require_reason
from committerd.commands.printing import Reading
from committerd.commands.system import monotonic, open_place, sources, stores_of
from committerd.committer import operate
from committerd.committer.loading import Loading, load
from committerd.errors import QueueUnavailable, SettingsError
from committerd.settings.load import Settings
from committerd.table.versions import Table as Versions
from committerd_client.headers import App
from committerd_ingest.kafka_facts import Topics
from committerd_ingest.marks import Note, app_id_of
from committerd_ingest.records import Partition
from committerd_ingest.table import now_ms


def move(
    configured: Settings, topic: str, partition: int, offset: str, *, as_json: bool, reason: str, apply: bool
) -> int:
    """Run the command; returns the exit code. Raises `SettingsError`, and the errors of the client."""
    if apply:
        require_reason(reason)
    return asyncio.run(
        _move(configured, Partition(topic, partition), offset, as_json=as_json, reason=reason if apply else None)
    )


async def _move(configured: Settings, partition: Partition, wanted: str, *, as_json: bool, reason: str | None) -> int:
    access = client_access(configured)
    topics = Topics(partial(open_admin, configured), operation="Describe")
    try:
        cluster_id, topic_id = await topics.identity(partition.topic)
        if not topic_id:
            raise SettingsError(f"Kafka has no topic {partition.topic}")
        start, end = await topics.bounds(partition)
    except UnknownTopicOrPartitionError as error:
        raise SettingsError(str(error)) from error
    except KafkaError as error:
        raise QueueUnavailable(f"Kafka: {error}") from error
    finally:
        topics.close()
    offset = _offset(wanted, start, end)
    app_id = app_id_of(pipeline_name(configured), cluster_id, partition)
    client = client_of(configured, access)
    table = table_of(configured, access, client)
    with reading_table(configured):
        said = await table.says(app_id)
    if said is None:
        raise SettingsError(f"there is no table at {configured.dataset.place}")
    mark = said.mark
    if mark is not None and mark.version >= 0 and (mark.version, mark.run) == (offset, topic_id):
        raise SettingsError(f"{partition} is at offset {offset} already")
    known = mark.version if mark is not None and mark.version >= 0 else None
    if not as_json:
        was = "nothing, or has forgotten it" if known is None else f"the records up to offset {known}"
        click.echo(f"{partition} has records from offset {start} to {end}. The table has {was}.")
    if reason is not None:
        forward = mark is not None and known is not None and mark.run == topic_id and offset > known
        after = known if forward else None if offset == 0 else 0
        note = Note(topic_id=topic_id, offset=offset, at_ms=now_ms())
        async with client:
            if known is not None and not forward:
                await release(configured, app_id, reason)
            passed = await table.write_note(app_id, note, App(app_id, offset, topic_id, after), reason=reason)
        if passed:
            raise SettingsError(
                f"nothing was written: the pipeline has reached offset {offset} of {partition} meanwhile. Look at what "
                "the table has now: the same command without --apply"
            )
    if as_json:
        shown = {"partition": str(partition), "app_id": app_id, "was": known, "offset": offset}
        click.echo(json.dumps(shown | {"written": reason is not None}))
    elif reason is None:
        click.echo(f"Nothing was written. Add --apply and --reason to go on at offset {offset}.")
    else:
        click.echo(f"The pipeline goes on at offset {offset}.")
    return 0


def _offset(wanted: str, start: int, end: int) -> int:
    if wanted in ("earliest", "latest"):
        return start if wanted == "earliest" else end
    if not wanted.isdecimal():
        raise click.BadParameter(f"{wanted!r} is neither a number nor earliest nor latest", param_hint="--offset")
    if not start <= int(wanted) <= end:
        raise SettingsError(f"--offset {wanted}: the partition has records from offset {start} to {end}")
    return int(wanted)


async def release(configured: Settings, app_id: str, reason: str) -> None:
    """Release the mark: transactions of a process that believes in it are refused from now on."""
    async with stores_of(configured) as stores:
        loading = Loading(monotonic=monotonic, report=Reading(), later=True)
        table = await load(Versions(await open_place(stores, configured.dataset)), loading)
        await operate.write_released(table, loading, sources(), app_id, reason=reason)
