"""Maintenance leaves the committer to others after commits that took long."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry

from committerd.commands.maintain.committer_share import CommitterShare
from committerd.telemetry import MaintenanceTelemetry
from committerd_client.results import CommitResult, CommitStatus


class Client:
    """Commits at once, and says that it took the committer so long."""

    def __init__(self, *commits_ms: int) -> None:
        self._commits_ms = iter(commits_ms)
        self.asked: list[Any] = []

    async def commit(self, transaction: Any, **given: Any) -> CommitResult:
        self.asked.append((transaction, given))
        took = next(self._commits_ms)
        return CommitResult(
            uuid="u", status=CommitStatus.COMMITTED, version=2, offset=1, operation="rewrite", commit_ms=took
        )


@pytest.mark.parametrize(
    ("share", "commits_ms", "seconds"),
    [
        (1.0, (10_000, 10_000), 10.0),  # the second began when the first had ended
        (1.0, (10_000,), 0.0),
        (0.5, (10_000,), 10.0),
        (0.25, (10_000,), 30.0),
        (0.25, (10_000, 5_000), 50.0),  # 60 s from the start of the first
        (0.25, (0,), 0.0),  # a DUPLICATE, of which nothing is known
    ],
)
async def test_the_next_task_waits_until_the_commits_are_at_most_this_share_of_the_time(
    share: float, commits_ms: tuple[int, ...], seconds: float
) -> None:
    registry = CollectorRegistry()
    limited = CommitterShare(Client(*commits_ms), share, MaintenanceTelemetry(registry))
    for _ in commits_ms:
        await limited.commit(None)  # type: ignore[arg-type]
    assert limited.seconds_left == pytest.approx(seconds, abs=0.5)
    counted = registry.get_sample_value("committerd_maintenance_committer_seconds_total")
    assert counted == pytest.approx(sum(commits_ms) / 1000)


async def test_time_that_was_not_used_is_not_saved_up() -> None:
    limited = CommitterShare(Client(20, 100), 0.5, MaintenanceTelemetry(CollectorRegistry()))
    await limited.commit(None)  # type: ignore[arg-type]
    await anyio.sleep(0.3)
    assert limited.seconds_left == 0
    await limited.commit(None)  # type: ignore[arg-type]
    assert 0.05 < limited.seconds_left <= 0.1


async def test_the_client_is_asked_as_the_caller_asks() -> None:
    client = Client(1)
    transaction: Any = object()

    async def again(_: Any) -> None: ...

    await CommitterShare(client, 0.5, MaintenanceTelemetry(CollectorRegistry())).commit(
        transaction, timeout=7.0, reexecute=again, attempts=3
    )
    assert client.asked == [(transaction, {"timeout": 7.0, "reexecute": again, "attempts": 3})]
