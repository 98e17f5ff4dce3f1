"""Compact a Lance table through its queue while others append to it.

    python examples/compaction.py --bootstrap-servers 127.0.0.1:9092 --dataset events --uri /data/events.lance

Writers append many small batches, each as a fragment of its own. Meanwhile a task rewrites small fragments into large
ones, again and again. It conflicts with no writer.
"""

from __future__ import annotations

import argparse
import asyncio

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from committerd_client import CommitClient, staging
from committerd_client.compacting import compact

SCHEMA = pa.schema([("writer", pa.int32()), ("number", pa.int64())])


async def create_table(client: CommitClient, uri: str) -> None:
    """Create the table. If another process has created it, append the rows of the create to it, here none."""
    staged = staging.create([], SCHEMA)
    await client.commit(staged, reexecute=staging.append_if_exists(staged, lambda: lance.dataset(uri)))


async def append_rows(client: CommitClient, uri: str, *, writer: int, batches: int) -> None:
    """Append one row in each transaction, the worst case for a table."""
    for number in range(batches):
        table = pa.table([pa.array([writer], pa.int32()), pa.array([number], pa.int64())], schema=SCHEMA)
        dataset = await asyncio.to_thread(lance.dataset, uri)
        fragments = await asyncio.to_thread(write_fragments, table, dataset, mode="append")
        await client.commit(staging.append(fragments, dataset=dataset))


async def compact_until(stop: asyncio.Event, client: CommitClient, uri: str) -> None:
    """Rewrite small fragments until the writers have finished, and once after that."""
    last = False
    while not last:
        last = stop.is_set()
        done = await compact(client, lambda: lance.dataset(uri))
        if done is None:
            print("nothing to compact")
            await asyncio.sleep(0.2)
            continue
        print(
            f"version {done.version}: {done.fragments_removed} fragments became {done.fragments_added}, "
            f"in {done.attempts} attempts"
        )


async def run(arguments: argparse.Namespace) -> None:
    """Run all writers and the compaction concurrently."""
    uri = arguments.uri
    async with CommitClient(
        arguments.bootstrap_servers, dataset=arguments.dataset, dataset_uri=uri, producer="compaction"
    ) as client:
        await create_table(client, uri)
        written = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(compact_until(written, client, uri))
            async with asyncio.TaskGroup() as writers:
                for writer in range(arguments.writers):
                    writers.create_task(append_rows(client, uri, writer=writer, batches=arguments.batches))
            written.set()
    table = await asyncio.to_thread(lance.dataset, uri)
    print(f"{table.count_rows()} rows in {len(table.get_fragments())} fragments")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092", help="Kafka; default %(default)s")
    parser.add_argument("--dataset", required=True, help="name of the dataset, as in the committer's settings")
    parser.add_argument("--uri", required=True, help="where the table is, as in the committer's settings")
    parser.add_argument("--writers", type=int, default=8, help="tasks that append at once; default %(default)s")
    parser.add_argument("--batches", type=int, default=50, help="appends of each; default %(default)s")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
