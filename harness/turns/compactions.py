"""Compactions one after the other, as a process of its own.

    python -m harness.turns.compactions SERVERS DATASET URI SECONDS_BETWEEN ROWS ATTEMPTS TIMEOUT

Fragments of ROWS rows are large enough to be left alone.

Ends with its input, and prints what came of each in JSON: [attempts, fragments removed], or the error of one that was
not committed.
"""

from __future__ import annotations

import asyncio
import json
import sys

import lance

from committerd_client import ClientError, CommitClient
from committerd_client.compacting import compact


class Compactions:
    """Compactions of one table."""

    def __init__(self, client: CommitClient, uri: str) -> None:
        self._client, self._uri = client, uri
        self.came_of: list[tuple[int, int] | str] = []

    async def compact(self, *, between: float, rows: int, attempts: int, timeout: float) -> None:
        """Compact small fragments, again and again."""
        while True:
            await asyncio.sleep(between)
            try:
                done = await compact(
                    self._client,
                    lambda: lance.dataset(self._uri),
                    attempts=attempts,
                    timeout=timeout,
                    target_rows_per_fragment=rows,
                )
            except ClientError as error:
                self.came_of.append(f"lost after {error.attempts} attempts: {error}")
                continue
            if done is not None:
                self.came_of.append((done.attempts, done.fragments_removed))


async def _run(
    servers: str, dataset: str, uri: str, *, between: float, rows: int, attempts: int, timeout: float
) -> None:
    async with CommitClient(servers, dataset=dataset, dataset_uri=uri, producer="compactions") as client:
        compactions = Compactions(client, uri)
        working = asyncio.create_task(
            compactions.compact(between=between, rows=rows, attempts=attempts, timeout=timeout)
        )
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([ended, working], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()  # it never ends by itself: this raises
        working.cancel()
        print(json.dumps(compactions.came_of), flush=True)


def main() -> None:
    servers, dataset, uri, between, rows, attempts, timeout = sys.argv[1:]
    work = _run(
        *(servers, dataset, uri),
        between=float(between),
        rows=int(rows),
        attempts=int(attempts),
        timeout=float(timeout),
    )
    asyncio.run(work)


if __name__ == "__main__":
    main()
