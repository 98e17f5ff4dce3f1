"""What a version is formed of, and what that may take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio.lowlevel
import pytest

from committerd.committer.deciding import DecideOptions, Decider
from committerd.committer.members import Members
from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.queue.ledger import Ledger
from committerd.queue.reservations import Reservation, Reservations, Retryable
from committerd.stores.port import Tail
from committerd.table.prepare import Prepared
from committerd_common.messages import Transaction
from tests.committer.bench import Bench, record, staged
from tests.committer.test_verdicts import moved, removal
from tests.lance.samples import fragment, manifest
from tests.table.scene import Scene, append


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(*map(fragment, range(4)), version=1))
    return scene


def bench(scene: Scene) -> Bench:
    return Bench(scene, DecideOptions(verify_files="never"))


async def test_a_group_keeps_no_version_that_its_members_were_compared_with(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = scene.table()
    for number in range(20):
        assert isinstance(await scene.commit(append(1, fragment(0, name=f"n{number}")), table=table), Prepared)
    assert isinstance(await scene.commit(moved(0, 90), table=table), Prepared)
    one, gathered, seen = bench(scene), Decider._gather, list[Comparison]()

    def noted(self: Decider, group: Members, *arguments: Any, **options: Any) -> Any:
        yield from gathered(self, group, *arguments, **options)
        seen.extend(judged.found for judged in group.judged)

    monkeypatch.setattr(Decider, "_gather", noted)
    one.arrive(*(record(offset, removal(offset)) for offset in range(3)))
    formed = await one.assembler.assemble(await one.head(), one.intake)
    assert formed is not None
    assert len(formed.own.settled.members) == 3
    assert seen == [NOTHING_FOUND] * 3


async def test_old_duplicates_are_looked_up_many_at_once_and_each_version_is_read_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that has lost its notes stages all of its work again, at the version that is the latest by now."""
    table, old = scene.table(), list[Transaction]()
    for number in range(120):
        old.append(append(1, fragment(0, name=f"n{number}")))
        old[-1].uuid = str(uuid4())
        await scene.commit(old[-1], table=table)
    one, reading, most, reads = bench(scene), set[str](), 0, list[str]()
    head = await one.head()
    get_tail = one.store.get_tail

    async def slow(key: str, size: int) -> Tail | None:
        nonlocal most
        reads.append(key)
        reading.add(key)
        most = max(most, len(reading))
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        reading.discard(key)
        return await get_tail(key, size)

    monkeypatch.setattr(one.store, "get_tail", slow)
    new = staged("new")
    for transaction in (*old, new):
        transaction.read_version = head.version
    one.arrive(*(record(at, transaction) for at, transaction in enumerate([*old, *old, new])))
    formed = await one.assembler.assemble(head, one.intake)
    assert formed is not None
    assert [refusal.reason for refusal in formed.own.settled.refusals] == ["uuid_seen"] * 240
    assert [member.uuid for member in formed.own.settled.members] == [new.uuid]
    assert most == 64
    assert len(reads) == len(set(reads)) == 120


async def test_the_ledger_is_asked_once_about_each_new_record(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked, rules_out = bench(scene), list[str](), Ledger.rules_out

    def noted(self: Ledger, uuid: str, after: int) -> bool:
        asked.append(uuid)
        return rules_out(self, uuid, after)

    monkeypatch.setattr(Ledger, "rules_out", noted)
    new = [staged(f"n{number}") for number in range(100)]
    one.arrive(*(record(at, transaction) for at, transaction in enumerate(new)))
    formed = await one.assembler.assemble(await one.head(), one.intake)
    assert formed is not None
    assert len(formed.own.settled.members) == 100
    assert asked == [transaction.uuid for transaction in new]


class TestReExecutions:
    """Those of uuids below 10,000 name a refused record of their producer."""

    @staticmethod
    def refused(one: Bench, producer: str = "") -> None:
        refused = [Retryable(uuid=str(UUID(int=n)), producer=producer, operation="append") for n in range(1, 4000)]
        one.intake.reservations = Reservations().settled((), refused, now=0.0)

    async def test_that_name_no_refused_record_go_in_the_order_of_offsets(self, scene: Scene) -> None:
        one = bench(scene)
        one.arrive(*(record(at, staged(f"n{at}"), retry_of=str(uuid4())) for at in range(2000)))
        assert not one.intake.waiting_retries()
        formed = await one.assembler.assemble(await one.head(), one.intake)
        assert formed is not None
        assert [member.offset for member in formed.own.settled.members] == list(range(1000))

    async def test_go_first_once_and_only_those_of_the_producer_that_was_refused(self, scene: Scene) -> None:
        one = bench(scene)
        self.refused(one, "p")
        refused = str(UUID(int=1))
        one.arrive(
            record(0, staged("n0")),
            record(1, staged("n1"), retry_of=refused),
            record(2, staged("n2"), retry_of=refused, producer="q"),
            *(record(at, staged(f"n{at}"), retry_of=refused, producer="p") for at in range(3, 1100)),
        )
        assert [pending.offset for pending in one.intake.waiting_retries()] == [3]

    async def test_that_do_not_go_first_do_not_end_a_round(self, scene: Scene) -> None:
        one = bench(scene)
        others = (record(at, staged(f"n{at}"), retry_of=str(uuid4())) for at in range(1, 300))
        one.arrive(record(0, staged("n0")), *others, record(300, removal(1)))
        formed = await one.assembler.assemble(await one.head(), one.intake)
        assert formed is not None
        assert [member.offset for member in formed.own.settled.members] == [300]
        assert max(formed.round_left) == 299

    async def test_that_a_hold_is_for_go_before_all_others(self, scene: Scene) -> None:
        one = bench(scene)
        self.refused(one)
        one.arrive(*(record(at, staged(f"n{at}"), retry_of=str(UUID(int=at))) for at in range(2000)))
        reserved = {str(UUID(int=1999)): Reservation(operation="append", rows=None, since=0.0)}
        one.intake.reservations = replace(one.intake.reservations, reserved=reserved)
        formed = await one.assembler.assemble(await one.head(), one.intake)
        assert formed is not None
        assert [member.offset for member in formed.own.settled.members] == [1999]
