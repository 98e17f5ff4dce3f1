"""Maintenance leaves the committer to others after commits that took long."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry

from committerd.commands.maintain.committer_share import CommitterShare
from committerd.telemetry import MaintenanceMetrics
from committerd_client import RetryableConflict
from committerd_client.reexecution import ask
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


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyio, "current_time", lambda: 100.0)


@pytest.mark.usefixtures("no_time_passes")
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
    limited = CommitterShare(Client(*commits_ms), share, MaintenanceMetrics(registry).of("events"))
    for _ in commits_ms:
        await limited.commit(None)  # type: ignore[arg-type]
    assert limited.seconds_left == pytest.approx(seconds)
    assert counted(registry) == pytest.approx(sum(commits_ms) / 1000)


def counted(registry: CollectorRegistry) -> float | None:
    """The seconds that the committer has spent on commits of maintenance."""
    return registry.get_sample_value("committerd_maintenance_committer_seconds_total", {"dataset": "events"})


async def test_time_that_was_not_used_is_not_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(anyio, "current_time", lambda: now)
    limited = CommitterShare(Client(20, 100), 0.5, MaintenanceMetrics(CollectorRegistry()).of("events"))
    await limited.commit(None)  # type: ignore[arg-type]
    now += 60
    assert limited.seconds_left == 0
    await limited.commit(None)  # type: ignore[arg-type]
    assert limited.seconds_left == pytest.approx(0.1)


async def test_the_client_is_asked_as_the_caller_asks() -> None:
    client = Client(1)
    transaction: Any = object()
    await CommitterShare(client, 0.5, MaintenanceMetrics(CollectorRegistry()).of("events")).commit(
        transaction, timeout=7.0, attempts=3
    )
    assert client.asked == [(transaction, {"timeout": 7.0, "reexecute": None, "attempts": 3})]


def refused(milliseconds: int) -> RetryableConflict:
    error = RetryableConflict("lost")
    error.commit_ms = milliseconds
    return error


class RefusingClient(Client):
    """Refuses each try, and says that it took the committer so long; commits what is left of `commits_ms`, if any."""

    def __init__(self, refusals: Sequence[RetryableConflict], *commits_ms: int) -> None:
        super().__init__(*commits_ms)
        self._refusals = refusals

    async def commit(self, transaction: Any, *, reexecute: Any = None, **given: Any) -> CommitResult:
        for error in self._refusals:
            asked: Any = SimpleNamespace(error=error)
            if reexecute is None or await ask(reexecute, asked, lambda: None) is None:
                raise error
        return await super().commit(transaction, **given)


@pytest.mark.usefixtures("no_time_passes")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_tries_that_were_refused_count_too(in_thread: bool) -> None:
    registry = CollectorRegistry()
    client = RefusingClient([refused(3_000), refused(2_000)], 5_000)
    limited = CommitterShare(client, 0.5, MaintenanceMetrics(registry).of("events"))
    asked: list[Any] = []

    async def again(one: Any) -> Any:
        return plain(one)

    def plain(one: Any) -> Any:
        asked.append(one.error)
        return b"again"

    await limited.commit(b"", reexecute=plain if in_thread else again)
    assert [one.commit_ms for one in asked] == [3_000, 2_000]
    assert limited.seconds_left == pytest.approx(17)  # 20 s from the start of the first try
    assert registry.get_sample_value(
        "committerd_maintenance_committer_seconds_total", {"dataset": "events"}
    ) == pytest.approx(10)


@pytest.mark.parametrize("reexecute", [None, lambda _: None])
async def test_a_commit_that_was_refused_for_good_counts_once(reexecute: Any) -> None:
    registry = CollectorRegistry()
    limited = CommitterShare(RefusingClient([refused(3_000)]), 0.5, MaintenanceMetrics(registry).of("events"))
    with pytest.raises(RetryableConflict):
        await limited.commit(b"", reexecute=reexecute)
    assert registry.get_sample_value(
        "committerd_maintenance_committer_seconds_total", {"dataset": "events"}
    ) == pytest.approx(3)
