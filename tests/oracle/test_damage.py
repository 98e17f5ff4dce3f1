"""Damaged transactions don't stop a queue, and damaged tables stop theirs with a reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.oracle import fuzz, samples
from tests.oracle.samples import Sample

pytestmark = pytest.mark.pylance

SEEDS = range(30)


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


PARTS = 10
"""The cases are divided into this many parts; each run tests one part of each sample's cases."""


@pytest.mark.long
async def test_a_number_at_the_bounds_of_its_type_is_committed_or_refused(real: list[Sample], tmp_path: Path) -> None:
    codes: Counter[str] = Counter()
    for number, sample in enumerate(real):
        folder = tmp_path / str(number)
        folder.mkdir()
        codes += (await fuzz.numbers_at_bounds(sample, folder, part=number % PARTS, parts=PARTS)).codes
    assert {"committed", "number_out_of_bounds", "fragment_ids_exhausted", "schema", "index_details"} <= codes.keys()


@pytest.mark.parametrize("seed", range(6))
async def test_records_that_once_did_harm_are_judged_like_all_others(
    seed: int, real: list[Sample], tmp_path: Path
) -> None:
    report = await fuzz.hurt_staged(seed, real, tmp_path)
    assert sum(report.codes.values()) > fuzz.PER_SEED
    assert len(report.codes) > 5


@pytest.mark.parametrize("seed", range(6))
async def test_what_nests_or_means_much_is_committed_or_refused(seed: int, real: list[Sample], tmp_path: Path) -> None:
    report = await fuzz.hostile_kinds(seed, real, tmp_path)
    assert sum(report.codes.values()) == fuzz.PER_SEED
    assert {"schema", "header_invalid", "path_invalid"} & report.codes.keys()
    assert len(report.codes) > 5
