"""What the page keeps of a dataset: bounded, and right at the edges of minutes."""

from __future__ import annotations

import anyio

from committerd.maintenance.left_alone import LEFT_ALONE, FailedWork
from committerd.page.recent import MINUTES_MAX, TRANSACTIONS_MAX, Recent
from committerd.page.views import DatasetView, Now, Process
from committerd.stores.port import ObjectStore
from committerd_common.messages import COMMITTED, RETRYABLE, Outcome
from tests.simulation.store import Bucket, FakeStore


def _committed(number: int) -> Outcome:
    return Outcome(uuid=str(number), status=COMMITTED, operation="append", queued_ms=number, commit_ms=1)


def test_it_keeps_the_last_transactions_newest_first() -> None:
    recent = Recent(lambda: 0)
    for start in (0, 150, 150 + 2 * TRANSACTIONS_MAX):
        recent.note([_committed(n) for n in range(start, start + TRANSACTIONS_MAX + 50)])
    shown = recent.transactions()
    last = 150 + 3 * TRANSACTIONS_MAX + 49
    assert [one["uuid"] for one in shown] == [str(n) for n in range(last, last - TRANSACTIONS_MAX, -1)]


def test_an_hour_of_minutes() -> None:
    now = [120_000]
    recent = Recent(lambda: now[0])
    recent.note([_committed(10), _committed(30), Outcome(status=RETRYABLE, queued_ms=50)])
    now[0] += 60_000
    recent.note([_committed(5)])
    recent.note([])
    minutes = recent.minutes()
    assert len(minutes) == MINUTES_MAX
    assert [one["time_ms"] for one in minutes[-2:]] == [120_000, 180_000]
    before, last = minutes[-2:]
    assert (before["committed"], before["others"]) == (2, 1)
    assert (before["latency_ms_mean"], before["latency_ms_max"]) == (round((11 + 31 + 50) / 3, 1), 50)
    assert (last["committed"], last["latency_ms_max"]) == (1, 6)
    assert minutes[0]["latency_ms_mean"] is None
    # An hour later nothing of it is shown, and nothing more is kept.
    for minute in range(3, 3 + 2 * MINUTES_MAX):
        now[0] = minute * 60_000
        recent.note([_committed(1)])
    assert sum(one["committed"] for one in recent.minutes()) == MINUTES_MAX
    assert len(recent._minutes) == MINUTES_MAX


def test_conflicts_are_counted_by_pair() -> None:
    recent = Recent(lambda: 0)
    over = Outcome(status=RETRYABLE, operation="delete", conflicting_operation="rewrite")
    recent.note([over, over, Outcome(status=RETRYABLE, operation="append"), _committed(1)])
    assert recent.conflicts() == [{"operation": "delete", "over": "rewrite", "count": 2}]


def _view(name: str, now: list[int], state: list[str], store: ObjectStore | None = None) -> DatasetView:
    return DatasetView(
        name=name,
        uri=f"/data/{name}.lance",
        now_ms=lambda: now[0],
        look=lambda: Now(
            well=True,
            state=state[0],
            text="",
            position=3,
            end=10,
            oldest_ms=400,
            member="active",
            most_waiting={"flood": 7},
        ),
        store=lambda: store,
    )


async def test_since_when_it_does_what_it_does() -> None:
    now, state = [1000], ["active"]
    view = _view("events", now, state)
    process = Process(host="a", now_ms=lambda: now[0], started_ms=0, datasets=lambda: [view])
    process.watch()
    now[0] = 5000
    assert view.summary()["since_ms"] == 1000
    state[0] = "paused"
    process.watch()
    now[0] = 9000
    found = view.summary()
    assert found["most_waiting"] == [{"producer": "flood", "records": 7}]
    assert (found["since_ms"], found["lag"], found["oldest_waits_ms"]) == (5000, 7, 8600)
    assert (await view.details())["maintenance"]["problem"] == "the table is not open"


async def test_one_of_many_datasets() -> None:
    views = [_view(name, [0], ["active"]) for name in ("a", "b")]
    process = Process(host="a", now_ms=lambda: 0, started_ms=0, datasets=lambda: views)
    first, second = await process.status(None), await process.status("b")
    assert first is not None
    assert second is not None
    assert (first["dataset"]["name"], second["dataset"]["name"]) == ("a", "b")
    assert [one["name"] for one in second["datasets"]] == ["a", "b"]
    assert await process.status("c") is None
    assert await process.transactions("c") is None
    empty = Process(host="a", now_ms=lambda: 0, started_ms=0, datasets=list)
    nothing = await empty.status(None)
    assert nothing is not None
    assert nothing["dataset"] is None
    assert await empty.transactions(None) == {"dataset": None, "transactions": []}


class _Silent(FakeStore):
    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        await anyio.sleep_forever()
        raise AssertionError(key)


async def test_a_store_that_does_not_respond_keeps_nobody_waiting() -> None:
    view = _view("events", [40_000], ["active"], _Silent(Bucket()))
    found = list[str]()

    async def look() -> None:
        found.append((await view.details())["maintenance"]["problem"])

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            tasks.start_soon(look)
    assert sorted(found) == ["it is being read", "the store has not responded within 2 s"]


async def test_what_may_be_tried_again_is_not_left_alone() -> None:
    failed = FailedWork("").after_failure(index="ids", why="no memory", proved=False, now_ms=40_000)
    failed = failed.after_failure(fragments=[1, 2], why="unreadable", proved=True, now_ms=40_000)
    store = FakeStore(Bucket())
    await store.put(LEFT_ALONE, failed.encode())
    found = (await _view("events", [40_000], ["active"], store).details())["maintenance"]["left_alone"]
    assert [(one["fragments"], one["index"]) for one in found] == [(2, "")]
