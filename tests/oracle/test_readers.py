"""Both versions of pylance, each in a process of its own, can read tables that are just within the bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from committerd.lance.checks.texts import NAME_BYTES_MAX
from committerd.lance.versions.schema import NESTING_MAX
from committerd.queue.outcomes import Status
from committerd.table.prepare import Prepared
from committerd_common.messages import Field
from tests.lance.samples import transaction
from tests.producers.old_pylance import old_pylance
from tests.table.scene import Scene, rejected

pytestmark = pytest.mark.pylance

READ = "import sys, lance; d = lance.dataset(sys.argv[1]); d.to_table(); print(len(d.schema))"


def nested(levels: int) -> list[Field]:
    """A column of structs in structs, with a long name."""
    made = [
        Field(id=number, parent_id=number - 1, name=f"c{number}", logical_type="struct", nullable=True)
        for number in range(levels)
    ]
    made[0].name = "x" * NAME_BYTES_MAX
    made[-1].logical_type = "int32"
    return made


def read(python: str, root: Path) -> str:
    """Return what a reader prints; fail if it fails."""
    return subprocess.check_output([python, "-c", READ, str(root)], text=True, timeout=120).strip()


@pytest.mark.parametrize("old", [False, True])
async def test_a_schema_nested_as_deep_as_is_taken_can_be_read(old: bool, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    created = await scene.commit(transaction(0, overwrite={"schema": nested(NESTING_MAX)}))
    assert isinstance(created, Prepared)
    assert read(old_pylance() if old else sys.executable, scene.root) == "1"


async def test_a_schema_nested_20_000_deep_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    for levels in (NESTING_MAX + 1, 20_000):
        staged = transaction(0, overwrite={"schema": nested(levels)})
        assert await rejected(scene, staged) == (Status.INVALID, "schema")
