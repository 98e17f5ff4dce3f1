"""Versions that are about to be created, and are judged against already."""

from __future__ import annotations

from pathlib import Path

import pytest

from committerd.format.manifest_file import Body
from committerd.format.messages import Transaction
from committerd.format.paths import NamingScheme
from committerd.rules.conflicts import NOTHING_FOUND, Findings
from committerd.rules.footprint import Footprint
from committerd.rules.kind import Kind
from tests.rules import samples
from tests.rules.samples import column, fragment, transaction
from tests.table.scene import Scene, history


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t", NamingScheme.V2)


async def test_what_was_expected_and_is_anothers_is_read(scene: Scene) -> None:
    """Findings that go that far are dropped too; those that don't, and what we made, stay."""
    for version in (1, 2, 3):
        appended = transaction(version, append=Transaction.Append(fragments=[fragment(version)]))
        scene.write_version(samples.manifest(version=version), appended)
    table = scene.table()
    first, second, third = [await table.read(version) for version in (1, 2, 3)]
    assert first is not None
    assert second is not None
    assert third is not None
    other = Scene(scene.root.with_name("other"), scene.scheme)
    other.write_version(samples.manifest(version=3), transaction(9, project=Transaction.Project(schema=[column(0)])))
    wrong = await other.latest()
    table.expect(second, before=first.outline)
    table.expect(wrong, before=second.outline)
    before, _ = await history(table, 0, 3)
    assert isinstance(before[2].footprint, Footprint)
    assert before[2].footprint.kind is Kind.PROJECT
    table.note_met_by_appends(1, Findings(through=2), before[1])
    table.note_met_by_appends(2, Findings(through=3), before[2])
    table.remember(second, Body([b"made"]), before=first.outline)
    table.expect_no_more()
    known, _ = await history(table, 0, 3)
    assert known[1] is before[1]
    assert isinstance(known[2].footprint, Footprint)
    assert known[2].footprint.kind is Kind.APPEND
    assert (table.met_by_appends(1).through, table.met_by_appends(2)) == (2, NOTHING_FOUND)
