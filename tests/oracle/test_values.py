"""Random values of random types through every call: kept or refused as the model says, and as pylance does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.oracle import values

pytestmark = pytest.mark.pylance

SEEDS = range(24)


def test_what_fits_is_kept_and_the_rest_is_refused(tmp_path: Path) -> None:
    outcomes = Counter[str]()
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcomes.update(values.run(seed, folder))
    assert min(outcomes["kept"], outcomes["refused"], outcomes["pylance alone stores the same"]) > 5
