"""Random histories, a few of them; `tests.conformance.histories` runs more."""

from __future__ import annotations

import random
from pathlib import Path

import lance
import pytest

from tests.conformance import histories

pytestmark = [pytest.mark.pylance, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize("seed", range(30))
async def test_we_do_as_pylance_does(seed: int, tmp_path: Path) -> None:
    compared = await histories.run(seed, tmp_path)
    assert compared is None or not compared.differences, compared.said


async def test_a_difference_is_seen(tmp_path: Path) -> None:
    """Two tables that differ by one delete."""
    for name, predicate in (("ours", "id = 1"), ("theirs", "id = 2")):
        histories.make_table(tmp_path / name, random.Random(1))
        lance.dataset(tmp_path / name).delete(predicate)
    found = list(histories.differences(tmp_path / "ours", tmp_path / "theirs"))
    assert any(one.startswith("fragments") for one in found)
    assert any(one.startswith("hash") for one in found)
