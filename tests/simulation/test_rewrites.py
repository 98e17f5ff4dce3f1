"""Deletes and compactions of the same fragments, staged at will: the committer follows rows, whatever happens to it."""

from __future__ import annotations

from collections import Counter

import pytest
from pyroaring import BitMap

from committerd.lance.operations import following
from committerd_common.messages import COMMITTED, DataFragment, Transaction
from committerd_common.paths import deletion_key
from tests.simulation import staging
from tests.simulation.chaos import Chaos
from tests.simulation.faults import Rates
from tests.simulation.producers import Producers
from tests.simulation.staging import Staged
from tests.simulation.world import Report, Scenario, World, simulate

SCENARIO = Scenario(
    records=70,
    seconds=20,
    rates=Rates(latency=0.05),
    events={Chaos.crash: 2.0, Chaos.hand_over: 1.0},
    event_seconds=6.0,
)


class Compactors(Producers):
    """Writers that append and delete fragments, and replace several by one."""

    def _next(self) -> Staged:
        rng, version = self.rng, self._read_version()
        seen = self.world.auditor.versions.get(version)
        there = [one for one in seen.file.manifest.fragments if not one.HasField("deletion_file")] if seen else []
        kind = rng.choices(("append", "delete", "rewrite", "reserve"), (35, 25, 25, 15))[0]
        if kind == "reserve":
            return self._staged(staging.reserve(self._uuid(), 2, read_version=version)) if version else self._append()
        if kind == "append" or not there:
            paths = self._paths(1)
            return self._staged(staging.append(self._uuid(), paths), paths)
        if kind == "delete":
            return self._staged(staging.delete(self._uuid(), rng.choice(there).id, read_version=version))
        free = self._reserved()
        if not free or len(there) < 2:
            return self._append()
        start = rng.randrange(len(there) - 1)
        old = there[start : start + rng.randint(2, 4)]
        paths = self._paths(1)
        return self._staged(staging.rewrite(self._uuid(), old, paths[0], free[0], read_version=version), paths)

    def _reserved(self) -> list[int]:
        """The fragment ids that were reserved and that no Rewrite has been given."""
        answers = self.world.auditor.answers.values()
        ids = {one.reserved_first + n for one in answers for n in range(one.reserved_count)}
        given = {
            new.id
            for staged, _ in self.records
            for group in Transaction.FromString(staged.value).rewrite.groups
            for new in group.new_fragments
        }
        return sorted(ids - given)


def run(seed: int) -> Report:
    def prepare(world: World) -> None:
        world.producers = Compactors(world)

    return simulate(seed, SCENARIO, prepare=prepare)


def rows_of(world: World) -> tuple[Counter[str], Counter[str]]:
    """(the rows of the latest version, the rows that the outcomes say it has), by the file that first held them."""
    auditor = world.auditor
    rows: dict[str, list[str]] = {}
    wanted: Counter[str] = Counter()
    for staged, record in world.producers.records:
        outcome = next((one for (_, at), one in auditor.answers.items() if at == record.offset), None)
        if outcome is None or outcome.status != COMMITTED:
            continue
        transaction = Transaction.FromString(staged.value)
        for one in transaction.append.fragments:
            rows[one.files[0].path] = [one.files[0].path] * one.physical_rows
            wanted[one.files[0].path] = one.physical_rows
    for version in sorted(auditor.versions):
        made = auditor.versions[version].file.transaction
        assert made is not None
        for one in made.overwrite.fragments:
            rows[one.files[0].path] = [one.files[0].path] * one.physical_rows
            wanted[one.files[0].path] = one.physical_rows
        for group in made.rewrite.groups:
            copied = [row for one in group.old_fragments for row in rows[one.files[0].path]]
            rows[group.new_fragments[0].files[0].path] = copied
    for staged, record in world.producers.records:
        outcome = next((one for (_, at), one in auditor.answers.items() if at == record.offset), None)
        transaction = Transaction.FromString(staged.value)
        if outcome is None or outcome.status != COMMITTED or not transaction.HasField("delete"):
            continue
        read = {one.id: one for one in auditor.versions[transaction.read_version].file.manifest.fragments}
        for id in transaction.delete.deleted_fragment_ids:
            wanted.subtract(rows[read[id].files[0].path])
    found: Counter[str] = Counter()
    for one in auditor.versions[auditor.latest].file.manifest.fragments:
        gone = deleted(world, one)
        found.update(row for at, row in enumerate(rows[one.files[0].path]) if at not in gone)
    return found, +wanted


def deleted(world: World, fragment: DataFragment) -> BitMap:
    if not fragment.HasField("deletion_file"):
        return BitMap()
    return BitMap.deserialize(world.bucket.objects[deletion_key(fragment.id, fragment.deletion_file, staged=False)])


def followed(world: World) -> int:
    return sum(
        "followed" in one.message or "deleted meanwhile" in one.message
        for one in world.auditor.answers.values()
        if one.status == COMMITTED
    )


def test_every_committed_delete_has_deleted_its_rows_and_no_others() -> None:
    total = 0
    for seed in range(16):
        report = run(seed)
        assert report.violation is None, report.text()
        found, wanted = rows_of(report.world)
        assert found == wanted, f"seed {seed}\n{report.text()}"
        total += followed(report.world)
    assert total > 10


def test_rows_that_are_lost_on_the_way_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_add", lambda places, more: None)
    for seed in range(40):
        report = run(seed)
        if report.violation is not None:
            return
        found, wanted = rows_of(report.world)
        if found != wanted:
            return
    pytest.fail("nothing was noticed")
