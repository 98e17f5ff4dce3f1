"""The most contended case of `writers` on an S3 server, with nothing and with 60 ms added to every answer.

The server is versitygw on this machine. Both sides reach it by way of toxiproxy, in both cases: it passes bytes on, and
holds each piece of an answer for the time given, however many connections there are, so that connections are not
throttled. That this is so is measured before: raw `put_if_absent`, one at a time and 32 at once.

committerd: 256 commits in flight for 30 s (15 s where nothing is added); the daemon, Kafka and the producers are as in
`writers`. pylance: 32 writers for a shorter time; a call that has begun is waited for. The data files are not in the
bucket: a commit looks at them on neither side. pylance looks afterwards whether each is named in the table once.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

import anyio
import lance
from pydantic import SecretStr

from committerd.commands.stores import Stores
from committerd.ports import Created
from committerd.settings_dynamodb import DynamoDBSettings
from committerd.settings_s3 import S3Settings
from scripts.bench.bench import Bench
from scripts.bench.measuring import race, through_queue
from scripts.bench.pool import rows
from tests.parts.places import StorePlace, s3_place
from tests.parts.s3 import S3Endpoint, Versitygw
from tests.parts.toxiproxy import Toxiproxy

NAME = "s3"
_AT_ONCE, _EACH = 32, 10
_BODY = b"\0" * 1000


def run(bench: Bench) -> None:
    """Each latency, pylance and committerd in turn."""
    plan = bench.plan
    with ExitStack() as stack:
        s3 = stack.enter_context(Versitygw()).endpoint
        proxy = stack.enter_context(Toxiproxy()).proxy(s3.url)
        through = s3.through(proxy.url)
        for _ in range(plan.s3_runs):
            for milliseconds, seconds in plan.s3_race_seconds.items():
                toxic = proxy.add("latency", latency=milliseconds) if milliseconds else None
                _note_requests(bench, through, milliseconds)
                place = _place(s3, through)
                rate = race(bench, place, writers=plan.writers_most, seconds=seconds)
                rate.note(bench, NAME, case(milliseconds), "pylance")
                place = _place(s3, through)
                with bench.daemon(place, durable=True) as daemon:
                    daemon.wait_ready(text="active")
                    rate = through_queue(
                        bench,
                        place,
                        daemon,
                        producers=plan.writers_most,
                        appends=bench.pool.count,
                        seconds=plan.s3_seconds[milliseconds],
                    )
                    daemon.stop()
                rate.note(bench, NAME, case(milliseconds), "committerd")
                if toxic is not None:
                    proxy.remove(toxic)


def case(milliseconds: int) -> str:
    """As it is called in the results."""
    return f"{milliseconds} ms added"


def _place(s3: S3Endpoint, through: S3Endpoint) -> StorePlace:
    """A new table in a new bucket, made without the proxy, and how both sides reach it by the proxy."""
    place = s3_place(s3, proxy=through.url)
    lance.write_dataset(rows([]), place.uri, storage_options=dict(place.storage_options))
    return StorePlace(place.uri, through.storage_options(), place.settings)


def _note_requests(bench: Bench, through: S3Endpoint, milliseconds: int) -> None:
    """Conditional writes by the proxy, with nothing around them: one after the other, then many at once.

    Raises `RuntimeError` when one took less than what was added to it.
    """
    settings = S3Settings(
        endpoint_url=through.url,
        access_key_id=SecretStr(through.access_key),
        secret_access_key=SecretStr(through.secret_key),
        region=through.region,
        addressing_style="path",
    )
    alone, many = anyio.run(_requests, f"s3://{through.make_bucket()}/raw", settings)
    for seconds, what in ((alone, "put"), (many, f"put_{_AT_ONCE}_at_once")):
        for one in seconds:
            bench.results.note(NAME, case(milliseconds), "limit", **{what: (one, "s")})
    least = min(*alone, *many)
    if least * 1000 < milliseconds:
        raise RuntimeError(f"a request took {least * 1000:.1f} ms, although {milliseconds} ms were added to each")
    told = f"{statistics.median(alone) * 1000:.1f} ms alone, {statistics.median(many) * 1000:.1f} ms with many at once"
    bench.tell(f"{NAME}: {case(milliseconds)}: a raw conditional write takes {told}")


async def _requests(uri: str, settings: S3Settings) -> tuple[list[float], list[float]]:
    many: list[float] = []
    async with Stores(settings, DynamoDBSettings()) as stores:
        store = stores.open(uri)

        async def put(number: int) -> float:
            began = time.perf_counter()
            answer = await store.put_if_absent(str(number), _BODY)
            assert isinstance(answer, Created)
            return time.perf_counter() - began

        async def several(first: int) -> None:
            many.extend([await put(number) for number in range(first, first + _EACH)])

        alone = [await put(number) for number in range(-_EACH, 0)]
        async with anyio.create_task_group() as tasks:
            for task in range(_AT_ONCE):
                tasks.start_soon(several, task * _EACH)
    return alone, many
