"""A version that holds the records of one producer ends for those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from committerd.committer.deciding import _LOOK_EVERY, DecideOptions
from committerd.committer.members import FormedVersion
from committerd.queue.grouping import GroupLimits, work_of
from committerd_common.messages import Transaction
from tests.committer.bench import Bench, record, staged, until
from tests.lance.operations import config
from tests.table.scene import Scene, read_at

MOST, PART, BATCH_PART = 64 * 30, 64 * 9, 64 * 3
"""A version's shares are multiples of the records between two looks at who waits."""


class Flood(Bench):
    """One producer has more records than a version holds, and those of others come while a version is formed."""

    def __init__(
        self, scene: Scene, *, first: Transaction | None = None, files: int = 1, count: int = 2 * MOST
    ) -> None:
        """`first`: what the producer has staged before. Then it stages `count` Appends of so many files."""
        super().__init__(scene, DecideOptions(verify_files="never", limits=GroupLimits(records=MOST)))
        self.assembler.give_way = self.give_way
        self.comes: str | None = None
        """The producer whose record comes next."""
        if first is not None:
            self.arrive(record(0, first, producer="flood"))
            self.next_offset = 1
        self.flood = self.stage("flood", count=count, files=files)

    def stage(self, producer: str, *, count: int = 1, files: int = 1) -> list[int]:
        offsets = list(range(self.next_offset, self.next_offset + count))
        self.next_offset += count
        names = [f"f{number}" for number in range(files)]
        self.arrive(*(record(offset, staged(*names), producer=producer) for offset in offsets))
        return offsets

    async def give_way(self) -> None:
        if self.comes is not None:
            producer, self.comes = self.comes, None
            self.stage(producer)
            await self.prefetcher.ready([self.intake.pending[-1]])

    async def formed(self, before: FormedVersion | None = None) -> tuple[FormedVersion, int]:
        """The next version, and how many records it settles."""
        if not self.prefetcher.is_ready(self.intake.pending[-1]):
            async with self.prefetching():
                await until(lambda: all(map(self.prefetcher.is_ready, self.intake.pending)))
        made = await self.assembled(before.after if before is not None else None)
        return made, len(made.own.settled.members)


@pytest.fixture
def flood(tmp_path: Path) -> Flood:
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    return Flood(scene)


async def test_a_version_is_full_if_nobody_waits_for_it(flood: Flood) -> None:
    assert (await flood.formed())[1] == MOST
    flood.comes = "flood"
    assert (await flood.formed())[1] == MOST


async def test_a_version_ends_after_its_share_if_others_wait(flood: Flood) -> None:
    flood.comes = "small"
    first, count = await flood.formed()
    assert count == PART
    assert not first.round_left
    second, count = await flood.formed(first)
    assert [one.producer for one in second.own.settled.members] == ["small"]


async def test_the_second_version_of_a_producer_in_a_row_ends_sooner(flood: Flood) -> None:
    first, _ = await flood.formed()
    flood.comes = "small"
    second, count = await flood.formed(first)
    assert count == BATCH_PART
    third, count = await flood.formed(second)
    assert [one.producer for one in third.own.settled.members] == ["small"]
    flood.comes = "other"
    _, count = await flood.formed(third)
    assert count == PART


async def test_a_share_is_larger_if_the_table_has_many_fragments(flood: Flood, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("committerd.committer.assembling.work_of_version", lambda count: MOST // 3 if count else 0)
    share = MOST * 4 // 10
    flood.comes = "small"
    first, count = await flood.formed()
    assert count == share
    second, _ = await flood.formed(first)
    assert [one.producer for one in second.own.settled.members] == ["small"]
    flood.stage("other")
    third, count = await flood.formed(second)  # now both are there from the beginning
    assert count == share + 1
    assert {one.producer for one in third.own.settled.members} == {"flood", "other"}


async def test_records_with_many_files_are_a_share_sooner(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    flood = Flood(scene, files=40, count=MOST // 4)
    work = work_of(staged(*(f"f{number}" for number in range(40))))
    assert work > 8
    flood.comes = "small"
    first, count = await flood.formed()
    looks_every = -(-_LOOK_EVERY // work)
    assert count == -(-PART // work // looks_every) * looks_every < PART // 4
    second, _ = await flood.formed(first)
    assert [one.producer for one in second.own.settled.members] == ["small"]


async def test_few_records_that_are_more_work_than_a_version_are_taken_in_turn(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    flood = Flood(scene, files=40, count=MOST // 8)
    flood.stage("small")
    _, count = await flood.formed()
    assert count == PART // work_of(staged(*(f"f{number}" for number in range(40)))) + 1


async def test_few_records_that_are_less_work_than_a_version_share_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    flood = Flood(scene, count=MOST // 2)
    flood.stage("small")
    assert (await flood.formed())[1] == MOST // 2 + 1


async def test_a_version_does_not_end_before_the_turn_of_a_record_of_its_round_has_come(tmp_path: Path) -> None:
    """The Appends of a round come before its configuration, wherever that is in the queue."""
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    flood = Flood(scene, first=read_at(config(upsert_values={"a": "1"}), 1))
    flood.comes = "small"
    first, count = await flood.formed()
    assert count == MOST - 1
    assert first.round_left == {0}
    flood.comes = "other"
    second = await flood.assembled(first.after, round_left=first.round_left)
    assert [one.offset for one in second.own.settled.members] == [0]


async def test_a_round_that_has_begun_ends_for_nobody(flood: Flood) -> None:
    flood.comes = "small"
    begun = frozenset(flood.flood[:MOST])
    assert len((await flood.assembled(round_left=begun)).own.settled.members) == MOST
