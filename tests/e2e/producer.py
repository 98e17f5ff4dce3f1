"""A producer as a process of its own: writes fragments, commits them through the queue, and prints the results.

    python -m tests.e2e.producer SERVERS DATASET URI FIRST_ID COUNT

Prints a JSON list of [uuid, id, status, version], one for each Append of one row.
"""

from __future__ import annotations

import asyncio
import json
import sys

import lance
import pyarrow as pa

from committerd_client import CommitClient, staging

Result = tuple[str, int, str, int | None]


async def _produce(servers: str, dataset: str, uri: str, ids: range) -> list[Result]:
    async with CommitClient(servers, dataset=dataset, dataset_uri=uri, producer=f"producer-{ids.start}") as client:

        async def commit(number: int) -> Result:
            rows = pa.table({"id": pa.array([number], pa.int64())})
            transaction = staging.append(lance.fragment.write_fragments(rows, uri, mode="append"))
            result = await client.commit(transaction)
            return transaction.uuid, number, result.status.name, result.version

        return await asyncio.gather(*(commit(number) for number in ids))


def main() -> None:
    servers, dataset, uri, first, count = sys.argv[1:]
    ids = range(int(first), int(first) + int(count))
    print(json.dumps(asyncio.run(_produce(servers, dataset, uri, ids))))


if __name__ == "__main__":
    main()
