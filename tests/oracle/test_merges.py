"""Random merges by pylance 14.0.2 and by us; `make oracle KIND=merges` makes more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle import merges

pytestmark = pytest.mark.pylance


@pytest.mark.parametrize("seed", range(40))
async def test_pylance_and_we_merge_alike(seed: int, tmp_path: Path) -> None:
    assert await merges.run(seed, tmp_path) in ("merged", "refused", "wrong keys", "unreadable")
