"""Committers that are killed, or sleep and wake: no record is lost or doubled, and every outcome is true."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from committerd_common.messages import Status
from harness.audit import Evidence
from harness.daemon import Daemon
from harness.scene import Scene, until, wait_one_active

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

_SETTINGS = {
    # Small groups make many versions, so that a signal meets every stage of a commit.
    "COMMIT__GROUP_RECORDS_MAX": "10",
    # No faster than this, so that there is work left when the signal comes.
    "COMMIT__INTERVAL_SECONDS_MIN": "0.05",
    "KAFKA__SESSION_TIMEOUT_MS": "1500",
    "KAFKA__HEARTBEAT_INTERVAL_MS": "300",
}


class _Work:
    """Appends, staged a portion at a time: each round begins with more than it can finish."""

    def __init__(self, scene: Scene, ids: list[int]) -> None:
        self.offsets: list[int] = []
        self.ids = ids
        self._scene = scene

    def stage(self, count: int, *, versions: int) -> None:
        """Stage this many, and wait until the table has this many more versions."""
        made = self._scene.table.appends(count)
        self.ids += [i for transaction in made for i in self._scene.table.brought[transaction.uuid]]
        wanted = _versions(self._scene) + versions
        self.offsets += self._scene.stage(*made)
        _wait_version(self._scene, wanted)

    def audit(self) -> Evidence:
        """Check that each was committed, and that everything is consistent."""
        answers = self._scene.topics.wait_answers(self.offsets, timeout=240)
        assert {answer.status for answer in answers} == {Status.COMMITTED}
        return self._scene.audit(self.ids)


def _versions(scene: Scene) -> int:
    return sum(1 for _ in Path(scene.table.uri, "_versions").glob("*.manifest"))


def _wait_version(scene: Scene, wanted: int) -> None:
    until(lambda: _versions(scene) >= wanted)


def _active(*daemons: Daemon) -> Daemon:
    """Return the one that commits; wait for it."""
    found: list[Daemon] = []

    def look() -> bool:
        found[:] = [d for d in daemons if d.running() and d.ready()[1].startswith("active")]
        return len(found) == 1

    until(look)
    return found[0]


def test_killed_ten_times_during_2500_appends(scene: Scene) -> None:
    rng = random.Random(20)
    work = _Work(scene, scene.table.create())
    daemon = scene.started(**_SETTINGS)
    for _ in range(5):  # alone: the killed one is started again
        work.stage(250, versions=rng.randint(1, 15))
        time.sleep(rng.uniform(0, 0.05))
        daemon.kill()
        daemon.start()
    other = scene.daemon(**_SETTINGS)
    for _ in range(5):  # with a standby, which takes over
        active = _active(daemon, other)
        work.stage(250, versions=rng.randint(1, 15))
        time.sleep(rng.uniform(0, 0.05))
        active.kill()
        standby = other if active is daemon else daemon
        standby.wait_ready(text="active")
        active.start()
    evidence = work.audit()
    # The kills came during work: outcomes were published more than once.
    assert len(evidence.outcomes) > 2_500
    assert sum(1 for d in (daemon, other) for _ in d.lines("start.done")) >= 10


def test_a_committer_that_slept_through_its_session_changes_nothing_when_it_wakes(scene: Scene) -> None:
    rng = random.Random(7)
    work = _Work(scene, scene.table.create())
    # There is always work, so most sleeps begin in the middle of a commit: four of them, and until one did. The two
    # never form equal groups, which would count as one's own.
    settings = _SETTINGS | {"COMMIT__INTERVAL_SECONDS_MIN": "0"}
    daemons = (
        scene.started(**settings | {"COMMIT__GROUP_RECORDS_MAX": "2"}),
        scene.daemon(**settings | {"COMMIT__GROUP_RECORDS_MAX": "3"}),
    )
    wait_one_active(*daemons)
    for sleeps in range(12):
        if sleeps >= 4 and _raced(*daemons):
            break
        active = _active(*daemons)
        work.stage(400, versions=rng.randint(1, 10))
        time.sleep(rng.uniform(0, 0.02))
        active.freeze()
        frozen_at = _versions(scene)
        work.stage(20, versions=0)
        other = daemons[0] if active is daemons[1] else daemons[1]
        other.wait_ready(text="active")
        _wait_version(scene, frozen_at + 2)
        active.thaw()
        wait_one_active(*daemons)
    work.audit()
    # One that woke continued with its version, and found the number taken.
    assert _raced(*daemons)


def _raced(*daemons: Daemon) -> bool:
    """Whether one of them has found the number of its version taken."""
    return any(True for daemon in daemons for _ in daemon.lines("commit.raced"))


def test_a_committer_that_slept_alone_goes_on(scene: Scene) -> None:
    ids = scene.table.create()
    daemon = scene.started(**_SETTINGS)
    before = scene.table.append(), scene.table.append()
    answers = scene.ask(before[0])
    daemon.freeze()
    offsets = scene.stage(before[1])
    until(lambda: not _members(scene))
    daemon.thaw()
    answers += scene.topics.wait_answers(offsets)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    scene.audit([*ids, *(i for t in before for i in scene.table.brought[t.uuid])])


def _members(scene: Scene) -> list[object]:
    described = scene.topics.admin.describe_groups([scene.topics.group])
    return list(described[scene.topics.group]["members"])
