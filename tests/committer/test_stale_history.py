"""A record with an old read version waits for what must be read, and those behind it are committed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from committerd.committer import stale_history
from committerd.committer.deciding import DecideOptions
from committerd.committer.head import Head
from committerd.committer.intake import Intake
from committerd.committer.members import FormedVersion
from committerd.errors import StoreUnavailable
from committerd.queue import position
from committerd.queue.port import Record
from committerd.stores.port import Tail
from committerd_common.messages import Transaction
from tests.committer.bench import Bench, record, staged
from tests.lance.operations import delete
from tests.lance.samples import fragment, manifest
from tests.table.scene import Scene, append

VERSIONS = 40


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(stale_history, "_FEW_VERSIONS", 8)
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(*map(fragment, range(4)), version=1))
    table = scene.table()
    for number in range(2, VERSIONS + 1):
        await scene.commit(append(1, fragment(0, name=f"n{number}")), table=table)
    return scene


class Reading:
    """A committer's parts after a restart: nothing is in memory. The store reads nothing while it is `held`."""

    def __init__(self, scene: Scene) -> None:
        self.bench = Bench(scene, DecideOptions(verify_files="never"))
        self.held, self.reads, self.fails, self.notified = anyio.Event(), 0, False, anyio.Event()
        self.get_tail = self.bench.store.get_tail
        self.bench.store.get_tail = self.slow  # type: ignore[method-assign]
        self.held.set()

    async def slow(self, key: str, size: int) -> Tail | None:
        await self.held.wait()
        self.reads += 1
        if self.fails:
            raise StoreUnavailable("503")
        return await self.get_tail(key, size)

    async def head(self) -> Head:
        head = await self.bench.head()
        head.table._manifests.clear()  # these versions are not of a queue, so that Start has read them whole
        return head

    @property
    def intake(self) -> Intake:
        return self.bench.intake

    async def form(self, head: Head) -> FormedVersion | None:
        with anyio.fail_after(60):
            return await self.bench.assembler.assemble(head, self.intake)


def old(offset: int, work: Transaction | None = None, **headers: Any) -> Record:
    made = work or append(2, fragment(0, name=f"old{offset}"))
    made.read_version = 2
    made.uuid = str(uuid4())
    return record(offset, made, **headers)


def new(offset: int, head: Head, **headers: Any) -> Record:
    made = staged(f"new{offset}")
    made.read_version = head.version
    return record(offset, made, **headers)


@pytest.mark.parametrize("work", [None, delete(removed=(1,))], ids=["append", "delete"])
async def test_those_behind_go_on(scene: Scene, work: Transaction | None) -> None:
    reading = Reading(scene)
    head = await reading.head()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.bench.decider.stale_history.run, head.table, reading.notified.set)
        await anyio.wait_all_tasks_blocked()
        reading.held, reads = anyio.Event(), reading.reads
        reading.bench.arrive(old(0, work), new(1, head), new(2, head))
        formed = await reading.form(head)
        assert formed is not None
        assert [member.offset for member in formed.own.settled.members] == [1, 2]
        assert (formed.after.position.next_offset, tuple(formed.after.position.settled)) == (0, (1, 2))
        reading.intake.settle(formed.after.position)
        assert await reading.form(formed.after) is None
        reading.held.set()
        with anyio.fail_after(60):
            await reading.notified.wait()
        assert reading.reads > reads
        reads = reading.reads
        last = await reading.form(formed.after)
        assert last is not None
        assert [member.offset for member in last.own.settled.members] == [0]
        assert last.after.position.next_offset == 3
        assert reading.reads - reads <= 1, "it is judged by what was read meanwhile"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "headers", [{"producer": "p"}, {"app_id": "a", "app_version": "1"}], ids=["producer", "application"]
)
async def test_those_of_the_same_writer_keep_their_order(scene: Scene, headers: dict[str, Any]) -> None:
    reading = Reading(scene)
    head = await reading.head()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.bench.decider.stale_history.run, head.table, reading.notified.set)
        await anyio.wait_all_tasks_blocked()
        reading.held = anyio.Event()
        reading.bench.arrive(old(0, **headers), new(1, head), new(2, head, **headers), new(3, head))
        formed = await reading.form(head)
        assert formed is not None
        assert [member.offset for member in formed.own.settled.members] == [1]
        tasks.cancel_scope.cancel()


async def test_no_more_are_refused_ahead_of_it_than_a_position_can_carry(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position, "RANGES_MAX", 200)  # fewer than a version settles
    reading = Reading(scene)
    head = await reading.head()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.bench.decider.stale_history.run, head.table, reading.notified.set)
        await anyio.wait_all_tasks_blocked()
        reading.held, room = anyio.Event(), head.position.room
        late = [new(offset, head, deadline_ms="1") for offset in range(1, 2 * room)]
        reading.bench.arrive(old(0), *late)
        formed = await reading.form(head)
        assert formed is not None
        assert tuple(formed.after.position.settled) == tuple(range(1, room + 1))
        tasks.cancel_scope.cancel()


async def test_a_store_that_fails_is_met_again_when_the_record_is_judged(scene: Scene) -> None:
    reading = Reading(scene)
    head = await reading.head()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.bench.decider.stale_history.run, head.table, reading.notified.set)
        await anyio.wait_all_tasks_blocked()
        reading.fails = True
        reading.bench.arrive(old(0))
        assert await reading.form(head) is None
        with anyio.fail_after(60):
            await reading.notified.wait()
        with pytest.raises(StoreUnavailable):
            await reading.form(head)
        reading.fails = False
        formed = await reading.form(head)
        assert formed is not None
        assert [member.offset for member in formed.own.settled.members] == [0]
        tasks.cancel_scope.cancel()


async def test_without_a_reader_beside_it_judging_reads_what_it_needs(scene: Scene) -> None:
    reading = Reading(scene)
    head = await reading.head()
    reading.bench.arrive(old(0), new(1, head))
    formed = await reading.form(head)
    assert formed is not None
    assert [member.offset for member in formed.own.settled.members] == [0, 1]
