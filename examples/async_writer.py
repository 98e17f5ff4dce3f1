"""Append to a Lance table from many tasks at once, through its queue.

    python examples/async_writer.py --bootstrap-servers 127.0.0.1:9092 --dataset events --uri /data/events.lance

The tasks share one client. Each writes its own data files, which needs no coordination, and only the small transaction
that names them goes through Kafka to the committer. Run it as often as you like, on as many machines as you like.
"""

from __future__ import annotations

import argparse
import asyncio

import pyarrow as pa

from committerd_client import CommitClient, CommitTimeout

SCHEMA = pa.schema([("writer", pa.int32()), ("number", pa.int64())])


async def append_rows(client: CommitClient, *, writer: int, batches: int, rows: int) -> None:
    """Append batches one after the other, each in one transaction."""
    for batch in range(batches):
        numbers = range(batch * rows, (batch + 1) * rows)
        table = pa.table([pa.array([writer] * rows, pa.int32()), pa.array(numbers, pa.int64())], schema=SCHEMA)
        try:
            version = (await client.append(table)).version
        except CommitTimeout as error:
            # The outcome is unknown. The same transaction is safe to commit again: the table gets it only once.
            version = (await client.commit(error.work, timeout=600)).version
        print(f"writer {writer} batch {batch}: version {version}")


async def run(arguments: argparse.Namespace) -> None:
    """Run all writers concurrently."""
    async with CommitClient(
        arguments.bootstrap_servers, dataset=arguments.dataset, dataset_uri=arguments.uri, producer="async_writer"
    ) as client:
        created = await client.create(SCHEMA, exist_ok=True)
        print(f"the table is there, version {created.version}")
        async with asyncio.TaskGroup() as tasks:
            for writer in range(arguments.writers):
                tasks.create_task(append_rows(client, writer=writer, batches=arguments.batches, rows=arguments.rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092", help="Kafka; default %(default)s")
    parser.add_argument("--dataset", required=True, help="name of the dataset, as in the committer's settings")
    parser.add_argument("--uri", required=True, help="where the table is, as in the committer's settings")
    parser.add_argument("--writers", type=int, default=8, help="tasks that append at once; default %(default)s")
    parser.add_argument("--batches", type=int, default=10, help="appends of each; default %(default)s")
    parser.add_argument("--rows", type=int, default=1000, help="rows in each append; default %(default)s")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
