"""Compactions one after the other, as a process of its own.

    python -m harness.turns.compactions DATASET LOAD

Ends with its input, and prints what came of each in JSON: [attempts, fragments removed], or the error of one that was
not committed.
"""

from __future__ import annotations

import asyncio
import json
import sys

import lance

from committerd_client import ClientError
from committerd_client.compacting import compact
from harness.turns.load import Dataset, Load, from_arguments


async def _compact(dataset: Dataset, load: Load, came_of: list[tuple[int, int] | str]) -> None:
    """Compact small fragments, again and again."""
    async with dataset.client(producer="compactions") as client:
        while True:
            await asyncio.sleep(load.compact_seconds or 0.0)
            try:
                done = await compact(
                    client,
                    lambda: lance.dataset(dataset.uri),
                    attempts=load.attempts_max,
                    timeout=load.timeout,
                    target_rows_per_fragment=load.compact_rows,
                )
            except ClientError as error:
                came_of.append(f"lost after {error.attempts} attempts: {error}")
                continue
            if done is not None:
                came_of.append((done.attempts, done.fragments_removed))


async def _run(dataset: Dataset, load: Load) -> None:
    came_of: list[tuple[int, int] | str] = []
    working = asyncio.create_task(_compact(dataset, load, came_of))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([ended, working], return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()  # it never ends by itself: this raises
    working.cancel()
    print(json.dumps(came_of), flush=True)


if __name__ == "__main__":
    asyncio.run(_run(*from_arguments()))
