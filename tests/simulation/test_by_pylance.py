"""Where pylance builds the versions, every promise holds too, and a committer that lacks a rule is found out."""

from __future__ import annotations

from typing import Any

import pytest

from committerd.committer import putting
from committerd.lance.format.manifest_file import decode, encode
from committerd.lance.versions import adopted
from committerd.lance.versions.draft import BuildInput
from committerd.stores.port import Created, Exists, ObjectStore
from committerd.table import by_pylance
from committerd.table.needs import BuiltByPylance, PylanceBuilt
from committerd.table.prepare import Prepared
from committerd.table.versions import Table
from committerd.table.writing import put
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.simulation.chaos import Chaos
from tests.simulation.faults import Rates
from tests.simulation.mutations import Mutate
from tests.simulation.pylance import Pylance
from tests.simulation.world import Report, Scenario, World, simulate

SCENARIO = Scenario(
    records=40,
    seconds=60.0,
    by_pylance=True,
    rates=Rates(refused=0.02, lost=0.02, doubled=0.02, latency=0.02, slow=0.02, slow_seconds=10.0),
    events={
        Chaos.crash: 3.0,
        Chaos.stand_still: 3.0,
        Chaos.hand_over: 2.0,
        Chaos.fence: 2.0,
        Chaos.fence_and_crash: 2.0,
        Chaos.store_outage: 1.0,
        Chaos.lose_group_offset: 1.0,
    },
    event_seconds=5.0,
    foreign_seconds=5.0,
)


def appends(world: World) -> None:
    """Half of the records are staged twice, and each fourth is refused."""
    producers = world.producers
    for number in range(30):
        plain = producers.plain()
        producers.plan += [plain, plain] if number % 2 else [plain]
        if number % 4 == 0:
            producers.plan.append(producers.wrong())


def run(seed: int) -> Report:
    return simulate(seed, SCENARIO, prepare=appends)


@pytest.mark.parametrize("seed", range(10))
def test_every_promise_holds(seed: int) -> None:
    report = run(seed)
    assert report.violation is None, report.text()
    assert any(seen.settled.ours for seen in report.world.auditor.versions.values())


def forgets_position_and_marks(patch: pytest.MonkeyPatch) -> None:
    def left(outline: Manifest, entries: object) -> None:
        del outline, entries

    patch.setattr(adopted, "set_own_metadata", left)


def stores_the_transaction_that_pylance_was_given(patch: pytest.MonkeyPatch) -> None:
    """Neither the record's uuid nor the refusals are in the table then."""
    real = adopted.adopted

    def theirs(body: bytes, latest: Any, transaction: Transaction, *, asked: Transaction, given: BuildInput) -> Any:
        return real(body, latest, asked, asked=asked, given=given)

    patch.setattr(by_pylance, "adopted", theirs)


def lets_pylance_commit(patch: pytest.MonkeyPatch) -> None:
    """As pylance does: on whatever version is the latest, under the record's own uuid."""
    real = Pylance.__call__

    async def committing(self: Pylance, store: ObjectStore, need: BuiltByPylance) -> PylanceBuilt:
        built = await real(self, store, need)
        file = decode(built.body)
        assert file.transaction is not None
        manifest, number = file.manifest, need.version + 1
        while True:
            manifest.version = number
            key = manifest_key(number, NamingScheme.V2)
            if isinstance(await store.put_if_absent(key, encode(manifest, file.indices, file.transaction)), Created):
                return built
            number += 1

    patch.setattr(Pylance, "__call__", committing)


def replaces_what_stands_at_the_number(patch: pytest.MonkeyPatch) -> None:
    """It puts although the head has moved."""

    async def overwriting(table: Table, prepared: Prepared) -> Created | Exists:
        if prepared.judged.by_pylance is None:
            return await put(table, prepared)
        await table.store.put(prepared.key, bytes(prepared.body))
        return Created()

    patch.setattr(putting, "put", overwriting)


MUTATIONS: list[Mutate] = [
    forgets_position_and_marks,
    stores_the_transaction_that_pylance_was_given,
    lets_pylance_commit,
    replaces_what_stands_at_the_number,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_committer_that_lacks_a_rule_is_found_out(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert any(run(seed).violation is not None for seed in range(50))
