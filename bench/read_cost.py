"""The processor time of one read from S3: by the SDK, by `committerd.stores.plain_reads`, and by obstore.

    python -m bench.read_cost

Reads an object of a server on this machine (versitygw, or the server of COMMITTERD_TEST_S3_ENDPOINT), one read after
the other and 64 at once, by each client in turns, and prints the median of the turns. The time is that of all threads
of this process; the server has a process of its own.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import product

import anyio
import obstore
import obstore.store

from committerd.settings.s3 import S3Settings
from committerd.stores.aws import AwsClient
from committerd.stores.s3 import s3_client
from harness.s3 import S3Endpoint, s3_server

TURNS, READS, AT_ONCE = 7, 2000, 64
TAIL = 16 * 1024
"""What is read of a data file: its last bytes."""
BODY = secrets.token_bytes(3 * TAIL)
KEY = "table.lance/data/0123456789abcdef.lance"

Read = Callable[[], Awaitable[object]]


def _reads(client: AwsClient, bucket: str, store: obstore.store.S3Store) -> Mapping[str, Read]:
    """What is measured, by name."""
    at = {"Bucket": bucket, "Key": KEY}

    async def by_obstore() -> object:
        found = await obstore.get_async(store, KEY, options={"range": {"suffix": TAIL}})
        return await found.bytes_async()

    return {
        "HEAD, SDK": lambda: client.send("head_object", KEY, **at),
        "HEAD, obstore": lambda: obstore.head_async(store, KEY),
        "GET of 16 KiB, SDK": lambda: client.send("get_object", KEY, **at, Range=f"bytes=-{TAIL}"),
        "GET of 16 KiB, plain reads": lambda: client.read(KEY, is_one_of_many=True, **at, Range=f"bytes=-{TAIL}"),
        "GET of 16 KiB, obstore": by_obstore,
    }


async def _cost(read: Read, *, reads: int, at_once: int) -> float:
    """Milliseconds of processor time of one read."""

    async def some() -> None:
        for _ in range(reads // at_once):
            await read()

    await read()  # connects
    began = time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(some)
    return 1000 * (time.process_time() - began) / (reads // at_once * at_once)


async def measure(server: S3Endpoint, *, turns: int = TURNS, reads: int = READS) -> Mapping[str, Sequence[float]]:
    """Milliseconds of processor time of one read in each turn, by what is measured."""
    bucket = server.make_bucket()
    server.client().put_object(Bucket=bucket, Key=KEY, Body=BODY)
    settings = S3Settings.model_validate(
        {
            "endpoint_url": server.url,
            "region": server.region,
            "addressing_style": "path",
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
        }
    )
    store = obstore.store.S3Store(
        bucket,
        endpoint=server.url,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    client = s3_client(settings)
    try:
        found: defaultdict[str, list[float]] = defaultdict(list)
        for at_once, _ in product((1, AT_ONCE), range(turns)):
            for name, read in _reads(client, bucket, store).items():
                found[f"{name}, {at_once} at once"].append(await _cost(read, reads=reads, at_once=at_once))
        return found
    finally:
        await client.aclose()


def main() -> None:
    """Measure, and print the figures."""
    with s3_server() as server:
        for name, taken in anyio.run(measure, server).items():
            print(f"{name:40} {statistics.median(taken):.2f} ms ({min(taken):.2f} to {max(taken):.2f})")


if __name__ == "__main__":
    main()
