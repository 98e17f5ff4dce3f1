"""A short run of the random histories; `make rows` runs long ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.histories import Pylances, pylances
from tests.rowlevel.history import run

pytestmark = pytest.mark.pylance

SEEDS = range(12)


@pytest.fixture(scope="module")
def versions() -> Iterator[Pylances]:
    made = pylances()
    yield made
    made.close()


async def test_random_histories_are_what_serial_execution_makes(tmp_path: Path, versions: Pylances) -> None:
    committed: Counter[str] = Counter()
    followed = together = 0
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            told = await run(seed, folder, versions, thorough=seed % 5 == 0)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        committed.update(name for (name, outcome), times in told.outcomes.items() if outcome == "committed")
        followed += told.followed
        together += told.together
    names = ("append", "compact", "delete", "index", "rename", "update", "upsert")
    assert min(committed[name] for name in names) > 2
    assert followed > 30
    assert together > 0
