"""What a version is formed of, and what that may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from committerd.committer.forming import Former, FormingOptions
from committerd.committer.head import Head
from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.queue.ledger import Earlier
from committerd.queue.turns import AHEAD_MAX
from committerd.table.prepare import Prepared
from committerd_common.messages import RETRYABLE, Refusal
from tests.committer.test_file_checks import Bench, record, staged
from tests.committer.test_verdicts import moved, removal
from tests.lance.samples import fragment, manifest
from tests.table.scene import Scene, append


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(*map(fragment, range(4)), version=1))
    return scene


def bench(scene: Scene) -> Bench:
    return Bench(scene, FormingOptions(verify_files="never"), "together")


async def test_a_group_keeps_no_version_that_its_members_were_compared_with(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = scene.table()
    for number in range(20):
        assert isinstance(await scene.commit(append(1, fragment(0, name=f"n{number}")), table=table), Prepared)
    assert isinstance(await scene.commit(moved(0, 90), table=table), Prepared)
    one, gathered, seen = bench(scene), Former._gather, list[Comparison]()

    async def noted(self: Former, *arguments: Any, **options: Any) -> Any:
        forming = await gathered(self, *arguments, **options)
        seen.extend(judged.found for judged in forming.judged)
        return forming

    monkeypatch.setattr(Former, "_gather", noted)
    one.arrive(*(record(offset, removal(offset)) for offset in range(3)))
    formed = await one.former.form(await one.head(), one.intake)
    assert formed is not None
    assert len(formed.group.members) == 3
    assert seen == [NOTHING_FOUND] * 3


class TestReExecutions:
    """Those of uuids below 10,000 name a refused record."""

    @pytest.fixture(autouse=True)
    def looked_up(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        asked: list[str] = []

        async def earlier(head: Head, uuid: str, after: int) -> Earlier:
            asked.append(uuid)
            return Earlier(refusal=Refusal(uuid=uuid, status=RETRYABLE)) if UUID(uuid).int < 10_000 else Earlier()

        monkeypatch.setattr(Head, "earlier", earlier)
        return asked

    async def test_that_name_no_refused_record_cost_little(self, scene: Scene, looked_up: list[str]) -> None:
        one = bench(scene)
        one.arrive(*(record(at, staged(f"n{at}"), retry_of=str(uuid4())) for at in range(2000)))
        formed = await one.former.form(await one.head(), one.intake)
        assert formed is not None
        assert [member.offset for member in formed.group.members] == list(range(1000))
        assert len(looked_up) <= AHEAD_MAX

    async def test_that_do_not_go_first_do_not_end_a_round(self, scene: Scene) -> None:
        one = bench(scene)
        others = (record(at, staged(f"n{at}"), retry_of=str(uuid4())) for at in range(1, 300))
        one.arrive(record(0, staged("n0")), *others, record(300, removal(1)))
        formed = await one.former.form(await one.head(), one.intake)
        assert formed is not None
        assert [member.offset for member in formed.group.members] == [300]
        assert formed.round_end == 0

    async def test_that_a_hold_is_for_go_before_all_others(self, scene: Scene) -> None:
        one = bench(scene)
        one.arrive(*(record(at, staged(f"n{at}"), retry_of=str(UUID(int=at))) for at in range(2000)))
        formed = await one.former.form(await one.head(), one.intake, held_for={str(UUID(int=1999))})
        assert formed is not None
        assert [member.offset for member in formed.group.members] == [1999]
