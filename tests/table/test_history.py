"""Versions that are formed and not created yet belong to the histories that follow them, and to no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyroaring import BitMap

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import NOTHING_FOUND
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import Body, ManifestFile
from committerd.queue.dedupe import Refused
from committerd.table.versions import Committed, Gap, History, committed_by
from committerd_common.messages import Transaction
from committerd_common.paths import NamingScheme
from tests.lance import samples
from tests.lance.samples import column, fragment, transaction
from tests.table.scene import Scene, append, verdict_on


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A table of three versions."""
    made = Scene(tmp_path / "t", NamingScheme.V2)
    for version in (1, 2, 3):
        appended = transaction(version, append=Transaction.Append(fragments=[fragment(version)]))
        made.write_version(samples.manifest(version=version), appended)
    return made


ROWS = BitMap([1])


async def kinds(history: History, after: int, latest: int) -> list[Kind | int]:
    """The operations above `after`; for a gap its version."""
    found: list[Kind | int] = []
    while after < latest:
        formed = [one for one in history.formed_after(after) if one.version <= latest]
        some = formed or await history.table.some_after(after, min(latest, history.created))
        if isinstance(some, Gap):
            return [*found, some.version]
        after = some[-1].version
        found += [one.footprint.kind for one in some if isinstance(one.footprint, Footprint)]
    return found


async def projected(scene: Scene, version: int) -> tuple[ManifestFile, Committed]:
    """A Project that might become this version."""
    other = Scene(scene.root.with_name("other"), scene.scheme)
    project = transaction(9, project=Transaction.Project(schema=[column(0)]))
    other.write_version(samples.manifest(version=version), project)
    file = await other.latest()
    return file, committed_by(file.transaction, file, before=samples.manifest(version=version - 1))


async def test_a_formed_version_is_part_of_what_follows_it_and_of_nothing_else(scene: Scene) -> None:
    table = scene.table()
    await table.latest()
    _, formed = await projected(scene, 4)
    history = History(table)
    later = history.then(formed, {"k": ROWS})
    assert await kinds(later, 1, 4) == [Kind.APPEND, Kind.APPEND, Kind.PROJECT]
    assert await kinds(later, 3, 4) == [Kind.PROJECT]
    assert await kinds(later, 1, 3) == [Kind.APPEND, Kind.APPEND]
    assert later.formed(4) is formed
    assert await kinds(history, 1, 4) == [Kind.APPEND, Kind.APPEND, 4]
    assert history.formed(4) is None
    assert table.known(4) is None
    assert (later.unwritten, history.unwritten, later.of_the_table().unwritten) == ({"k": ROWS}, {}, {})


async def test_once_created_it_is_one_of_the_tables(scene: Scene) -> None:
    table = scene.table()
    await table.latest()
    file, formed = await projected(scene, 4)
    history = History(table).then(formed, {})
    table.remember(file, Body([b"made"]), formed)
    assert await kinds(history, 2, 4) == await kinds(history.of_the_table(), 2, 4) == [Kind.APPEND, Kind.PROJECT]
    assert history.of_the_table() == History(table)


async def test_what_appends_met_in_a_version_that_was_dropped_is_looked_for_anew(scene: Scene) -> None:
    """An Append passes the formed version, and not the one that another writer has created in its place."""
    table = scene.table()
    latest = await table.latest()
    assert latest is not None
    file, dropped = await projected(scene, 4)
    formed = History(table).then(dropped, {})
    before = await verdict_on(formed, file, append(2))
    assert not isinstance(before, Refused)
    assert formed.compared_appends(2).through == 4
    overwritten = transaction(3, overwrite=Transaction.Overwrite(fragments=[fragment(9)], schema=[column(0)]))
    scene.write_version(samples.manifest(version=4), overwritten)
    assert History(table).compared_appends(2) == NOTHING_FOUND
    answer = await verdict_on(History(table), await table.latest(), append(2))
    assert isinstance(answer, Refused)
    assert answer.conflicting_version == 4
    assert formed.compared_appends(2) == NOTHING_FOUND
