"""Refusals wait for a commit that takes them along; a commit never waits for refusals."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from committerd_common.messages import COMMITTED, Outcome, Transaction
from tests.simulation.faults import Rates
from tests.simulation.producers import Producers
from tests.simulation.staging import Staged
from tests.simulation.world import Report, Scenario, World, simulate

SCENARIO = Scenario(records=120, seconds=5.0, rates=Rates(latency=0.005))


class Mixed(Producers):
    """Several times a second some records arrive together, one of them wrong, and a good Append right behind them."""

    together: Sequence[str] = ()

    async def run(self, count: int, seconds: float) -> None:
        for _ in range(5):
            self.stage(self.plain())
        await anyio.sleep(20)  # it notices the table within ten seconds
        while len(self.records) < count:
            for name in self.together:
                self.stage(getattr(self, f"_{name}")())
            await anyio.sleep(self.rng.uniform(0.01, 0.08))
            self.stage(self.plain())
            await anyio.sleep(self.rng.uniform(0.01, 0.08))

    def _outside(self) -> Staged:
        """An Append that is refused."""
        transaction = Transaction.FromString(self.plain().value)
        transaction.append.fragments[0].files[0].path = "../outside.lance"
        return Staged(value=transaction.SerializeToString())

    def _claim(self) -> Staged:
        """A claim check whose file is not there."""
        return Staged(value=b"", headers=[("transaction-file", b"nothing.txn"), ("transaction-sha256", b"0" * 64)])

    def _garbage(self) -> Staged:
        return Staged(value=b"garbage")


def run(seed: int, together: Sequence[str]) -> Report:
    def prepare(world: World) -> None:
        world.producers = producers = Mixed(world)
        producers.together = together

    settings = {"refusal_interval_seconds": 1.0}
    scenario = Scenario(records=120, seconds=5.0, rates=Rates(latency=0.005), settings=settings, is_alone=True)
    return simulate(seed, scenario, prepare=prepare)


@pytest.mark.parametrize(
    "together",
    [("rows", "outside"), ("garbage", "reserve"), ("rows", "garbage", "reserve"), ("claim", "claim", "rows", "claim")],
)
def test_a_good_record_does_not_wait_for_refusals(together: Sequence[str]) -> None:
    for seed in range(3):
        report = run(seed, together)
        assert report.violation is None, report.text()
        waited = [one.queued_ms for one in committed(report) if one.offset >= 5]
        assert len(waited) > 20
        assert max(waited) < 400, (seed, sorted(waited)[-20:])


def committed(report: Report) -> list[Outcome]:
    return [one for one in report.world.auditor.answers.values() if one.status == COMMITTED]
