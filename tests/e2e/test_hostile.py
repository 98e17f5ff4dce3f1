"""A few hundred hostile records between good ones; `make hostile` stages 20,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.scene import Scene
from tests.hostile.attack import attack, attack_all_operations

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_hostile_records_keep_no_good_one_from_being_committed(scene: Scene, tmp_path: Path) -> None:
    seen = attack(scene, 300, 3, folder=tmp_path / "samples")
    assert seen.wrong == []
    assert seen.failed == []


def test_hostile_records_of_all_operations_stop_nothing(scene: Scene, tmp_path: Path) -> None:
    seen = attack_all_operations(scene, 300, 4, folder=tmp_path / "samples")
    assert seen.wrong == []
    assert seen.failed == []
