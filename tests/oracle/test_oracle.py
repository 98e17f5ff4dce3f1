"""Random changes committed by pylance 14.0.2 and by us: the same outcomes, the same versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from committerd_common.messages import Transaction
from tests.conformance.facts import latest_facts
from tests.oracle import native, scenario
from tests.oracle.differences import Case
from tests.oracle.native import Opened

pytestmark = pytest.mark.pylance

SEEDS = range(18)


@pytest.mark.parametrize("seed", SEEDS)
async def test_pylance_and_we_do_the_same(seed: int, tmp_path: Path) -> None:
    report = await scenario.run(seed, tmp_path)
    assert len(report.lines) == scenario.ROUNDS


def delete(condition: str) -> Callable[[Opened], None]:
    return lambda opened: opened.dataset.delete(condition, conflict_retries=0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Ten rows; version 2 has deleted the first one."""
    root = tmp_path / "table"
    lance.write_dataset(pa.table({"id": range(10)}), str(root))
    lance.dataset(str(root)).delete("id = 0")
    return root


def test_pylance_rebases_over_what_comes_into_sight(table: Path, tmp_path: Path) -> None:
    made = native.change(table, 1, tmp_path / "ours", delete("id = 5"))
    assert made.verdicts == ["committed"]
    (staged,) = (Transaction.FromString(body) for body in made.staged)
    assert staged.read_version == 1
    assert staged.delete.updated_fragments[0].deletion_file.num_deleted_rows == 1
    assert latest_facts(table)["version"] == 3
    assert latest_facts(table)["fragments"][0]["deletion"]["offsets"] == [0, 5]
    assert latest_facts(tmp_path / "ours")["version"] == 2


def test_pylance_gives_up_what_it_cannot_rebase(table: Path, tmp_path: Path) -> None:
    made = native.change(table, 1, tmp_path / "ours", delete("id < 2"))
    assert made.verdicts == ["retryable"]
    assert Transaction.FromString(made.staged[0]).delete.updated_fragments[0].deletion_file.num_deleted_rows == 2


@pytest.mark.parametrize(
    ("condition", "told"), [("id = 6", "/fragments/0/deletion/offsets"), ("id = 0", r"we: \['retryable'\]")]
)
async def test_a_difference_is_seen(table: Path, tmp_path: Path, condition: str, told: str) -> None:
    """We commit something else than pylance."""
    theirs, ours = native.link_tree(table, tmp_path / "theirs"), tmp_path / "ours"
    other = native.change(table, 1, ours, delete(condition))
    made = native.change(theirs, 1, tmp_path / "unused", delete("id = 5"))
    outcome = await scenario.commit_staged(ours, other.staged[0])
    case = Case(theirs=theirs, ours=ours, outcomes=[outcome], verdicts=made.verdicts, error=made.error)
    with pytest.raises(scenario.DisagreementError, match=told):
        scenario.compare(case, scenario.Report(7))
