"""Some random histories; `tests.conformance.histories` runs more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroaring import BitMap

from committerd.lance.format.manifest_file import decode, encode
from committerd.lance.versions.indices import with_coverage
from tests.conformance import histories, rounds
from tests.conformance.facts import latest_facts, manifests
from tests.conformance.histories import Pylances, Result, comparable
from tests.conformance.operations import GROUPS, Shape, Step

pytestmark = [pytest.mark.pylance, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EACH = tuple(operation.__name__ for group in GROUPS for operation in group if operation.__name__ != "compact_deferred")


@pytest.fixture(scope="module")
def versions() -> Iterator[Pylances]:
    found = histories.pylances()
    yield found
    found.close()


@pytest.mark.parametrize("seed", range(30))
async def test_we_do_as_pylance_does(seed: int, tmp_path: Path, versions: Pylances) -> None:
    compared = await histories.run(seed, tmp_path, versions)
    assert compared is None or not compared.differences, compared.said


@pytest.mark.parametrize("name", EACH)
async def test_we_do_each_operation_as_pylance_does(name: str, tmp_path: Path, versions: Pylances) -> None:
    made = 0
    for seed in range(1_000_000, 1_000_040):
        compared = await histories.run(seed, tmp_path / str(seed), versions, (name,))
        assert compared is None or not compared.differences, f"seed {seed}: {compared.said}: {compared.differences}"
        made += compared is not None
        if made == 2:
            return
    raise AssertionError(f"no history in which {name} can be done")


@pytest.mark.parametrize("seed", range(12))
async def test_versions_of_several_members_are_as_good_as_one_for_each(
    seed: int, tmp_path: Path, versions: Pylances
) -> None:
    found = await rounds.run(seed, tmp_path, versions)
    assert found is None or not found.differences, f"{found.said}: {found.differences}"


def test_a_difference_is_seen(tmp_path: Path, versions: Pylances) -> None:
    """Two tables that differ by one delete."""
    results = []
    for name, row in (("ours", 1), ("theirs", 2)):
        assert versions.new.make(tmp_path / name, Shape(seed=1)) is None
        assert versions.new.run(tmp_path / name, Step("delete_row", row=row)) is None
        results.append(histories.result(tmp_path / name, "committed", "", versions))
    found = list(
        histories.differences(results[0], "committed", results[1], before=results[0].facts, step=Step("delete_row"))
    )
    assert any(one.startswith("fragments") for one in found)
    assert any(one.startswith("hash") for one in found)


def test_another_outcome_is_seen() -> None:
    ours, theirs = Result("retryable", ""), Result("committed", "")
    assert list(histories.differences(ours, "retryable", theirs, before={}, step=Step("append")))
    assert not list(histories.differences(ours, "committed", theirs, before={}, step=Step("append")))


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("before", [None, "delete_row"])
async def test_a_delete_of_no_row_keeps_what_others_deleted(
    stable: bool, before: str | None, tmp_path: Path, versions: Pylances
) -> None:
    """Where pylance refuses it; docs/conflicts.md says why it is safe."""
    root = tmp_path / "t"
    assert versions.new.make(root, Shape(seed=1, stable=stable, indices=(("BTREE", "a", True),))) is None
    if before is not None:
        assert versions.new.run(root, Step(before, row=4)) is None
    read = max(manifests(root))
    for theirs in (Step("delete_two", row=1, other=7), Step("update_row", row=2)):
        assert versions.new.run(root, theirs) is None
    wanted = versions.new.read(root)
    nothing = Step("delete_nothing_of_a_fragment", row=0)
    assert "Retryable" in (versions.new.run(root, nothing, read) or "")
    staged = histories.stage(versions.new, root, read, nothing, tmp_path / "staged")
    ours, _ = await histories.by_us(root, staged, versions)
    assert ours.outcome == "committed"
    for found in ours.read:
        assert {key: found[key] for key in ("rows", "hash", "fragments", "lookups")} == {
            key: wanted[key] for key in ("rows", "hash", "fragments", "lookups")
        }


async def test_an_index_on_a_column_that_was_dropped_is_refused(tmp_path: Path, versions: Pylances) -> None:
    """pylance commits it; then no filter works."""
    root = tmp_path / "t"
    assert versions.new.make(root, Shape(seed=1, indices=(("BTREE", "a", True),))) is None
    read = max(manifests(root))
    assert versions.new.run(root, Step("drop_column")) is None
    making = Step("create_index", kind="BTREE", value=2)
    staged = histories.stage(versions.new, root, read, making, tmp_path / "staged")
    ours, _ = await histories.by_us(root, staged, versions)
    assert (ours.outcome, "rule indexed_column_dropped" in ours.error) == ("incompatible", True)
    assert versions.new.run(root, making, read) is None
    assert "did not exist in the schema" in versions.new.read(root)["lookups"][0]


@pytest.mark.parametrize(
    ("kind", "column"), [("BTREE", "a"), ("BITMAP", "s.y"), ("NGRAM", "b"), ("LABEL_LIST", "t"), ("INVERTED", "b")]
)
def test_a_wrong_answer_of_an_index_is_seen(kind: str, column: str, tmp_path: Path, versions: Pylances) -> None:
    """An index that claims to cover a fragment that it lacks."""
    root = tmp_path / "t"
    assert versions.new.make(root, Shape(seed=1, indices=((kind, column, True),))) is None
    assert versions.new.run(root, Step("append", seed=5)) is None
    assert versions.new.read(root)["lookups"] == []
    found = manifests(root)
    file = decode(found[max(found)].read_bytes())
    covered = BitMap(fragment.id for fragment in file.manifest.fragments)
    wrong = [with_coverage(index, covered) for index in file.indices]
    assert file.transaction is not None
    found[max(found)].write_bytes(encode(file.manifest, wrong, file.transaction))
    other = tmp_path / "moved"  # pylance caches what it read of a table
    root.rename(other)
    assert versions.new.read(other)["lookups"]


def test_facts_are_comparable(tmp_path: Path, versions: Pylances) -> None:
    """Names of files and ids of indices are left out."""
    facts = []
    for name in ("a", "b"):
        assert versions.new.make(tmp_path / name, Shape(seed=1, indices=(("BTREE", "a", True),))) is None
        facts.append(comparable(latest_facts(tmp_path / name)))
    assert facts[0] == facts[1]
