"""Verdicts are counted when the version is created that commits or refuses the record."""

from __future__ import annotations

import uuid
from pathlib import Path

from prometheus_client import CollectorRegistry

from committerd.committer.deciding import DecideOptions
from committerd.table.prepare import Prepared
from committerd_common.messages import Transaction
from committerd_common.own_properties import IN_ORDER, ROWS
from tests.committer.bench import Bench, record
from tests.lance.operations import delete
from tests.lance.samples import fragment, manifest, transaction
from tests.table.scene import Scene, read_at


def moved(id: int, new: int) -> Transaction:
    group = Transaction.Rewrite.RewriteGroup(old_fragments=[fragment(id)], new_fragments=[fragment(new)])
    made = transaction(1, rewrite=Transaction.Rewrite(groups=[group]), transaction_properties={ROWS: IN_ORDER})
    made.uuid = str(uuid.uuid4())
    return made


def removal(id: int) -> Transaction:
    made = read_at(delete(removed=(id,)), 1)
    made.uuid = str(uuid.uuid4())
    return made


def counted(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """The values of the metrics of verdicts that are not 0, by name and labels."""
    return {
        (sample.name, *[value for label, value in sample.labels.items() if label != "dataset"]): sample.value
        for family in registry.collect()
        if family.name in ("committerd_conflicts", "committerd_rebases", "committerd_followed_rows")
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }


async def test_once_however_often_it_was_formed(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(*map(fragment, range(3)), version=1))
    gone = removal(1)
    assert isinstance(await scene.commit(gone), Prepared)
    assert isinstance(await scene.commit(moved(0, 9)), Prepared)
    bench = Bench(scene, DecideOptions(verify_files="never"))
    bench.arrive(*(record(offset, staged) for offset, staged in enumerate([removal(0), removal(1), moved(2, 10)])))
    # Versions that are formed ahead may be dropped. The Rewrite is left for the next version.
    *_, formed = [await bench.assembler.assemble(await bench.head(), bench.intake) for _ in range(3)]
    assert formed is not None
    assert [one.offset for one in formed.own.settled.members] == [0]
    assert [one.offset for one in formed.own.settled.refusals] == [1]
    assert not counted(bench.registry)
    formed.verdicts.count(bench.telemetry)
    assert counted(bench.registry) == {
        ("committerd_conflicts_total", "delete", "rewrite", "rebasable"): 1,
        ("committerd_conflicts_total", "delete", "delete", "retryable"): 1,
        ("committerd_rebases_total", "delete"): 1,
        ("committerd_followed_rows_total", "delete"): 10,
    }
