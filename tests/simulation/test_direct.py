"""`committerd commit` on a store that fails: its result is true of the table, whichever responses were lost."""

from __future__ import annotations

import random
from collections import Counter

import anyio
import pytest

from committerd.committer import direct
from committerd.committer.direct import DirectOutcome
from committerd.errors import StoreUnavailable
from committerd.lance.format.manifest_file import decode
from committerd.queue.outcomes import Status
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.versions import Table
from committerd_common.messages import Transaction
from committerd_common.paths import VERSIONS
from tests.simulation.faults import Rates, Weather
from tests.simulation.loop import run_virtual
from tests.simulation.process import EPOCH
from tests.simulation.staging import append, new_uuid, overwrite
from tests.simulation.store import Bucket, FakeStore

STORM = Rates(refused=0.1, lost=0.3, doubled=0.1, latency=0.01)
WRITERS = 4
EACH = 5


@pytest.mark.parametrize("seed", range(20))
def test_what_several_writers_are_told_is_true_of_the_table(seed: int) -> None:
    bucket = Bucket()
    told: dict[str, DirectOutcome | None] = {}

    async def commit(transaction: Transaction, rng: random.Random) -> None:
        table = Table(FakeStore(bucket, Weather(rng=rng, rates=STORM)))
        sources = Sources(wall_clock=lambda: EPOCH, random=rng, new_uuid=lambda: new_uuid(rng))
        try:
            told[transaction.uuid] = await direct.commit(
                table, transaction, options=PrepareOptions(), sources=sources, backoff=Backoff(rng)
            )
        except StoreUnavailable:
            told[transaction.uuid] = None

    async def write(name: int) -> None:
        rng = random.Random(f"{seed} {name}")
        for number in range(EACH):
            await commit(append(new_uuid(rng), [f"{name}-{number}.lance"]), rng)

    async def main() -> None:
        rng = random.Random(seed)
        while not bucket.objects:
            await commit(overwrite(new_uuid(rng), ["first.lance"]), rng)
        async with anyio.create_task_group() as tasks:
            for name in range(WRITERS):
                tasks.start_soon(write, name)
        await anyio.sleep(600)  # until all requests in flight have arrived

    run_virtual(main)
    manifests = [decode(bucket.objects[key], len(bucket.objects[key])) for key in bucket.list(VERSIONS)]
    found = {file.transaction.uuid: file.version for file in manifests if file.transaction is not None}
    assert len(found) == len(manifests), Counter(file.version for file in manifests)
    committed = {uuid: answer.version for uuid, answer in told.items() if answer and answer.status is Status.COMMITTED}
    assert len(told) > WRITERS * EACH
    assert found == committed
