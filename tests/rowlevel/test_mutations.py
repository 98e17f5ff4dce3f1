"""The random histories notice a committer that lacks a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.histories import Pylance, Pylances
from tests.rowlevel.history import run
from tests.rowlevel.mutations import MUTATIONS, Mutate

pytestmark = pytest.mark.pylance

SEEDS = range(100)
"""Enough to notice each mutation, whatever else the histories have come to hold."""


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
async def test_a_committer_that_lacks_a_rule_is_found_out(
    mutate: Mutate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in dict.fromkeys((MUTATIONS[mutate], *SEEDS)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            await run(seed, folder, Pylances(Pylance(), None), thorough=False)
        except AssertionError:
            return
    pytest.fail("no history notices it")
