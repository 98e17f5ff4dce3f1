"""Damaged transactions stop no queue, and damaged tables stop theirs with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle import fuzz, samples
from tests.oracle.samples import Sample

pytestmark = pytest.mark.pylance

SEEDS = range(90)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return samples.unpack(tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_damaged_transaction_is_committed_or_refused(seed: int, real: list[Sample], tmp_path: Path) -> None:
    report = await fuzz.damage_staged(seed, real, tmp_path)
    assert sum(report.codes.values()) == fuzz.PER_SEED
    assert len(report.codes) > 1


@pytest.mark.parametrize("seed", range(8))
async def test_a_damaged_manifest_is_told_apart(seed: int, real: list[Sample], tmp_path: Path) -> None:
    report = await fuzz.damage_table(seed, real, tmp_path)
    assert len(report.codes) > 1
