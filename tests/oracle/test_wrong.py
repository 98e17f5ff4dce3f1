"""Transactions that say something wrong: what is committed of them, both versions of pylance can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle import bearing, samples, wrong
from tests.producers.old_pylance import old_pylance

pytestmark = pytest.mark.pylance

SEEDS = range(30)


def test_what_is_committed_can_be_read(tmp_path: Path) -> None:
    real = samples.unpack(tmp_path / "samples")
    report = bearing.run(SEEDS, real, tmp_path / "tables", [bearing.CURRENT, old_pylance()])
    assert report.faults == {}
    assert len(report.kinds) > len(wrong.KINDS) // 2
    assert {"committed", "column_indices", "physical_rows_too_many"} <= report.codes.keys()
