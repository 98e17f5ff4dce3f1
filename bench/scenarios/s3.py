"""The most contended case of `writers` on an S3 server, with nothing and with 60 ms added to every response.

Server and proxy are those of `bench.proxied_s3`, or with `--store` those of `bench.proxied_cloud`; both sides use the
proxy in both cases. Raw `put_if_absent`, one at a time and 32 at once, shows first that the proxy does not throttle
connections. committerd: 256 commits in flight for 30 s (15 s where nothing is added); on a cloud until the 4,000 files
that were uploaded for it are committed, if that is sooner. The daemon, Kafka and the producers are as in `writers`.
pylance: 32 writers for a shorter time; a running call is finished. The data files are in the bucket, and the daemon
checks each before it commits it. With 60 ms added, a second run omits this check (`commit.verify_files = never`), which
shows its cost. pylance checks afterwards that the table names each file once.
"""

from __future__ import annotations

import statistics

import anyio

from bench.bench import Bench
from bench.conditional_writes import timed_write
from bench.measuring import PROCESSES_MAX, race, through_queue
from bench.proxied_store import ProxiedStore

NAME = "s3"
_AT_ONCE, _EACH = 32, 10
_BODY = b"\0" * 1000


def run(bench: Bench) -> None:
    """Measure pylance and committerd in turn, at each latency."""
    for _ in range(bench.plan.s3_runs):
        for milliseconds, seconds in bench.plan.s3_race_seconds.items():
            with bench.store.adding(milliseconds):
                _measure(bench, bench.store, milliseconds, race_seconds=seconds)


def _measure(bench: Bench, store: ProxiedStore, milliseconds: int, *, race_seconds: float) -> None:
    plan = bench.plan
    _note_requests(bench, store, milliseconds)
    rate = race(
        bench, store.new_table(None if store.files_max else bench.pool), writers=plan.writers_most, seconds=race_seconds
    )
    rate.note(bench, NAME, case(milliseconds), "pylance")
    for verify_files in ("always", "never") if milliseconds else ("always",):
        place = store.new_table(bench.pool)
        with bench.daemon(place, durable=True, COMMIT__VERIFY_FILES=verify_files) as daemon:
            daemon.wait_ready(text="active")
            rate = through_queue(
                bench,
                place,
                daemon,
                producers=plan.writers_most,
                appends=(store.files_max or bench.pool.count) - PROCESSES_MAX,  # each makes a first commit
                seconds=plan.s3_seconds[milliseconds],
            )
            daemon.stop()
        rate.note(bench, NAME, case(milliseconds, verify_files), "committerd")


def case(milliseconds: int, verify_files: str = "always") -> str:
    """The name of the case in the results."""
    return f"{milliseconds} ms added" + ("" if verify_files == "always" else ", files not checked")


def _note_requests(bench: Bench, store: ProxiedStore, milliseconds: int) -> None:
    """Measure bare conditional writes through the proxy: one after the other, then many at once.

    Raises `RuntimeError` if one took less than the added latency.
    """
    alone, many = anyio.run(_requests, store)
    for seconds, what in ((alone, "put"), (many, f"put_{_AT_ONCE}_at_once")):
        for one in seconds:
            bench.results.note(NAME, case(milliseconds), "limit", **{what: (one, "s")})
    least = min(*alone, *many)
    if least * 1000 < milliseconds:
        raise RuntimeError(f"a request took {least * 1000:.1f} ms, although {milliseconds} ms were added to each")
    told = f"{statistics.median(alone) * 1000:.1f} ms alone, {statistics.median(many) * 1000:.1f} ms with many at once"
    bench.tell(f"{NAME}: {case(milliseconds)}: a raw conditional write takes {told}")


async def _requests(proxied: ProxiedStore) -> tuple[list[float], list[float]]:
    many: list[float] = []
    async with proxied.stores() as stores:
        store = stores.open(proxied.new_folder())

        async def several(first: int) -> None:
            many.extend([await timed_write(store, str(number), _BODY) for number in range(first, first + _EACH)])

        alone = [await timed_write(store, str(number), _BODY) for number in range(-_EACH, 0)]
        async with anyio.create_task_group() as tasks:
            for task in range(_AT_ONCE):
                tasks.start_soon(several, task * _EACH)
    return alone, many
