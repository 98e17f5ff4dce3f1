"""A branch begins with the position and the marks of its parent's queue, and has a queue of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from committerd.queue.position import Position, decode_marks, decode_position
from committerd.table import carrying
from tests.simulation.scenarios import scenario_of
from tests.simulation.world import simulate

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds(seed: int) -> None:
    report = simulate(seed, replace(scenario_of(seed), table="branched"))
    assert report.violation is None, report.text()
    auditor = report.world.auditor
    own = [version for version, seen in auditor.versions.items() if seen.settled.ours]
    if not own:
        assert not auditor.answers  # the topic was recreated before anything was settled
        return
    metadata = auditor.versions[max(own)].file.manifest.table_metadata
    position = decode_position(metadata, branch="exp")
    assert position is not None
    assert (position.branch, position.topic) == ("exp", report.world.broker.topic)
    assert "of-main" in decode_marks(metadata)


def test_a_committer_that_took_the_parents_position_would_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def whosever(metadata: Mapping[str, str], *, branch: str = "") -> Position | None:
        return decode_position(metadata)

    monkeypatch.setattr(carrying, "decode_position", whosever)
    report = simulate(0, replace(scenario_of(0), table="branched"))
    assert report.violation is not None
    assert "topic_id" in report.world.refused
