"""A producer that stages many records at once does not make the others wait for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from committerd_common.messages import Status, Transaction
from harness.audit import settled_ahead
from harness.scene import Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

FLOOD, FEW, IN_VERSION = 300, 3, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What two producers have staged, one behind the other, for a table that has a version."""

    created: Sequence[int]
    """The ids in the table."""
    flood: Sequence[Transaction]
    few: Sequence[Transaction]
    offsets: Sequence[int]
    """Of the flood."""
    behind: Sequence[int]
    """Of the few."""


def staged(scene: Scene) -> Staged:
    created = scene.table.create()
    daemon = scene.started()
    scene.committed()
    daemon.stop()
    flood = [scene.table.append() for _ in range(FLOOD)]
    few = [scene.table.append() for _ in range(FEW)]
    offsets = scene.stage(*flood, headers={"producer": "flood"})
    behind = scene.stage(*few, headers={"producer": "small"})
    return Staged(created=created, flood=flood, few=few, offsets=offsets, behind=behind)


def wait_ahead(scene: Scene, behind: Sequence[int]) -> None:
    """Wait until the few are settled ahead of the flood, or everything is settled."""
    until(lambda: scene.position()["settled"] != [] or scene.position()["next"] > behind[-1])


def versions_of(scene: Scene, found: Staged) -> Mapping[str, int]:
    """The version of each transaction, by uuid: each is committed once, and the flood in its order."""
    answers = scene.topics.wait_answers([*found.offsets, *found.behind])
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    at = {answer.uuid: answer.version for answer in answers}
    assert [at[one.uuid] for one in found.flood] == sorted(at[one.uuid] for one in found.flood)
    scene.audit(scene.expected_ids(*found.created))
    return at


def test_others_are_answered_before_the_flood_ends_and_each_once_after_a_crash(scene: Scene) -> None:
    found = staged(scene)
    daemon = scene.started(COMMIT__GROUP_RECORDS_MAX=str(IN_VERSION))
    wait_ahead(scene, found.behind)
    daemon.kill()
    assert settled_ahead(scene.position()) <= set(found.behind)
    scene.started(COMMIT__GROUP_RECORDS_MAX=str(IN_VERSION))
    at = versions_of(scene, found)
    assert max(at[one.uuid] for one in found.few) < at[found.flood[-1].uuid]


def test_others_are_read_behind_more_records_than_may_wait(scene: Scene) -> None:
    found = staged(scene)
    limits = {"COMMIT__GROUP_RECORDS_MAX": str(IN_VERSION), "KAFKA__OUTSTANDING_RECORDS_MAX": "60"}
    # So slowly that the end of the log is read long before half of the flood is settled.
    daemon = scene.started(**limits, COMMIT__INTERVAL_SECONDS_MIN="2")
    wait_ahead(scene, found.behind)
    daemon.kill()
    assert settled_ahead(scene.position()) <= set(found.behind)
    scene.started(**limits)
    at = versions_of(scene, found)
    assert min(at[one.uuid] for one in found.few) < at[found.flood[FLOOD // 2].uuid]


def test_a_version_takes_less_of_a_batch_producer_while_others_wait(scene: Scene) -> None:
    found = staged(scene)
    limits = {"COMMIT__GROUP_RECORDS_MAX": str(10 * IN_VERSION), "COMMIT__BATCH_PRODUCERS": "loader,fl*"}
    # So slowly that the few are read before the flood fits into one version.
    scene.started(**limits, COMMIT__INTERVAL_SECONDS_MIN="0.5")
    at = versions_of(scene, found)
    beside = {at[one.uuid] for one in found.few}
    assert all(sum(at[one.uuid] == version for one in found.flood) <= IN_VERSION for version in beside)
