"""The history of one dataset: commits, records that were refused, and a foreign writer."""

from __future__ import annotations

from dataclasses import dataclass

from committerd_common.messages import Status, Transaction
from harness.scene import Scene, until


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Nine records, all with outcomes, in eight versions or fewer."""

    scene: Scene
    garbage: int
    """Offset of a record that was no transaction."""
    elsewhere: Transaction
    """Staged for another table, with header `producer`."""
    elsewhere_offset: int
    twice: Transaction
    """Staged and committed, and staged again."""


def told(scene: Scene) -> Story:
    """Perform the history."""
    scene.table.create(3)
    # No rebalance meanwhile, however busy the machine is.
    scene.started(KAFKA__SESSION_TIMEOUT_MS="40000")
    scene.committed(5)
    (garbage,) = scene.ask(b"\x1b[31mgarbage\xff")
    elsewhere, twice = scene.table.append(), scene.table.append()
    (refused,) = scene.ask(elsewhere, dataset="/nowhere.lance", producer="lost")
    statuses = [scene.ask(twice)[0].status for _ in range(2)]
    assert statuses == [Status.COMMITTED, Status.DUPLICATE]
    scene.table.write()
    until(lambda: scene.topics.group_offset() == 9, seconds=120)
    return Story(scene=scene, garbage=garbage.offset, elsewhere=elsewhere, elsewhere_offset=refused.offset, twice=twice)
